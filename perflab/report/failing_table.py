"""The text of failures: lines of one width, and a table. Pure.

The table has each quantity before and now. What failed the case stands first, and is marked.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 80
"""Columns of a failure's text."""
MARK = "failed"


def wrapped(text: str, indent: str = "  ") -> list[str]:
    """The text in lines, ``indent`` before all but the first."""
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


@dataclass(frozen=True)
class Quantity:
    """A row: its name, then a cell for each further column."""

    cells: Sequence[str]
    failed: bool = False


def failing_table(head: Sequence[str], rows: Sequence[Quantity]) -> list[str]:
    """The lines, names to the left and all else to the right; ``head`` is the first."""
    ordered = sorted(rows, key=lambda row: not row.failed)
    lines = [(head, ""), *((row.cells, MARK if row.failed else "") for row in ordered)]
    widths = [max(len(cells[column]) for cells, _ in lines) for column in range(len(head))]
    return [
        "  ".join(
            [cells[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(cells[1:], widths[1:], strict=True)), mark]
        ).rstrip()
        for cells, mark in lines
    ]
