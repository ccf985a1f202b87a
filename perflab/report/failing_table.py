"""The table of a failing case: each quantity before and now, failed ones first and marked. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MARK = "failed"


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
