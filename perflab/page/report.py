"""Renders a report of runs as one page: verdicts, failures, the table, every case, and possible disturbances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import perflab
from perflab.base.git import commit_page
from perflab.base.identity import file_of
from perflab.page.pictures import Picture, differences, pictures_of, sets_of
from perflab.page.render import render
from perflab.page.table import (
    LONGEST_VALUE,
    TONES,
    Cell,
    Choice,
    Column,
    Filter,
    PageTable,
    Row,
    change_cell,
    change_text,
    interval_text,
    number_cell,
    order,
    page_table,
    quantity_table,
    short,
    title_of,
)
from perflab.results.measurement import Evidence
from perflab.results.records import Environment, Verdict
from perflab.tables.beside_text import amount, cases_of, name_in, run_facts
from perflab.tables.contents import CALIBRATION, Case, Compared, Contents, RunContents, Table
from perflab.tables.failing import kernel_code_text
from perflab.tables.lines import ACCEPTED, LOOK_FIRST, MARKED, said_of, with_mark
from perflab.units import format_change, format_count, format_names, format_ns, format_percent

LONGEST_FAILURE = 200
"""The most lines of a failing test's output that are shown."""


@dataclass(frozen=True)
class CaseView:
    """The data of a case for the template."""

    id: str
    case: Case
    verdict: str
    tone: str
    is_open: bool
    brief: str
    """The most important numbers, for the line that is visible while the section is closed."""
    pictures: Sequence[Picture]
    quantities: PageTable | None
    worse: PageTable | None
    """The quantities on which the verdict rests; None if no quantity got worse."""
    tables: Sequence[tuple[Table, PageTable]]
    lists: Sequence[tuple[str, Sequence[str]]] = field(default_factory=list)
    """Lists of sentences with titles: reasons, evidence, quantities that were not compared."""

    @property
    def evidence(self) -> Sequence[Picture]:
        """The picture behind a time that got worse: the pairs if there are any, else the readings.

        Empty: no time got worse.
        """
        judged = [one for name, one in self.case.quantities.items() if one.worse and one.unit == "ns"]
        return self.pictures[: 1 + bool(self.case.paired)][-1:] if judged else []

    @property
    def failure(self) -> str:
        """The failure's text; of a long text only the end, which has the error."""
        lines = (self.case.failure or "").splitlines()
        if len(lines) <= LONGEST_FAILURE:
            return "\n".join(lines)
        left_out = len(lines) - LONGEST_FAILURE
        return "\n".join([f"... ({format_count(left_out, 'line')} before, in the results file)", *lines[left_out:]])


def case_view(case: Case, identity: str, *, is_open: bool = True) -> CaseView:
    """Return the section of one case; ``is_open``: whether the section is open if the verdict is bad."""
    verdict = said_of(case.verdict, saved=case.saved)
    tone = TONES.get(verdict, "")
    shown = {name: one for name, one in case.quantities.items() if not name.startswith(CALIBRATION)}
    worse = {name: one for name, one in case.quantities.items() if one.worse}
    return CaseView(
        id=identity,
        case=case,
        verdict=verdict,
        tone=tone,
        is_open=is_open and tone == "bad",
        brief=_brief(case),
        pictures=pictures_of(case),
        quantities=quantity_table(shown) if shown else None,
        worse=quantity_table(worse) if worse else None,
        tables=[(table, page_table(table)) for table in case.tables],
        lists=[(title, lines) for title, lines in sentences_of(case).items() if lines],
    )


def _brief(case: Case) -> str:
    shown = []
    for name in ("latency", "bound", "peak", "registers"):
        one = case.quantities.get(name)
        if one is not None:
            least = "at least " if name == "bound" else ""
            unit = " registers" if name == "registers" else ""
            change = f" {format_change(one.ratio)}" if one.ratio is not None and one.ratio != 1.0 else ""
            shown.append(f"{least}{amount(one.now, one.unit)}{unit}{change}")
    return " · ".join(shown)


def sentences_of(case: Case) -> dict[str, list[str]]:
    """Return the sentences about a case by title; lists may be empty."""
    worse = [one for one in case.quantities.values() if one.worse]
    # Exact numbers need no reasons: if only exact numbers are worse, the case's reasons are about its times.
    told = "Besides" if case.times is not None and worse and all(one.exact for one in worse) else "Why"
    return {
        "Cause": list(dict.fromkeys(case.cause)),
        told: case.reasons,
        "Evidence": _looked_at(case),
        "In short": case.facts,
        "Drift": [
            f"{name} is compared with its anchor of {one.recorded}, {one.steps} accepted steps ago"
            for name, one in case.drift.items()
            if one.decides
        ],
        "Not compared": [
            *([f"time: {case.no_times}"] if case.no_times else []),
            *(f"{one.quantity}: {one.reason}" for one in case.not_compared),
        ],
        "Noted by the test": [
            f"{short(name)} = {short(str(value), LONGEST_VALUE)}" for name, value in case.noted.items()
        ],
        "Quoted from elsewhere": [f"{one.source}: {format_ns(one.ns)}" for one in case.quotes],
        "Other memory": [f"{name}: {amount(size, 'bytes')}" for name, size in case.memory_beside.items()],
        "Possible interference": evidence_of(case),
    }


def _looked_at(case: Case) -> list[str]:
    """Return the sentences on how the case was re-measured; empty if it was not."""
    times, told = case.times, []
    if times is not None and times.fresh_ns:
        told.append(f"measured again {format_count(len(times.fresh_ns), 'time')} in fresh processes")
    if times is not None and times.set_aside_ns:
        many = len(times.set_aside_ns)
        told.append(f"{many} disturbed {'ones were' if many > 1 else 'one was'} set aside")
    for paired in (case.paired, case.paired_to_anchor):
        if paired is not None:
            pairs = [*paired.screen, *paired.confirm]
            told.append(f"{format_count(len(pairs), 'interleaved pair')} of fresh processes, A/B with {paired.against}")
            told += [paired.calls] if paired.calls else []
            told += [kernel_code_text(paired.kernels)] if paired.kernels is not None else []
    if told and case.disturbed == []:
        told.append("nothing disturbed the processes that were judged")
    return told


def disturbances_of(case: Case) -> list[str]:
    """Return a sentence for each known disturbance of the case's measurement."""
    told = list(case.disturbed or [])
    told += case.beside if case.beside_alone is None else case.beside_alone
    times = case.times
    if times is not None and times.settled is False:
        told.append(f"its readings had not settled after {times.warmup_calls} warm-up calls")
    told += [f"work ran on in {name} after the call had returned" for name in (times.ran_on if times else [])]
    return told + ([f"no profile: {case.not_profiled}"] if case.not_profiled else [])


def evidence_of(case: Case) -> list[str]:
    """Return sentences on the case's surroundings: disturbances, the calibration workload, the machine's counters."""
    told = disturbances_of(case)
    read = {name: one for name, one in case.quantities.items() if name.startswith(CALIBRATION)}
    if read:
        figures = [f"{name.removeprefix(CALIBRATION)} {amount(one.now, one.unit)}" for name, one in read.items()]
        told.append(f"calibration workload: {', '.join(figures)}")
    return told + ([facts] if case.evidence is not None and (facts := _figures(case.evidence)) else [])


def _figures(evidence: Evidence) -> str:
    """Format the machine's counters over the samples as one sentence."""
    told = [f"over {format_ns(evidence.span_ns)}"]
    if evidence.neighbours_cores is not None:
        told.append(f"other processes {evidence.neighbours_cores:.2f} cores")
    if evidence.steal_share is not None:
        told.append(f"stolen {format_percent(evidence.steal_share)}")
    if evidence.pressure_share is not None:
        told.append(f"waiting for a core {format_percent(evidence.pressure_share)}")
    if evidence.involuntary_switches is not None:
        told.append(format_count(evidence.involuntary_switches, "involuntary switch"))
    if evidence.load_average is not None:
        told.append(f"load {evidence.load_average:.1f}")
    clocks = [one for one in (evidence.cpu_mhz_before, evidence.cpu_mhz_after) if one is not None]
    told += [f"CPU {' to '.join(f'{one:,.0f}' for one in dict.fromkeys(clocks))} MHz"] if clocks else []
    for when, state in (("before", evidence.gpu_before), ("after", evidence.gpu_after)):
        if state is not None:
            figures = [
                *([f"{state.sm_clock_mhz:,} MHz"] if state.sm_clock_mhz is not None else []),
                *([f"{state.temperature_c} °C"] if state.temperature_c is not None else []),
                *([f"{state.power_w:.0f} W"] if state.power_w is not None else []),
                *([format_count(state.neighbours, "other process")] if state.neighbours else []),
                *state.throttle,
            ]
            told += [f"GPU {when}: {', '.join(figures)}"] if figures else []
    return "the machine " + ", ".join(told)


_SEEN = ("latency", "peak", "bound", "flops", "registers", "spill_store_bytes", "shared_bytes", "warps_per_sm")
"""The quantities whose columns are visible at first."""
_MOST_COLUMNS = 48
"""The most columns of quantities; with the other columns, no more than a page can hide."""


def identity(number: int, at: int, several: bool) -> str:
    """Return the id of a case's section on the page."""
    return f"run-{number}-case-{at + 1}" if several else f"case-{at + 1}"


def rank(verdict: str, others: Sequence[str] = ()) -> int:
    """Return a verdict's place in the order: verdicts that need a look come first; ``others`` orders the rest."""
    ranked = [*LOOK_FIRST, *(one for one in others if one not in LOOK_FIRST)]
    return ranked.index(verdict) if verdict in ranked else len(LOOK_FIRST)


def run_table(run: RunContents, views: Sequence[CaseView]) -> PageTable:
    """Return the table of a run, with a row for each case; rarely needed columns are hidden at first."""
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
    counts = Counter(one.verdict for one in views)
    choices = [Choice(name, counts[name], TONES.get(name, "")) for name in sorted(counts, key=rank)]
    return PageTable(columns, rows, [Filter("Verdict", choices)] if len(choices) > 1 else [])


def _cells(view: CaseView, names: Sequence[str], *, tiers: bool) -> list[Cell]:
    case = view.case
    variant = case.variant if case.variant not in case.name else ""
    behind = with_mark(variant, disturbed=bool(case.beside)).strip()
    cells = [Cell(short(case.name), href=f"#{view.id}", more=behind), Cell(view.verdict, tone=view.tone)]
    for name in names:
        one = case.quantities.get(name)
        change = change_text(one) if one is not None and name != "latency" else ""
        tone = "bad" if one is not None and one.worse else ""
        more = change if change != "same" else ""
        cells.append(number_cell(one.now, one.unit, more, tone) if one is not None else Cell(number=True))
        if name == "latency":
            noise = case.times.noise if case.times is not None and case.times.samples > 1 else None
            if one is None or one.ratio is None:
                cells += [Cell(number=True), Cell(number=True)]
            else:
                low = order(one.low) if one.low is not None else None
                cells += [
                    change_cell(format_change(one.ratio), tone, one.ratio),
                    Cell(interval_text(one), low, number=True),
                ]
            cells.append(number_cell(noise, "noise"))
    file = file_of(case.case)
    parameters = ", ".join(f"{name}={value}" for name, value in case.parameters.items())
    tier = [Cell(case.tier or "")] if tiers else []
    return [*cells, Cell(short(file)), Cell(short(parameters, LONGEST_VALUE)), *tier, Cell("; ".join(case.reasons))]


def compared_table(contents: Contents) -> PageTable:
    """Return the table of all runs, a row for each case. A run that cannot be compared has the reason as its ratio."""
    columns = [Column("case", "case")]
    for number in range(1, len(contents.runs) + 1):
        columns += [
            Column(f"verdict {number}", f"verdict{number}", hidden=len(contents.runs) > 3),
            Column(f"time {number}", f"time{number}", number=True),
            *([Column("against 1", f"ratio{number}", number=True)] if number > 1 else []),
            Column(f"peak {number}", f"peak{number}", number=True),
        ]
    pairs = [(one, _verdicts(contents, one)) for one in contents.compared]
    pairs.sort(key=lambda pair: min((rank(said) for _, said in pair[1]), default=0))
    rows = [Row(_compared_cells(contents, one), ",".join(f"{at} {said}" for at, said in own)) for one, own in pairs]
    counts = Counter(one for _, own in pairs for one in own)
    order_of = sorted(counts, key=lambda one: rank(one[1]))
    filters = [
        Filter(
            f"Run {number}",
            [Choice(said, counts[at, said], TONES.get(said, "")) for at, said in order_of if at == number],
            f"{number} ",
        )
        for number in sorted({at for at, _ in counts})
    ]
    return PageTable(columns, rows, filters)


def _verdicts(contents: Contents, compared: Compared) -> list[tuple[int, str]]:
    """Return the values by which a row is filtered: the number of each run, and the case's verdict in the run."""
    cases = enumerate(cases_of(contents, compared), 1)
    return [(number, said_of(case.verdict, saved=case.saved)) for number, case in cases if case is not None]


def _compared_cells(contents: Contents, compared: Compared) -> list[Cell]:
    newest = max(number for number, at in enumerate(compared.cases, 1) if at is not None)
    place = identity(newest, compared.cases[newest - 1] or 0, True)
    cells = [Cell(short(name_in(contents, compared)), href=f"#{place}", more=compared.variant)]
    for number, case in enumerate(cases_of(contents, compared), 1):
        at = compared.cases[number - 1]
        if case is None or at is None:
            cells += [Cell()] + [Cell(number=True)] * (3 if number > 1 else 2)
            continue
        verdict = said_of(case.verdict, saved=case.saved)
        cells.append(Cell(verdict, href=f"#{identity(number, at, True)}", tone=TONES.get(verdict, "")))
        latency, peak = case.quantities.get("latency"), case.quantities.get("peak")
        mark = with_mark("", disturbed=bool(case.beside)).strip()
        cells.append(number_cell(latency.now, latency.unit, mark) if latency is not None else Cell(number=True))
        if number > 1:
            ratio, why = compared.ratios.get("latency", [None] * number)[number - 1], compared.elsewhere[number - 1]
            if ratio is not None:
                cells.append(Cell(format_change(ratio), order(ratio), number=True))
            else:
                cells.append(Cell("", number=True, more=why) if why is not None else Cell(number=True))
        change = compared.ratios.get("peak", [None] * number)[number - 1]
        more = format_change(change) if change is not None and change != 1.0 else ""
        cells.append(number_cell(peak.now, peak.unit, more) if peak is not None else Cell(number=True))
    return cells


MOST_FINDINGS = 60
"""The most cases whose evidence stands above the table; the section of each case has the evidence too."""
MOST_UNFOLDED = 10
"""The most cases that are shown open above the table. If more verdicts are bad, all sections in the list of cases are
closed, and the table is the overview."""
MOST_UNDECIDED = 12


def report_page(contents: Contents) -> str:
    """Render the page of one run, or of several runs side by side."""
    several = len(contents.runs) > 1
    runs = [_run_view(run, number, several) for number, run in enumerate(contents.runs, 1)]
    names = format_names([run.label for run in contents.runs], most=3)
    return render(
        "report.html",
        title=f"perflab: {names}",
        runs=runs,
        several=several,
        compared=compared_table(contents) if several else None,
        legend=next(filter(None, map(_legend, contents.runs)), ""),
        differences=differences(contents) if several else [],
        version=perflab.__version__,
    )


def _run_view(run: RunContents, number: int, several: bool) -> dict[str, object]:
    """Return the data of a run, by their names in the template."""
    few = sum(TONES.get(said_of(case.verdict, saved=case.saved)) == "bad" for case in run.cases) <= MOST_UNFOLDED
    cases = [case_view(case, identity(number, at, several), is_open=few) for at, case in enumerate(run.cases)]
    cases.sort(key=lambda one: rank(one.verdict))
    failed = [one for one in cases if one.tone == "bad" or (one.case.failure and one.verdict != ACCEPTED)]
    undecided = [one for one in cases if one.verdict == Verdict.INCONCLUSIVE and not one.case.failure]
    disturbed: dict[str, list[str]] = {}
    for case in run.cases:
        for text in disturbances_of(case):
            disturbed.setdefault(text, []).append(case.name)
    order = [*Verdict, ACCEPTED]
    commit, *others = run_facts(run)
    tally = sorted(run.verdicts.items(), key=lambda pair: rank(pair[0], order))
    return dict(
        number=number,
        run=run,
        # They distinguish the run from other runs; the commit links to its page.
        facts=[Cell(commit, href=commit_page(run.repository, run.commit)), *map(Cell, others)],
        tally=[(verdict, many, TONES.get(verdict, "")) for verdict, many in tally],
        findings=failed[:MOST_UNFOLDED],
        folded=failed[MOST_UNFOLDED:MOST_FINDINGS],
        more_findings=max(0, len(failed) - MOST_FINDINGS),
        undecided=undecided[:MOST_UNDECIDED],
        more_undecided=max(0, len(undecided) - MOST_UNDECIDED),
        table=run_table(run, cases),
        sets=sets_of(run, {one.case.case: one.id for one in reversed(cases)}),
        cases=cases,
        environments=_environment_table(run.environments) if run.environments else None,
        disturbances=[f"{text}: {format_names(list(map(short, names)))}" for text, names in disturbed.items()],
        calibration=_machine_table(run),
        legend=_legend(run),
    )


def _legend(run: RunContents) -> str:
    """Return the meaning of the mark behind a case's name; empty if no case has the mark."""
    return MARKED if any(case.beside for case in run.cases) else ""


def _environment_table(given: Sequence[Environment]) -> PageTable:
    """Return the table of machine and versions, with a column for each environment."""
    values = {name: [getattr(one, name) for one in given] for name in Environment.__struct_fields__}
    rows = [
        Row([Cell(name.replace("_", " ")), *(Cell("–" if one is None else str(one)) for one in found)])
        for name, found in values.items()
        if any(one is not None for one in found)
    ]
    titles = [f"environment {at}" for at in range(1, len(given) + 1)] if len(given) > 1 else ["value"]
    return PageTable([Column("what"), *map(Column, titles)], rows)


def _machine_table(run: RunContents) -> PageTable | None:
    """Return the table of the machine over the run; None without data.

    The rows are the times of the calibration workloads, whose code never changes, and the machine's counters.
    """
    if not run.machine:
        return None
    columns = [Column("over all cases"), *(Column(one, number=True) for one in ("least", "median", "most"))]
    rows = [
        Row([Cell(one.of), *(number_cell(value, one.unit) for value in (one.least, one.median, one.most))])
        for one in run.machine
    ]
    return PageTable(columns, rows)
