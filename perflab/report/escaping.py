"""Text that stands in Markdown as it is, whatever it holds."""

from __future__ import annotations

import html
import re


def code(text: str) -> str:
    """The text as code, within one cell of a table. Entities where it holds what would end the span, or the cell."""
    one_line = " ".join(text.splitlines())
    if not re.search(r"[`|\\]", one_line):
        return f"`{one_line}`"
    return f"<code>{re.sub(r'[^A-Za-z0-9 ]', lambda found: f'&#{ord(found[0])};', one_line)}</code>"


def longest_run(text: str) -> int:
    """Backticks in a row, at most: a fence around the text takes one more."""
    return max((len(run) for run in re.findall("`+", text)), default=0)


def escape(text: str) -> str:
    """Text that Markdown and HTML leave as it is."""
    return re.sub(r"([\\`*_{}\[\]|~#])", r"\\\1", html.escape(" ".join(text.splitlines()), quote=False))
