"""Escapes text where it is shown: one function for each kind of output.

``for_reading`` serves all output for people, above all terminals: no text can move the cursor or begin a new line.
``escape`` and ``code`` turn its result into Markdown. Names of files are escaped by ``file_name_for`` of the plugin and
``module_of`` of the gate.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Sequence

from perflab.base.data import changed, with_texts
from perflab.results.result import Document, Result

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
