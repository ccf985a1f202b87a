"""A report of runs as one page: verdicts first, what failed, the table, every case, what could have disturbed it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import perflab
from perflab.page.case_view import (
    CALIBRATION,
    CaseView,
    case_view,
    change_text,
    evidence_of,
    interval_text,
    title_of,
    verdict_of,
)
from perflab.page.render import render
from perflab.page.sets import SetView, sets_of
from perflab.page.table import TONES, Cell, Column, PageTable, Row, number_cell, order, text_cell
from perflab.records import Environment, Verdict
from perflab.report.beside_text import cases_of, name_in, run_facts
from perflab.report.contents import Case, Compared, Contents, RunContents
from perflab.report.tally import ACCEPTED
from perflab.units import format_change, format_names

MOST_FINDINGS = 60
"""Cases whose evidence stands above the table; each has it in its section too."""
MOST_UNDECIDED = 12
_SEEN = ("latency", "peak", "bound", "flops", "registers", "spill_store_bytes", "shared_bytes", "warps_per_sm")
"""Quantities whose columns are shown at first."""
_MOST_COLUMNS = 48


@dataclass(frozen=True)
class RunView:
    """What the template shows of a run."""

    number: int
    run: RunContents
    facts: Sequence[str]
    tally: Sequence[tuple[str, int, str]]
    findings: Sequence[CaseView]
    more_findings: int
    undecided: Sequence[CaseView]
    more_undecided: int
    table: PageTable
    sets: Sequence[SetView]
    cases: Sequence[CaseView]
    environments: PageTable | None
    disturbances: Sequence[str]
    calibration: PageTable | None


def report_page(contents: Contents) -> str:
    """The page of one run, or of several beside each other."""
    several = len(contents.runs) > 1
    runs = [_run_view(run, number, several) for number, run in enumerate(contents.runs, 1)]
    names = format_names([run.label for run in contents.runs], most=3)
    return render(
        "report.html",
        title=f"perflab: {names}",
        runs=runs,
        several=several,
        compared=_compared_table(contents) if several else None,
        version=perflab.__version__,
    )


def _identity(number: int, at: int, several: bool) -> str:
    return f"run-{number}-case-{at + 1}" if several else f"case-{at + 1}"


def _run_view(run: RunContents, number: int, several: bool) -> RunView:
    cases = [case_view(case, _identity(number, at, several)) for at, case in enumerate(run.cases)]
    failed = [one for one in cases if one.tone == "bad" or (one.case.failure and one.verdict != ACCEPTED)]
    failed.sort(key=lambda one: _rank(one.verdict))
    undecided = [one for one in cases if one.verdict == Verdict.INCONCLUSIVE and one not in failed]
    order = [*Verdict, ACCEPTED]
    tally = sorted(run.verdicts.items(), key=lambda pair: _rank(pair[0], order))
    return RunView(
        number=number,
        run=run,
        facts=[fact for fact in run_facts(run) if fact != " · ".join(f"{n} {v}" for v, n in run.verdicts.items())],
        tally=[(verdict, many, TONES.get(verdict, "")) for verdict, many in tally],
        findings=failed[:MOST_FINDINGS],
        more_findings=max(0, len(failed) - MOST_FINDINGS),
        undecided=undecided[:MOST_UNDECIDED],
        more_undecided=max(0, len(undecided) - MOST_UNDECIDED),
        table=_table(run, cases),
        sets=sets_of(run, {(one.case.case, one.case.variant): one.id for one in cases}),
        cases=cases,
        environments=_environments(run.environments) if run.environments else None,
        disturbances=_disturbances(run),
        calibration=_calibration(run),
    )


def _rank(verdict: str, order: Sequence[str] = ()) -> int:
    first = (Verdict.REGRESSED, Verdict.FAILED, Verdict.OOM, Verdict.INCONCLUSIVE)
    if verdict in first:
        return first.index(Verdict(verdict))
    return len(first) + (list(order).index(verdict) if verdict in order else 0)


# --- the table ---------------------------------------------------------------------------------------------------


def _table(run: RunContents, views: Sequence[CaseView]) -> PageTable:
    names = list(dict.fromkeys(name for case in run.cases for name in case.quantities))
    names = sorted(names, key=lambda name: _SEEN.index(name) if name in _SEEN else len(_SEEN))[:_MOST_COLUMNS]
    tiers = list(dict.fromkeys(case.tier for case in run.cases if case.tier))
    latencies = [case.quantities[name] for case in run.cases for name in ("latency",) if name in case.quantities]
    compared = any(one.ratio is not None for one in latencies)
    columns = [Column("case", "case"), Column("verdict", "verdict")]
    for name in names:
        columns.append(Column(title_of(name), name.replace(" ", "_"), number=True, hidden=name not in _SEEN))
        if name == "latency":
            columns.append(Column("change", "change", number=True, hidden=not compared))
            columns.append(Column("95 % interval", "interval", number=True, hidden=not compared))
            columns.append(Column("noise", "noise", number=True, hidden=compared))
    columns += [Column("file", "file", hidden=True), Column("parameters", "parameters", hidden=True)]
    columns += [*([Column("tier", "tier")] if len(tiers) > 1 else []), Column("why", "why", hidden=True)]
    rows = [Row(_cells(one, names, tiers=len(tiers) > 1), verdict=one.verdict) for one in views]
    counts = dict.fromkeys((one.verdict for one in views), 0)
    for one in views:
        counts[one.verdict] += 1
    verdicts = [(name, counts[name], TONES.get(name, "")) for name in sorted(counts, key=_rank)]
    return PageTable(columns, rows, verdicts if len(verdicts) > 1 else [])


def _cells(view: CaseView, names: Sequence[str], *, tiers: bool) -> list[Cell]:
    case = view.case
    cells = [
        text_cell(case.name, href=f"#{view.id}", more=case.variant if case.variant not in case.name else ""),
        text_cell(view.verdict, tone=view.tone),
    ]
    for name in names:
        one = case.quantities.get(name)
        change = change_text(one) if one is not None and name != "latency" else ""
        tone = "bad" if one is not None and one.worse else ""
        more = change if change != "same" else ""
        cells.append(number_cell(one.now, one.unit, more, tone) if one is not None else Cell(number=True))
        if name == "latency":
            cells += _latency_cells(case, tone)
    file = case.case.partition("[")[0].partition("::")[0]
    parameters = ", ".join(f"{name}={value}" for name, value in case.parameters.items())
    tier = [text_cell(case.tier or "")] if tiers else []
    return [
        *cells,
        text_cell(file),
        text_cell(parameters),
        *tier,
        text_cell("; ".join(case.reasons)),
    ]


def _latency_cells(case: Case, tone: str) -> list[Cell]:
    one, times = case.quantities.get("latency"), case.times
    noise = times.noise if times is not None and times.samples > 1 else None
    noise_cell = number_cell(noise, "share")
    if one is None or one.ratio is None:
        return [Cell(number=True), Cell(number=True), noise_cell]
    change = Cell("" if tone else format_change(one.ratio), order(one.ratio), number=True)
    if tone:
        change = Cell("", order(one.ratio), number=True, more=format_change(one.ratio), tone=tone)
    return [change, Cell(interval_text(one), order(one.low) if one.low is not None else None, number=True), noise_cell]


def _compared_table(contents: Contents) -> PageTable:
    """Each case in each run. A run that cannot be compared says why in the place of a ratio."""
    columns = [Column("case", "case")]
    for number in range(1, len(contents.runs) + 1):
        columns += [
            Column(f"verdict {number}", f"verdict{number}", hidden=len(contents.runs) > 3),
            Column(f"time {number}", f"time{number}", number=True),
            *([Column("against 1", f"ratio{number}", number=True)] if number > 1 else []),
            Column(f"peak {number}", f"peak{number}", number=True),
        ]
    rows = [Row(_compared_cells(contents, one)) for one in contents.compared]
    return PageTable(columns, rows)


def _compared_cells(contents: Contents, compared: Compared) -> list[Cell]:
    cells = [text_cell(name_in(contents, compared), more=compared.variant)]
    for number, case in enumerate(cases_of(contents, compared), 1):
        at = compared.cases[number - 1]
        if case is None or at is None:
            cells += [Cell()] + [Cell(number=True)] * (3 if number > 1 else 2)
            continue
        verdict = verdict_of(case)
        cells.append(text_cell(verdict, href=f"#{_identity(number, at, True)}", tone=TONES.get(verdict, "")))
        latency, peak = case.quantities.get("latency"), case.quantities.get("peak")
        cells.append(number_cell(latency.now, latency.unit) if latency is not None else Cell(number=True))
        if number > 1:
            cells.append(_ratio_cell(compared, number - 1))
        change = compared.ratios.get("peak", [None] * number)[number - 1]
        more = format_change(change) if change is not None and change != 1.0 else ""
        cells.append(number_cell(peak.now, peak.unit, more) if peak is not None else Cell(number=True))
    return cells


def _ratio_cell(compared: Compared, at: int) -> Cell:
    ratio, why = compared.ratios.get("latency", [None] * (at + 1))[at], compared.elsewhere[at]
    if ratio is not None:
        return Cell(format_change(ratio), order(ratio), number=True)
    return Cell("", number=True, more=why) if why is not None else Cell(number=True)


# --- environment -------------------------------------------------------------------------------------------------


def _environments(given: Sequence[Environment]) -> PageTable:
    plain = [{name: getattr(one, name) for name in one.__struct_fields__} for one in given]
    names = [name for name in plain[0] if any(one[name] is not None for one in plain)]
    columns = [
        Column("what"),
        *(Column(f"environment {at}" if len(given) > 1 else "value") for at in range(1, len(given) + 1)),
    ]
    rows = [
        Row(
            [
                text_cell(name.replace("_", " ")),
                *(text_cell("–" if one[name] is None else str(one[name])) for one in plain),
            ]
        )
        for name in names
    ]
    return PageTable(columns, rows)


def _disturbances(run: RunContents) -> list[str]:
    """What went on beside cases, each sentence once with the cases that it is of."""
    found: dict[str, list[str]] = {}
    for case in run.cases:
        for text in evidence_of(case):
            if not text.startswith(("the machine ", "nothing disturbed", CALIBRATION)):
                found.setdefault(text, []).append(case.name)
    return [f"{text}: {format_names(names)}" for text, names in found.items()]


def _calibration(run: RunContents) -> PageTable | None:
    """How the calibration workloads, whose code never changes, read over the run; and the machine's counters."""
    read: dict[tuple[str, str], list[float]] = {}
    for case in run.cases:
        for name, one in case.quantities.items():
            if name.startswith(CALIBRATION):
                read.setdefault((name, one.unit), []).append(one.now)
        evidence = case.evidence
        if evidence is not None:
            figures = {
                ("cores that other processes used", "cores"): evidence.neighbours_cores,
                ("time stolen by the hypervisor", "share"): evidence.steal_share,
                ("time waiting for a core", "share"): evidence.pressure_share,
                ("load average", "load"): evidence.load_average,
            }
            for key, value in figures.items():
                if value is not None:
                    read.setdefault(key, []).append(value)
    if not read:
        return None
    columns = [Column("over all cases"), *(Column(one, number=True) for one in ("least", "median", "most"))]
    rows = [
        Row([text_cell(name), *(number_cell(value, unit) for value in (min(values), median(values), max(values)))])
        for (name, unit), values in read.items()
    ]
    return PageTable(columns, rows)
