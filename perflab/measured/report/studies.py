"""Studies: tables of the cases of one title. Data; ``study_forms.py`` writes them.

A row whose case names a base (``versus``) shows its times, rates and peak against the case that has the base's level of
that parameter and is the same otherwise: one test, all other parameters equal. Ratios of times are those of turns with
that case (``Result.beside``). Machines never share a table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from perflab.environment import slug
from perflab.measure.records import Ratio
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
from perflab.measured.report.judged import judged
from perflab.measured.report.matmul_rate import with_best_rates
from perflab.measured.report.table import is_disturbed, said_instead
from perflab.records import Environment
from perflab.report.lines import names_of, with_mark
from perflab.report.view import STANDARD
from perflab.results import Result, by_study, parameters_of

_MORE = "…"


@dataclass(frozen=True)
class Cell:
    """A value, as text and as it is in the column's unit; its change against the base's, where it is compared."""

    text: str
    value: Value = None
    change: str = ""
    ratio: float | None = None
    turns: Ratio | None = None
    """The same with its interval, where it is no exact one."""
    interval: tuple[float, float] | None = None
    """95 %, of a median."""


@dataclass(frozen=True)
class StudyRow:
    """One case: a cell for each column, or what is ``said`` in their place."""

    case: str
    label: str
    cells: list[Cell] = field(default_factory=list)
    said: str = ""
    disturbed: bool = False
    noise: float | None = None
    """Half the width of the median's interval within the process, as a share; None of a single sample."""

    @property
    def marked(self) -> str:
        """The label as tables have it."""
        return with_mark(self.label, disturbed=self.disturbed)


@dataclass(frozen=True)
class StudyTable:
    """The study's cases on one machine. ``head`` stands over the labels, and holds what these have in common."""

    environment: Environment | None
    """None where nothing was measured."""
    head: str
    columns: list[Column]
    rows: list[StudyRow]
    untold: list[str] = field(default_factory=list)
    """Why rows have no ratio of times to their base."""

    @property
    def nothing(self) -> str:
        """What stands in the table's place where no case has numbers; why not, the table of all cases says."""
        if any(row.cells for row in self.rows):
            return ""
        many = len(self.rows)
        return f"nothing was measured: {many} case{'s' * (many != 1)}, above"


@dataclass(frozen=True)
class Study:
    """A study of a run."""

    name: str
    versus: list[str]
    """What its rows are held against, ``parameter=level``."""
    missing: list[str]
    """Those of which no case has numbers."""
    tables: list[StudyTable]
    findings: list[str]

    @property
    def title(self) -> list[str]:
        """Facts of its head line."""
        against = (f"against {one}{', which has no numbers' * (one in self.missing)}" for one in self.versus)
        return [f"study: {self.name}", *against]


def studies(results: Sequence[Result], findings: Mapping[str, list[str]] | None = None) -> list[Study]:
    """The studies that the cases belong to, in the order of their first cases. What was predicted is in none."""
    found = []
    for name, cases in by_study(with_best_rates(results)).items():
        versus = dict.fromkeys(one.versus for one in cases if one.versus is not None)
        measured = {key[1] for key, base in _bases(cases).items() if base.record and base.record.summary}
        missing = [one for one in versus if one not in measured]
        tables = [_table(group) for group in _by_machine(cases)]
        found.append(Study(name, list(versus), missing, tables, list((findings or {}).get(name, []))))
    return found


def rows_with_bases(results: Sequence[Result]) -> Iterator[tuple[Result, Result]]:
    """Rows whose times studies hold against a base, each with it."""
    for cases in by_study(results).values():
        for group in _by_machine(cases):
            if any(column.is_timed for column in _columns(group)):
                bases = _bases(group)
                yield from ((one, base) for one in group if (base := _base_of(one, bases)) is not None)


def without_quotes(study: Study) -> Study:
    """The study without the columns of what others measured."""
    tables = []
    for table in study.tables:
        kept = [at for at, column in enumerate(table.columns) if column.source is None]
        rows = [replace(row, cells=[row.cells[at] for at in kept if row.cells]) for row in table.rows]
        tables.append(replace(table, columns=[table.columns[at] for at in kept], rows=rows))
    return replace(study, tables=tables)


def _by_machine(results: Sequence[Result]) -> list[list[Result]]:
    """Cases that were measured on one machine, and with each of these those that were not measured at all."""
    machines = list(dict.fromkeys(slug(one.record.environment) for one in results if one.record is not None))
    if len(machines) < 2:
        return [list(results)]
    return [
        [one for one in results if one.record is None or slug(one.record.environment) == machine]
        for machine in machines
    ]


def _table(results: list[Result]) -> StudyTable:
    environment = next((one.record.environment for one in results if one.record is not None), None)
    columns = _told_apart([column for column in _columns(results) if any(map(column.has, results))])
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
    """Those that the cases name, or all that there is to show."""
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


def _told_apart(columns: Sequence[Column]) -> list[Column]:
    """Facts that would be called like another column without their unit keep it."""
    often = Counter(column.title for column in columns)
    return [
        replace(column, title=column.name) if often[column.title] > 1 and column.name not in STANDARD else column
        for column in columns
    ]


# --- against a base ----------------------------------------------------------------------------------------------

_Key = tuple[str, str, tuple[tuple[str, object], ...]]


def _bases(results: Sequence[Result]) -> dict[_Key, Result]:
    """The cases that others may be held against, by what they have in common with these and their own level."""
    wanted = {result.versus for result in results if result.versus is not None}
    bases: dict[_Key, Result] = {}
    for result in results:
        for name, level in parameters_of(result).items():
            if f"{name}={level}" in wanted:
                bases[_key(result, f"{name}={level}")] = result
    return bases


def _key(result: Result, versus: str) -> _Key:
    """The test, its base, and all other parameters."""
    parameter = versus.partition("=")[0]
    others = tuple((name, value) for name, value in parameters_of(result).items() if name != parameter)
    return result.case.partition("[")[0], versus, others


def _base_of(result: Result, bases: Mapping[_Key, Result]) -> Result | None:
    """The other case that a measured one is held against, if that was measured too."""
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
    """The head of the labels, and the labels: names of the cases without what all of them share, modes behind them."""
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
