"""Builds the text of failures: lines of one width, a table, and counts that changed. Pure.

The table has each quantity before and now. Quantities that failed the case stand first and are marked.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perflab.results.records import Change
from perflab.units import format_change, format_interval, format_percent

WIDTH = 80
"""Width of a failure's text, in characters."""
MARK = "failed"
_NOTICED = 0.01
"""The share by which instructions must differ to be shown; smaller differences occur in every run."""


def wrapped(text: str, indent: str = "  ") -> list[str]:
    """Wrap the text into lines of ``WIDTH``, with ``indent`` before all lines but the first."""
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


@dataclass(frozen=True)
class Quantity:
    """A row of the table: the quantity's name, then a cell for each further column."""

    cells: Sequence[str]
    failed: bool = False


def failing_table(head: Sequence[str], rows: Sequence[Quantity]) -> list[str]:
    """Return the table's lines, with ``head`` first; names are aligned left, all other cells right."""
    ordered = sorted(rows, key=lambda row: not row.failed)
    lines = [(head, ""), *((row.cells, MARK if row.failed else "") for row in ordered)]
    widths = [max(len(cells[column]) for cells, _ in lines) for column in range(len(head))]
    return [
        "  ".join(
            [cells[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(cells[1:], widths[1:], strict=True)), mark]
        ).rstrip()
        for cells, mark in lines
    ]


def changed(counts: Mapping[str, Change]) -> dict[str, Change]:
    """Return the counts that changed; of instructions only those that changed by more than ``_NOTICED``."""
    return {
        name: change
        for name, change in counts.items()
        if change.now != change.before and (not _wobbles(name) or abs(change.ratio - 1.0) > _NOTICED)
    }


def count_fact(name: str, change: Change) -> str:
    """Return the change of a count in words: ``operators 112 -> 118``."""
    return f"{_shown(name)} {int(change.before):,} -> {int(change.now):,}"


def count_row(name: str, change: Change) -> tuple[str, ...]:
    """Return a count's cells in the failure's table: name, before, now, change, interval, limit."""
    before, now = int(change.before), int(change.now)
    if change.limit is None:
        limit = "none"
    else:
        limit = f"+{format_percent(change.limit - 1.0)}" if change.limit > 1.0 else "exact"
    if _wobbles(name):
        return (_shown(name), f"{before:,}", f"{now:,}", format_change(change.ratio), "–", limit)
    between = "exact" if change.low is None or change.high is None else format_interval(change.low, change.high)
    return (_shown(name), f"{before:,}", f"{now:,}", f"{now - before:+,}", between, limit)


def _wobbles(name: str) -> bool:
    return name.endswith("instructions")


def _shown(name: str) -> str:
    return name.replace("_", " ")
