"""Makes the section of one case on a report's page: numbers, pictures, sentences. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from perflab.page.pictures import Picture, pictures_of
from perflab.page.table import LONGEST_VALUE, TONES, PageTable, page_table, quantity_table, short
from perflab.results.measurement import Evidence
from perflab.tables.beside_text import amount
from perflab.tables.contents import CALIBRATION, Case, Table
from perflab.tables.failing import kernel_code_text
from perflab.tables.lines import said_of
from perflab.units import format_change, format_count, format_ns, format_percent

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
