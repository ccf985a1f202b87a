"""A report on snapshots as data: facts, tables and notes; and its forms as text, Markdown and JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from perflab.tables.escaping import escape, one_line
from perflab.tables.lines import columns, cut, cut_begin
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
    return (*listed[:most], sum_of(rest, columns, format_count(len(rest), "smaller row"), summed=summed))


def sum_of(
    rows: Sequence[tuple[Value, ...]], columns: Sequence[Column], named: str, *, summed: Sequence[str]
) -> tuple[Value, ...]:
    """Return one row for several: the sums of the columns ``summed``, and ``named`` in the first column of text."""
    found: list[Value] = []
    for number, column in enumerate(columns):
        if column.key in summed:
            found.append(sum(value for row in rows if isinstance(value := row[number], int | float)))
        else:
            found.append(None if column.kind != "text" else "" if named in found else named)
    return tuple(found)


_WIDEST = 60
"""The most characters of a cell of text in a terminal."""


def as_text(report: Report) -> str:
    """Format a report as text for a terminal."""
    width = max(len(fact.title) for fact in report.facts)
    lines = [report.title, *(f"  {one.title:<{width}}  {shown(one.value, one.kind)}" for one in report.facts)]
    for table in report.tables:
        cells = [
            [  # the end of a path, its file and line, distinguishes it from other paths
                (cut_begin if column.key == "line" else cut)(one_line(shown(value, column.kind)), _WIDEST)
                for value, column in zip(row, table.columns, strict=True)
            ]
            for row in table.rows
        ]
        numbers = [at for at, column in enumerate(table.columns) if column.kind != "text"]
        lines += ["", table.title, *columns([[column.title for column in table.columns], *cells], numbers)]
        lines += [] if cells else ["  (nothing)"]
        lines += [f"  {table.note}"] if table.note else []
    lines += ["", *(f"note: {note}" for note in report.notes)] if report.notes else []
    return "\n".join(map(one_line, lines)) + "\n"


def first_changes(report: Report) -> list[str]:
    """Return the beginning of a comparison, for a failure's text: the peak's change, and the three largest changes."""
    change = next(fact.value for fact in report.facts if fact.key == "change_bytes")
    found = next(table for table in report.tables if table.key == "changes")
    told = shown(change, "change") if change else "unchanged"
    lines = [f"memory: peak of the snapshot {told}" + (", of which" if found.rows else "")]
    for row in found.rows[:3]:
        line, module, category, size, *_ = row
        where = " in ".join(str(part) for part in (line, module) if part)
        lines.append(one_line(f"  {shown(size, 'change')} {category}: {where}".rstrip(": ")))
    return lines


def as_markdown(report: Report) -> str:
    """Format a report as Markdown for GitHub."""
    lines = [f"## {escape(report.title)}", "", "| | |", "|---|---|"]
    lines += [f"| {escape(fact.title)} | {escape(shown(fact.value, fact.kind))} |" for fact in report.facts]
    for table in report.tables:
        lines += ["", f"### {escape(table.title)}", ""]
        lines.append("| " + " | ".join(escape(column.title) for column in table.columns) + " |")
        lines.append("|" + "|".join("---" if column.kind == "text" else "--:" for column in table.columns) + "|")
        for row in table.rows:
            cells = (escape(shown(value, column.kind)) for value, column in zip(row, table.columns, strict=True))
            lines.append("| " + " | ".join(cells) + " |")
        lines += ["", escape(table.note)] if table.note else []
    for note in report.notes:
        lines += ["", f"> {escape(note)}"]
    return "\n".join(lines) + "\n"


def as_json(report: Report) -> str:
    """Format a report as JSON for programs: bytes and nanoseconds are whole numbers, an unknown value is ``null``."""
    content = {
        "schema": 1,
        "title": report.title,
        **{fact.key: fact.value for fact in report.facts},
        "tables": {
            table.key: [
                {column.key: value for column, value in zip(table.columns, row, strict=True)} for row in table.rows
            ]
            for table in report.tables
        },
        "notes": list(report.notes),
    }
    return json.dumps(content, indent=1, ensure_ascii=True) + "\n"
