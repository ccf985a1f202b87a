"""Formats a study's tables as text, as Markdown and as plain data for JSON."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from perflab.base.data import to_plain
from perflab.measured.report.columns import Column, Value, in_blocks
from perflab.measured.report.studies import Study, StudyRow, StudyTable
from perflab.results.records import Environment
from perflab.tables.escaping import bars_block, code, escape
from perflab.tables.lines import Line, cut, shorten, wrap_facts
from perflab.tables.view import CHARTED

_GAP = 2
_LEAST_COLUMN = 24
"""Least width, in characters, that the labels leave to a column."""


def study_lines(found: Sequence[Study], width: int = 80) -> list[Line]:
    """Return studies as lines no wider than ``width`` (80 at least); columns that do not fit stand in blocks below."""
    width = max(width, 80)
    lines: list[str] = []
    for study in found:
        lines += _wrapped(" · ".join(study.title), width)
        for table in study.tables:
            if len(study.tables) > 1 and table.environment is not None:
                lines += wrap_facts(_machine(table.environment), width)
            if table.nothing:
                lines.append(table.nothing)
                continue
            room = width - _label_width(table, width)
            widths = [_GAP + sum(_widths(table, at, room - _GAP)) for at in range(len(table.columns))]
            for columns in in_blocks(widths, room):
                lines += _block(table, columns, width)
            lines += [text for one in (*table.untold, *_sources(table)) for text in _wrapped(one, width)]
        lines += [text for finding in study.findings for line in finding.splitlines() for text in _wrapped(line, width)]
    return [Line(text) for text in lines]


def _block(table: StudyTable, columns: Sequence[int], width: int) -> list[str]:
    """Return the lines of one block. Only the first block has the text of rows without numbers."""
    labels = _label_width(table, width)
    sizes = [_widths(table, at, width - labels - _GAP) for at in columns]
    is_first = not columns or columns[0] == 0
    heads = "".join(
        " " * _GAP + cut(table.columns[at].title, sum(size)).rjust(sum(size))
        for at, size in zip(columns, sizes, strict=True)
    )
    lines = [(shorten(table.head, labels).ljust(labels) + heads).rstrip()]
    for row in table.rows:
        label = shorten(row.marked, labels).ljust(labels)
        if row.said and is_first:
            lines += textwrap.wrap(
                f"{label}  {' '.join(row.said.split())}",
                width,
                subsequent_indent=" " * (labels + _GAP),
                break_on_hyphens=False,
            )
        elif not row.said:
            cells = [row.cells[at] for at in columns]
            shown = "".join(
                " " * _GAP + cut(cell.text, text).rjust(text) + (" " + cell.change).rjust(change)[:change]
                for cell, (text, change) in zip(cells, sizes, strict=True)
            )
            lines.append((label + shown).rstrip())
    return lines


def _widths(table: StudyTable, at: int, room: int) -> tuple[int, int]:
    """Return two widths of a column: its texts, and its changes with the space before them."""
    cells = [row.cells[at] for row in table.rows if row.cells]
    change = max((1 + len(cell.change) for cell in cells if cell.change), default=0)
    text = max([len(cell.text) for cell in cells] + [len(table.columns[at].title) - change])
    return min(text, room - change), change


def _label_width(table: StudyTable, width: int) -> int:
    return min(max(map(len, [table.head, *(row.marked for row in table.rows)])), width - _GAP - _LEAST_COLUMN)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False) or [""]


def _machine(environment: Environment) -> list[str]:
    return [f"{environment.device}: {environment.device_name}", f"torch {environment.torch}"]


def _sources(table: StudyTable) -> list[str]:
    return [f"{column.title}: {column.source}" for column in table.columns if column.source is not None]


# --- Markdown ----------------------------------------------------------------------------------------------------


def study_markdown(found: Sequence[Study]) -> list[str]:
    """Return studies as blocks of GitHub Markdown: title, tables, and findings as a list."""
    blocks: list[str] = []
    for study in found:
        blocks.append(f"#### {escape(' · '.join(study.title))}")
        for table in study.tables:
            if len(study.tables) > 1 and table.environment is not None:
                blocks.append(escape(" · ".join(_machine(table.environment))))
            if table.nothing:
                blocks.append(escape(table.nothing))
                continue
            blocks += ["\n".join(_rows_of_markdown(table)), *_bars(table)]
            blocks += [escape(one) for one in (*table.untold, *_sources(table))]
        if study.findings:
            blocks.append("\n".join(f"- {escape(' '.join(finding.split()))}" for finding in study.findings))
    return blocks


def _rows_of_markdown(table: StudyTable) -> Iterator[str]:
    yield f"| {' | '.join([code(table.head), *(escape(column.title) for column in table.columns)])} |"
    yield f"|---|{'--:|' * len(table.columns)}"
    for row in table.rows:
        if row.said:
            yield f"| {' | '.join([f'{code(row.marked)}: {escape(row.said)}', *([''] * len(table.columns))])} |"
        else:
            yield f"| {' | '.join([code(row.marked), *(escape(f'{c.text} {c.change}'.strip()) for c in row.cells)])} |"


def _bars(table: StudyTable) -> list[str]:
    """Return the first column that can be drawn, as bars of letters; empty if there is none."""
    for at, column in enumerate(table.columns):
        if column.unit in CHARTED and column.source is None:
            drawn = []
            for name, cell in ((row.marked, row.cells[at]) for row in table.rows if row.cells):
                value = cell.value
                if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
                    drawn.append((name, float(value), f"{cell.text} {cell.change}".strip()))
            return bars_block(f"{column.title}, {table.head}", drawn)
    return []


# --- data --------------------------------------------------------------------------------------------------------


def study_data(found: Sequence[Study]) -> list[dict[str, Any]]:
    """Return studies as dicts and lists: values in their columns' units, ratios to the base, the machine."""
    return [
        {
            "study": study.name,
            "versus": study.versus,
            "tables": [
                {
                    "environment": to_plain(table.environment) if table.environment is not None else None,
                    "columns": [{"name": _name(column), "unit": column.unit or None} for column in table.columns],
                    "rows": [_row_of_data(table, row) for row in table.rows],
                    **({"no_ratios": table.untold} if table.untold else {}),
                }
                for table in study.tables
            ],
            "findings": study.findings,
        }
        for study in found
    ]


def _row_of_data(table: StudyTable, row: StudyRow) -> dict[str, Any]:
    plain: dict[str, Any] = {"case": row.case, "label": row.label}
    if row.said:
        return {**plain, "said": row.said}
    pairs = [(_name(column), cell) for column, cell in zip(table.columns, row.cells, strict=True)]
    ratios = {name: _number(cell.ratio) for name, cell in pairs if cell.ratio is not None}
    plain["values"] = {name: _number(cell.value) for name, cell in pairs}
    plain |= (
        {"intervals": found} if (found := {n: list(c.interval) for n, c in pairs if c.interval is not None}) else {}
    )
    plain |= {"noise": row.noise} if row.noise is not None else {}
    plain |= {"disturbed": True} if row.disturbed else {}
    between = {name: [cell.turns.low, cell.turns.high] for name, cell in pairs if cell.turns is not None}
    plain |= {"versus_intervals": between} if between else {}
    return {**plain, "versus": ratios} if ratios else plain


def _number(value: Value) -> Value:
    """Return the value, or None for an infinity or NaN, which JSON lacks."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _name(column: Column) -> str:
    """Return a column's name, with the source of quoted times."""
    return column.name if column.source is None else f"{column.name}: {column.source}"
