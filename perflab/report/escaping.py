"""Escapes text where it is shown: one function for each kind of output.

``for_reading`` is for all that people read, a terminal foremost: no text moves the cursor, or begins a line of its own.
``escape`` and ``code`` make what comes of it Markdown. Files are named by ``file_name_for`` of the plugin, and
``module_of`` of the gate.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Sequence

from perflab.data import changed, with_texts
from perflab.results import Document, Result

FENCE = "```"


def one_line(text: str) -> str:
    """The text on one line, with escapes for what nobody can see: control characters, changes of direction."""
    return text if text.isprintable() else "".join(map(_visible, text))


def lines_of(text: str) -> str:
    """The same of a text that has several lines."""
    return "\n".join(map(one_line, text.replace("\r\n", "\n").split("\n")))


def _visible(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return " " if character.isspace() else character.encode("unicode_escape").decode("ascii")


def for_reading(document: Document) -> Document:
    """A run whose every text can be shown. Of what has lines, failures and findings, these stay."""
    shown = with_texts(document, one_line)
    findings = {one_line(study): [lines_of(line) for line in found] for study, found in document.findings.items()}
    pairs = zip(shown.results, document.results, strict=True)
    return changed(shown, findings=findings, results=[_with_failure(new, old.failure) for new, old in pairs])


def result_for_reading(result: Result) -> Result:
    """The same of one case."""
    return _with_failure(with_texts(result, one_line), result.failure)


def _with_failure(result: Result, failure: str | None) -> Result:
    return changed(result, failure=lines_of(failure)) if failure is not None else result


def code(text: str) -> str:
    """The text as code, within one cell of a table. Entities where it holds what would end the span, or the cell."""
    line = one_line(text)
    if line.strip() and not re.search(r"[`|\\]", line):
        return f"`{line}`"
    return f"<code>{re.sub(r'[^A-Za-z0-9 ]', lambda found: f'&#{ord(found[0])};', line)}</code>"


def fenced(lines: Sequence[str]) -> str:
    """Lines of plain text as a block, in a fence that none of them ends."""
    text = "\n".join(lines)
    fence = max([FENCE, *(f"{run}`" for run in re.findall("`+", text))], key=len)
    return f"{fence}text\n{text}\n{fence}"


def escape(text: str) -> str:
    """Text that Markdown and HTML leave as it is, also where a block begins with it."""
    plain = re.sub(r"([\\`*_{}\[\]|~$]|(?<!&)#)", r"\\\1", in_html(text.strip()))
    # a list's mark, or a line below a heading
    return re.sub(r"^(\d*)([-+.)](?=\s|$)|[-=](?=[-=\s]*$))", r"\1\\\2", plain)


def in_html(text: str) -> str:
    """Text within a tag on GitHub, where Markdown is not read: it names nobody, and its addresses are no links."""
    plain = html.escape(one_line(text), quote=False)
    # GitHub notifies whom an @ names, however it is written: an invisible space behind it ends the name. Bare addresses
    # become links unless what they are known by is an entity.
    plain = plain.replace("@", "@&#8203;")
    return re.sub(r":(?=//)|(?<=www)\.", lambda found: f"&#{ord(found[0])};", plain, flags=re.IGNORECASE)
