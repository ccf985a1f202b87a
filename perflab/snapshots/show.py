"""Formats a report as text, Markdown and JSON; ``page`` makes the HTML. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator

from perflab.snapshots.tables import Column, Report, shown
from perflab.tables.escaping import escape, one_line

_WIDEST = 60
"""The most characters of a cell of text in a terminal."""


def as_text(report: Report) -> str:
    """Format a report as text for a terminal."""
    return "\n".join(_text(report)) + "\n"


def _text(report: Report) -> Iterator[str]:
    yield one_line(report.title)
    width = max(len(fact.title) for fact in report.facts)
    for fact in report.facts:
        yield f"  {fact.title:<{width}}  {one_line(shown(fact.value, fact.kind))}"
    for table in report.tables:
        yield ""
        yield one_line(table.title)
        cells = [
            [_short(shown(value, column.kind), column) for value, column in zip(row, table.columns, strict=True)]
            for row in table.rows
        ]
        heads = [column.title for column in table.columns]
        widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
        for line in (heads, *cells):
            row = zip(line, widths, table.columns, strict=True)
            yield ("  " + "  ".join(_aligned(cell, wide, column) for cell, wide, column in row)).rstrip()
        if not cells:
            yield "  (nothing)"
        if table.note:
            yield f"  {one_line(table.note)}"
    if report.notes:
        yield ""
    yield from (f"note: {one_line(note)}" for note in report.notes)


def _short(text: str, column: Column) -> str:
    line = one_line(text)
    if len(line) <= _WIDEST:
        return line
    # The end of a path, its file and line, distinguishes it from other paths.
    return "…" + line[1 - _WIDEST :] if column.key == "line" else line[: _WIDEST - 1] + "…"


def _aligned(cell: str, width: int, column: Column) -> str:
    return f"{cell:<{width}}" if column.kind == "text" else f"{cell:>{width}}"


def first_changes(report: Report, most: int = 3) -> list[str]:
    """Return the beginning of a comparison, for a failure's text: the peak's change, and the rows that change most."""
    change = next(fact.value for fact in report.facts if fact.key == "change_bytes")
    found = next(table for table in report.tables if table.key == "changes")
    lines = [f"memory: peak of the snapshot {shown(change, 'change')}" + (", of which" if found.rows else "")]
    for row in found.rows[:most]:
        line, module, category, size, *_ = row
        where = " in ".join(str(part) for part in (line, module) if part)
        lines.append(one_line(f"  {shown(size, 'change')} {category}: {where}".rstrip(": ")))
    return lines


def as_markdown(report: Report) -> str:
    """Format a report as Markdown for GitHub."""
    return "\n".join(_markdown(report)) + "\n"


def _markdown(report: Report) -> Iterator[str]:
    yield f"## {escape(report.title)}"
    yield ""
    yield "| | |"
    yield "|---|---|"
    for fact in report.facts:
        yield f"| {escape(fact.title)} | {escape(shown(fact.value, fact.kind))} |"
    for table in report.tables:
        yield ""
        yield f"### {escape(table.title)}"
        yield ""
        yield "| " + " | ".join(escape(column.title) for column in table.columns) + " |"
        yield "|" + "|".join("---" if column.kind == "text" else "--:" for column in table.columns) + "|"
        for row in table.rows:
            cells = (escape(shown(value, column.kind)) for value, column in zip(row, table.columns, strict=True))
            yield "| " + " | ".join(cells) + " |"
        if table.note:
            yield ""
            yield escape(table.note)
    for note in report.notes:
        yield ""
        yield f"> {escape(note)}"


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
