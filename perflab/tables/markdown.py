"""Parts of Markdown: a text that fits into a comment on GitHub, a link to its page, and bars of characters. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from perflab.tables.escaping import FENCE, fenced, one_line
from perflab.tables.lines import shorten

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


_PARTS = " ▏▎▍▌▋▊▉"
"""Characters that fill 0 to 7 eighths of their width."""
_FULL = "█"
_WIDTH = 40
_LONGEST_NAME = 32


def text_bars(given: Sequence[tuple[str, float, str]]) -> list[str]:
    """Return a line for each name, value and text of the value; values are zero or more."""
    highest = max((value for _, value, _ in given), default=0.0) or 1.0
    names = [shorten(one_line(name), _LONGEST_NAME) for name, _, _ in given]
    room = max(map(len, names), default=0)
    return [
        f"{name.ljust(room)} {_bar(value / highest)} {one_line(text)}"
        for name, (_, value, text) in zip(names, given, strict=True)
    ]


def _bar(share: float) -> str:
    """Return a bar of ``share`` of the longest bar's length; a share above 0 has at least an eighth of a character."""
    eighths = max(round(share * _WIDTH * 8), 1 if share > 0 else 0)
    return (_FULL * (eighths // 8) + _PARTS[eighths % 8].strip()).ljust(1)


def bars_block(title: str, given: Sequence[tuple[str, float, str]]) -> list[str]:
    """Return the bars as a block of Markdown below their title; empty if there are fewer than two bars."""
    if len(given) < 2:
        return []
    return [fenced([one_line(title), *text_bars(given)])]
