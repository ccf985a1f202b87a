"""Bars made of characters, for Markdown: each line has a name, a bar from zero, and a number. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from perflab.tables.escaping import fenced, one_line
from perflab.tables.lines import shorten

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
