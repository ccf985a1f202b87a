"""Markdown as a comment on GitHub: no longer than a comment may be, with a link to the page that has all of it."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from perflab.tables.escaping import FENCE

LONGEST_COMMENT = 65_000
"""The most characters of a comment: GitHub refuses more than 65,536, and a workflow adds lines of its own."""
_LEFT_OUT = "_The rest does not fit into a comment: it is on the page._"


def fitting(blocks: Sequence[str], page: str | None) -> str:
    """Join the blocks into a text. If a page has all of them, the text is no longer than a comment on GitHub may be.

    Collapsed blocks and bars are left out first, then rows and blocks from the end.
    """
    text = "\n\n".join(blocks) + "\n"
    if page is None or len(text) <= LONGEST_COMMENT:
        return text
    first = [block for block in blocks if not block.startswith(("<details>", FENCE))]
    lines = [line for block in first for line in (*block.split("\n"), "")]
    kept, room = [], LONGEST_COMMENT - len(_LEFT_OUT) - 2
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return "\n".join([*kept, "", _LEFT_OUT]) + "\n"


def link(page: str | None) -> list[str]:
    """Return a block that links to the HTML page with charts, samples and profiles; empty if ``page`` is None."""
    if page is None:
        return []
    address = quote(page.strip(), safe="%/:?#@!$&'*+,;=~-._")
    return [f"[All of it as a page: charts, samples, profiles](<{address}>)"]
