"""Studies: tables of the cases of one title, as data, and formatted as text, as Markdown and as plain data for JSON.

A row whose case names a base (``versus``) compares its times, rates and peak with the case that has the base's level of
that parameter in the same test, all other parameters being equal. Ratios of times come from interleaved runs with that
case (``Result.beside``). Machines never share a table.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perflab.base.data import to_plain
from perflab.base.identity import test_of
from perflab.measured.report.columns import (
    Column,
    Value,
    generation_in,
    in_blocks,
    interval_ns,
    named,
    own_phases,
    phase_in,
    phases_of,
    quoted,
    told,
    without_ratio,
)
from perflab.measured.report.judged import judged, with_best_rates
from perflab.measured.report.table import is_disturbed, said_instead
from perflab.results.environment import slug
from perflab.results.measurement import Ratio
from perflab.results.records import Environment
from perflab.results.result import Result, by_study, parameters_of
from perflab.tables.escaping import bars_block, code, escape
from perflab.tables.lines import Line, cut, names_of, shorten, with_mark, wrap_facts
from perflab.tables.view import CHARTED, STANDARD

_MORE = "…"


@dataclass(frozen=True)
class Cell:
    """A value as text and as a number in the column's unit, with its change from the base's value if compared."""

    text: str
    value: Value = None
    change: str = ""
    ratio: float | None = None
    turns: Ratio | None = None
    """The ratio with its interval, if it comes from an interleaved run; None for an exact ratio."""
    interval: tuple[float, float] | None = None
    """The 95 % interval of a median, in nanoseconds; None for other columns."""


@dataclass(frozen=True)
class StudyRow:
    """One case: a cell for each column, or the text ``said`` in place of the cells."""

    case: str
    label: str
    cells: list[Cell] = field(default_factory=list)
    said: str = ""
    disturbed: bool = False
    noise: float | None = None
    """Half the width of the median's interval within the process, as a share; None for a single sample."""

    @property
    def marked(self) -> str:
        """The label with the mark of a disturbed case, for tables."""
        return with_mark(self.label, disturbed=self.disturbed)


@dataclass(frozen=True)
class StudyTable:
    """The study's cases on one machine. ``head`` is the title of the labels: the part that all case names share."""

    environment: Environment | None
    """The environment of the measurements; None if nothing was measured."""
    head: str
    columns: list[Column]
    rows: list[StudyRow]
    untold: list[str] = field(default_factory=list)
    """Lines on why rows have no ratio of times to their base."""

    @property
    def nothing(self) -> str:
        """The text in place of a table without numbers, else empty. The table of all cases has the reasons."""
        if any(row.cells for row in self.rows):
            return ""
        many = len(self.rows)
        return f"nothing was measured: {many} case{'s' * (many != 1)}, above"


@dataclass(frozen=True)
class Study:
    """One study of a run: its tables and findings."""

    name: str
    versus: list[str]
    """The bases of the rows, each ``parameter=level``."""
    missing: list[str]
    """The items of ``versus`` for which no case has numbers."""
    tables: list[StudyTable]
    findings: list[str]

    @property
    def title(self) -> list[str]:
        """Facts of the study's head line."""
        against = (f"against {one}{', which has no numbers' * (one in self.missing)}" for one in self.versus)
        return [f"study: {self.name}", *against]


def studies(results: Sequence[Result], findings: Mapping[str, list[str]] | None = None) -> list[Study]:
    """Return the studies of the cases, in the order of their first cases. Predicted cases are left out."""
    found = []
    for name, cases in by_study(with_best_rates(results)).items():
        versus = dict.fromkeys(one.versus for one in cases if one.versus is not None)
        measured = {key[1] for key, base in _bases(cases).items() if base.record and base.record.summary}
        missing = [one for one in versus if one not in measured]
        tables = [_table(group) for group in _by_machine(cases)]
        found.append(Study(name, list(versus), missing, tables, list((findings or {}).get(name, []))))
    return found


def rows_with_bases(results: Sequence[Result]) -> Iterator[tuple[Result, Result]]:
    """Yield (case, base) for the rows whose times a study compares with a base."""
    for cases in by_study(results).values():
        for group in _by_machine(cases):
            if any(column.is_timed for column in _columns(group)):
                bases = _bases(group)
                yield from ((one, base) for one in group if (base := _base_of(one, bases)) is not None)


def without_quotes(study: Study) -> Study:
    """Return the study without the columns of quoted times."""
    tables = []
    for table in study.tables:
        kept = [at for at, column in enumerate(table.columns) if column.source is None]
        rows = [replace(row, cells=[row.cells[at] for at in kept if row.cells]) for row in table.rows]
        tables.append(replace(table, columns=[table.columns[at] for at in kept], rows=rows))
    return replace(study, tables=tables)


def _by_machine(results: Sequence[Result]) -> list[list[Result]]:
    """Return the cases grouped by machine; each group also has all cases that were not measured."""
    machines = list(dict.fromkeys(slug(one.record.environment) for one in results if one.record is not None))
    if len(machines) < 2:
        return [list(results)]
    return [
        [one for one in results if one.record is None or slug(one.record.environment) == machine]
        for machine in machines
    ]


def _table(results: list[Result]) -> StudyTable:
    environment = next((one.record.environment for one in results if one.record is not None), None)
    # A fact whose title equals another column's keeps its unit in the title.
    columns = [column for column in _columns(results) if any(map(column.has, results))]
    often = Counter(column.title for column in columns)
    columns = [
        replace(column, title=column.name) if often[column.title] > 1 and column.name not in STANDARD else column
        for column in columns
    ]
    bases = _bases(results)
    head, labels = _labels(results)
    rows = []
    held: list[tuple[str, Result, Result]] = []
    for label, result in zip(labels, results, strict=True):
        if result.record is None or result.record.summary is None:
            rows.append(StudyRow(result.case, label, said=said_instead(result)))
            continue
        base = _base_of(result, bases)
        held += [(label, result, base)] if base is not None else []
        cells = [_cell(column, result, base) for column in columns]
        reading = judged(result)
        noise = reading.noise if reading is not None and reading.samples > 1 else None
        rows.append(StudyRow(result.case, label, cells, disturbed=is_disturbed(result), noise=noise))
    untold = without_ratio(held) if any(column.is_timed for column in columns) else []
    return StudyTable(environment, head, columns, rows, untold)


def _columns(results: Sequence[Result]) -> list[Column]:
    """Return the columns that the cases name; if they name none, all that there is to show."""
    wanted = dict.fromkeys(name for result in results for name in result.columns)
    records = [result.record for result in results if result.record is not None]
    if not wanted:
        units = [unit for record in records for unit in record.work if not phase_in(unit, own_phases(record))]
        facts = [name for record in records for name in record.facts]
        of_tokens = ["ttft", "tpot", "tokens/s"] if any(generation_in(one.measurement) for one in records) else []
        wanted = dict.fromkeys(["median", "peak", *of_tokens, *(f"{unit}/s" for unit in units), *facts, "quoted"])
    sources = list(dict.fromkeys(quote.source for record in records for quote in record.quotes))
    phases = phases_of(results)
    return [column for name in wanted for column in (quoted(sources) if name == "quoted" else [named(name, phases)])]


# --- against a base ----------------------------------------------------------------------------------------------

_Key = tuple[str, str, tuple[tuple[str, object], ...]]


def _bases(results: Sequence[Result]) -> dict[_Key, Result]:
    """Return the cases that may be a base: (test, ``parameter=level``, other parameters) -> case."""
    wanted = {result.versus for result in results if result.versus is not None}
    bases: dict[_Key, Result] = {}
    for result in results:
        for name, level in parameters_of(result).items():
            if f"{name}={level}" in wanted:
                bases[_key(result, f"{name}={level}")] = result
    return bases


def _key(result: Result, versus: str) -> _Key:
    """Return the test, its base ``versus``, and all other parameters."""
    parameter = versus.partition("=")[0]
    others = tuple((name, value) for name, value in parameters_of(result).items() if name != parameter)
    return test_of(result.case), versus, others


def _base_of(result: Result, bases: Mapping[_Key, Result]) -> Result | None:
    """Return the base of a measured case; None if it has none, is its own base, or the base was not measured."""
    base = bases.get(_key(result, result.versus)) if result.versus is not None else None
    measured = all(one is not None and one.record is not None and one.record.summary for one in (result, base))
    return base if base is not result and measured else None


def _cell(column: Column, result: Result, base: Result | None) -> Cell:
    value = column.value(result)
    cell = Cell(column.text(value), value, interval=interval_ns(result) if column.name == "median" else None)
    if base is None or value is None:
        return cell
    turns = column.in_turns(result, base)
    if turns is not None:
        return replace(cell, change=told(turns), ratio=turns.value, turns=turns)
    change = column.change(value, column.value(base))
    return cell if change is None else replace(cell, ratio=change[0], change=change[1])


# --- labels ------------------------------------------------------------------------------------------------------


def _labels(results: Sequence[Result]) -> tuple[str, list[str]]:
    """Return the head of the labels, and the labels.

    A label is a case's name without the parts that all names share, with the mode appended unless all modes are equal.
    """
    modes = [result.mode.suffix for result in results]
    names = [name.removesuffix(mode) for name, mode in zip(names_of(results), modes, strict=True)]
    head, labels = _without_what_is_shared(names)
    if len(set(modes)) == 1:
        return f"{head}{modes[0]}", labels
    return head, [f"{label}{mode}" for label, mode in zip(labels, modes, strict=True)]


def _without_what_is_shared(names: list[str]) -> tuple[str, list[str]]:
    parts = [name.partition("[") for name in names]
    function = parts[0][0]
    if len(names) < 2 or any(one != function or not bracket for one, bracket, _ in parts):
        return "case", names
    identifiers = [rest.removesuffix("]") for _, _, rest in parts]
    pieces = [identifier.split("-") for identifier in identifiers]
    if len({len(own) for own in pieces}) > 1:
        return f"{function}[{_MORE}]", identifiers
    shared = [len(set(at)) == 1 for at in zip(*pieces, strict=True)]
    head: list[str] = []
    for piece, same in zip(pieces[0], shared, strict=True):
        if same or head[-1:] != [_MORE]:
            head.append(piece if same else _MORE)
    labels = ["-".join(piece for piece, same in zip(own, shared, strict=True) if not same) for own in pieces]
    return f"{function}[{'-'.join(head)}]", labels


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
