"""Bars made of letters, for Markdown: a name, a bar from zero, and its number in each line. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from perflab.report.escaping import fenced, one_line
from perflab.report.lines import shorten

_PARTS = " ▏▎▍▌▋▊▉"
"""Eighths of a letter."""
_FULL = "█"
_WIDTH = 40
_LONGEST_NAME = 32


def text_bars(given: Sequence[tuple[str, float, str]]) -> list[str]:
    """A line for each name, value and text of the value; values are zero or more."""
    highest = max((value for _, value, _ in given), default=0.0) or 1.0
    names = [shorten(one_line(name), _LONGEST_NAME) for name, _, _ in given]
    room = max(map(len, names), default=0)
    return [
        f"{name.ljust(room)} {_bar(value / highest)} {one_line(text)}"
        for name, (_, value, text) in zip(names, given, strict=True)
    ]


def _bar(share: float) -> str:
    """As long as the share of the longest one; what is more than nothing is never without a trace."""
    eighths = max(round(share * _WIDTH * 8), 1 if share > 0 else 0)
    return (_FULL * (eighths // 8) + _PARTS[eighths % 8].strip()).ljust(1)


def bars_block(title: str, given: Sequence[tuple[str, float, str]]) -> list[str]:
    """The bars as a block of Markdown below their title; none where there is nothing to compare."""
    if len(given) < 2:
        return []
    return [fenced([one_line(title), *text_bars(given)])]
