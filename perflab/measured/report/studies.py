"""Studies: tables of the cases of one title, as data; ``study_forms.py`` formats them.

A row whose case names a base (``versus``) compares its times, rates and peak with the case that has the base's level of
that parameter in the same test, all other parameters being equal. Ratios of times come from interleaved runs with that
case (``Result.beside``). Machines never share a table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from perflab.base.identity import test_of
from perflab.measured.report.columns import (
    Column,
    Value,
    generation_in,
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
from perflab.tables.lines import names_of, with_mark
from perflab.tables.view import STANDARD

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
