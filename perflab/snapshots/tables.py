"""A report on snapshots as data: facts, tables and notes. Every output format shows this data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from perflab.units import format_bytes, format_count, format_ns, format_percent

Kind = Literal["text", "bytes", "exact", "change", "count", "share", "ns"]
"""The kind of a value: ``exact`` is bytes, shown as a whole number too; ``change`` is bytes with a sign; ``ns`` is
nanoseconds."""
Value = str | int | float | None


@dataclass(frozen=True)
class Column:
    """A column of a table. ``key`` is its name in JSON."""

    key: str
    title: str
    kind: Kind = "text"


@dataclass(frozen=True)
class Table:
    """Rows under a title. The last row may be the sum of smaller rows."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Fact:
    """A single value with its title."""

    key: str
    title: str
    value: Value
    kind: Kind = "text"


@dataclass(frozen=True)
class Report:
    """The whole report: title, facts, tables and notes."""

    title: str
    facts: tuple[Fact, ...]
    tables: tuple[Table, ...]
    notes: tuple[str, ...]


def shown(value: Value, kind: Kind) -> str:
    """Format a value for people; None becomes a dash."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if kind == "exact":
        short = format_bytes(int(value))
        return short if short.endswith(" B") else f"{short} ({int(value):,} B)"
    if kind == "bytes":
        return format_bytes(int(value))
    if kind == "change":
        return f"{'-' if value < 0 else '+' if value else ''}{format_bytes(abs(int(value)))}"
    if kind == "share":
        return "<0.1%" if 0 < value < 0.001 else format_percent(value)
    if kind == "ns":
        return format_ns(value)
    return f"{value:,}"


def largest(
    rows: Iterable[tuple[Value, ...]], columns: Sequence[Column], most: int, *, summed: Sequence[str]
) -> tuple[tuple[Value, ...], ...]:
    """Return the first rows, and one row that sums up the others, so that the columns ``summed`` keep their sums."""
    listed = list(rows)
    if len(listed) <= most + 1:
        return tuple(listed)
    rest = listed[most:]
    last: list[Value] = []
    for number, column in enumerate(columns):
        if column.key in summed:
            last.append(sum(value for row in rest if isinstance(value := row[number], int | float)))
        else:
            last.append(format_count(len(rest), "smaller row") if number == 0 else "")
    return (*listed[:most], tuple(last))


def whole(value: Value) -> int:
    """Return the integer in a cell, for a sum; 0 if the cell holds anything else."""
    return value if isinstance(value, int) else 0
