"""Escapes text where it is shown: one function for each kind of output. Makes parts of Markdown. Pure.

``for_reading`` serves all output for people, above all terminals: no text can move the cursor or begin a new line.
``escape`` and ``code`` turn its result into Markdown, and ``fitting`` joins blocks into a comment on GitHub. Names of
files are escaped by ``file_name_for`` of the plugin and ``module_of`` of the gate.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Sequence
from urllib.parse import quote

from perflab.base.data import changed, with_texts
from perflab.results.result import Document, Result
from perflab.tables.lines import shorten

FENCE = "```"


def one_line(text: str) -> str:
    """Return the text on one line, with escapes for invisible characters: control characters, changes of direction."""
    return text if text.isprintable() else "".join(map(_visible, text))


def lines_of(text: str) -> str:
    """Return a text of several lines, with invisible characters escaped in each line."""
    return "\n".join(map(one_line, text.replace("\r\n", "\n").split("\n")))


def _visible(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return " " if character.isspace() else character.encode("unicode_escape").decode("ascii")


def for_reading(document: Document) -> Document:
    """Return a run in which every text is safe to show. Failures and findings keep their lines."""
    shown = with_texts(document, one_line)
    findings = {one_line(study): [lines_of(line) for line in found] for study, found in document.findings.items()}
    pairs = zip(shown.results, document.results, strict=True)
    return changed(shown, findings=findings, results=[_with_failure(new, old.failure) for new, old in pairs])


def result_for_reading(result: Result) -> Result:
    """Return the result of one case in which every text is safe to show. The failure keeps its lines."""
    return _with_failure(with_texts(result, one_line), result.failure)


def _with_failure(result: Result, failure: str | None) -> Result:
    return changed(result, failure=lines_of(failure)) if failure is not None else result


def code(text: str) -> str:
    """Return the text as Markdown code for one cell of a table.

    A text with characters that would end the code span or the cell is written with HTML entities.
    """
    line = one_line(text)
    if line.strip() and not re.search(r"[`|\\]", line):
        return f"`{line}`"
    return f"<code>{re.sub(r'[^A-Za-z0-9 ]', lambda found: f'&#{ord(found[0])};', line)}</code>"


def fenced(lines: Sequence[str]) -> str:
    """Return lines of plain text as a fenced block, with a fence that no line ends."""
    text = "\n".join(lines)
    fence = max([FENCE, *(f"{run}`" for run in re.findall("`+", text))], key=len)
    return f"{fence}text\n{text}\n{fence}"


def escape(text: str) -> str:
    """Escape text so that Markdown and HTML show it unchanged, also at the beginning of a block."""
    plain = re.sub(r"([\\`*_{}\[\]|~$]|(?<!&)#)", r"\\\1", in_html(text.strip()))
    # a list's mark, or a line that makes the text above it a heading
    return re.sub(r"^(\d*)([-+.)](?=\s|$)|[-=](?=[-=\s]*$))", r"\1\\\2", plain)


def in_html(text: str) -> str:
    """Escape text within a tag on GitHub, where Markdown is not read: no @ notifies users, addresses are no links."""
    plain = html.escape(one_line(text), quote=False)
    # GitHub notifies the user whom an @ names, even if the @ is an entity: an invisible space behind the @ ends the
    # name. Bare addresses become links, unless the colon of :// or the dot of www. is an entity.
    plain = plain.replace("@", "@&#8203;")
    return re.sub(r":(?=//)|(?<=www)\.", lambda found: f"&#{ord(found[0])};", plain, flags=re.IGNORECASE)


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
