"""One case of a report as a section of the page: its numbers as tables, its readings as pictures. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from markupsafe import Markup

from perflab.measure.records import Evidence, Paired
from perflab.page.charts import Strand, colour, stack, steps, strip
from perflab.page.table import TONES, Cell, Column, PageTable, Row, number_cell, text_cell
from perflab.records import MEANINGLESS
from perflab.report.beside_text import amount
from perflab.report.contents import STEPS, Case, Quantity, Table, Times
from perflab.units import format_change, format_count, format_interval, format_ns, format_percent

CALIBRATION = "calibration "
"""How quantities begin that tell of the machine, and not of the case."""
_ACCEPTED = "accepted"
_CHANGED = ("regressed", "improved", "inconclusive")
_TITLES = {
    "bound": "lower bound of time",
    "roofline": "roofline time",
    "estimate": "estimated time",
    "saved": "saved for backward",
    "bytes": "bytes moved",
    "flops": "FLOPs",
}
_SMALLEST = 0.002
"""Of a peak: parts below this share are drawn and listed as one."""


@dataclass(frozen=True)
class Picture:
    """A chart with its caption, and the names of its colours if it has several."""

    svg: Markup
    caption: str = ""
    legend: Sequence[tuple[str, str]] = ()
    """Class of a colour, and what it stands for."""


@dataclass(frozen=True)
class CaseView:
    """What the template shows of a case."""

    id: str
    case: Case
    verdict: str
    tone: str
    is_open: bool
    brief: str
    """The most important numbers, for the line that stands when the section is closed."""
    pictures: Sequence[Picture]
    quantities: PageTable | None
    worse: PageTable | None
    """Those that the verdict rests on."""
    tables: Sequence[tuple[Table, PageTable]]
    lists: Sequence[tuple[str, Sequence[str]]] = field(default_factory=list)
    """Titled sentences: why, evidence, what was not compared."""


def verdict_of(case: Case) -> str:
    """The verdict as pages say it: a change that was saved is accepted."""
    return _ACCEPTED if case.saved and case.verdict in _CHANGED else case.verdict


def case_view(case: Case, identity: str) -> CaseView:
    """The section of one case."""
    verdict = verdict_of(case)
    tone = TONES.get(verdict, "")
    shown = {name: one for name, one in case.quantities.items() if not name.startswith(CALIBRATION)}
    worse = {name: one for name, one in case.quantities.items() if one.worse}
    return CaseView(
        id=identity,
        case=case,
        verdict=verdict,
        tone=tone,
        is_open=tone == "bad",
        brief=_brief(case),
        pictures=[*_readings(case), *_pairs(case), *_composition(case), *_timeline(case)],
        quantities=quantity_table(shown) if shown else None,
        worse=quantity_table(worse) if worse else None,
        tables=[(table, page_table(table)) for table in case.tables],
        lists=[(title, lines) for title, lines in _lists(case).items() if lines],
    )


def _brief(case: Case) -> str:
    shown = []
    for name in ("latency", "bound", "peak", "registers"):
        one = case.quantities.get(name)
        if one is not None:
            least = "at least " if name == "bound" else ""
            unit = " registers" if name == "registers" else ""
            shown.append(f"{least}{amount(one.now, one.unit)}{unit}{_changed(one)}")
    return " · ".join(shown)


def _changed(one: Quantity) -> str:
    return f" {format_change(one.ratio)}" if one.ratio is not None and one.ratio != 1.0 else ""


def title_of(name: str) -> str:
    """A quantity's name, as tables have it."""
    return _TITLES.get(name, name.replace("_", " "))


def change_text(one: Quantity) -> str:
    """How a quantity changed: by a share, of counts and bytes by an amount."""
    if one.before is None or one.ratio is None:
        return ""
    if one.now == one.before:
        return "same"
    if not one.exact:
        return format_change(one.ratio)
    difference = one.now - one.before
    return f"{'+' if difference > 0 else ''}{amount(difference, one.unit)}"


def interval_text(one: Quantity) -> str:
    """The interval of the ratio, in words where there is none, or where it says nothing."""
    if one.exact:
        return "exact"
    if one.low is None:
        return ""
    high = one.high if one.high is not None else inf
    vague = one.low <= 1.0 <= high and high >= MEANINGLESS * one.low
    return "can't tell" if vague else format_interval(one.low, high)


def limit_text(one: Quantity) -> str:
    """From where on a change counts."""
    if one.limit is None:
        return "not gated" if one.before is not None else ""
    return "none allowed" if one.limit == 1.0 else f"+{format_percent(one.limit - 1)}"


def quantity_table(quantities: dict[str, Quantity]) -> PageTable:
    """Each number with what it was compared with."""
    compared = any(one.before is not None for one in quantities.values())
    columns = [Column("quantity"), Column("now", number=True)]
    if compared:
        titles = ("before", "change", "95 % interval", "limit")
        columns += [Column(title, number=True) for title in titles]
    rows = []
    for name, one in quantities.items():
        tone = "bad" if one.worse else ""
        cells = [text_cell(title_of(name)), number_cell(one.now, one.unit)]
        if compared:
            cells += [
                number_cell(one.before, one.unit),
                Cell(change_text(one), number=True)
                if not tone
                else Cell("", number=True, more=change_text(one), tone=tone),
                Cell(interval_text(one) if one.before is not None else "", number=True),
                Cell(limit_text(one), number=True),
            ]
        rows.append(Row(cells))
    return PageTable(columns, rows)


def page_table(table: Table) -> PageTable:
    """A tier's table."""
    columns = [Column(column.title, number=column.unit != "text") for column in table.columns]
    rows = [
        Row(
            [
                number_cell(value, column.unit)
                if isinstance(value, int | float) and column.unit != "text"
                else Cell("" if value is None else str(value), number=column.unit != "text")
                for value, column in zip(row, table.columns, strict=True)
            ]
        )
        for row in table.rows
    ]
    return PageTable(columns, rows)


# --- pictures ----------------------------------------------------------------------------------------------------


def _readings(case: Case) -> list[Picture]:
    """The samples here, other processes, and the baseline's, along one axis."""
    times, latency = case.times, case.quantities.get("latency")
    if times is None or latency is None:
        return []
    strands = [
        Strand("samples", "tick", times.quantiles_ns),
        Strand("fresh processes", "dot", times.fresh_ns),
        Strand("set aside", "ring", times.set_aside_ns),
        Strand("baseline", "old", times.before_ns),
    ]
    before, interval = latency.before, None
    if before is not None and latency.low is not None:
        high = latency.high if latency.high is not None else max(latency.low * 4, 4.0)
        interval = (before * latency.low, before * high)
    limit = before * latency.limit if before is not None and latency.limit is not None else None
    svg = strip(
        f"Time of one call of {case.name}",
        strands,
        format_ns,
        limit=limit,
        interval=interval,
        middle=latency.now,
        description=_sampled(times),
    )
    told = [_sampled(times)]
    told += ["each dot is the median of one process"] if times.before_ns or times.fresh_ns else []
    told += ["dashed: the limit"] if limit is not None else []
    return [Picture(svg, "; ".join(told) + ".")]


def _sampled(times: Times) -> str:
    calls = f" of {times.repetitions} calls" if times.repetitions > 1 else ""
    each = ": each line is 5 % of them" if times.samples > STEPS else ""
    return f"{format_count(times.samples, 'sample')}{calls}{each}, the median {format_ns(times.median_ns)}"


def _pairs(case: Case) -> list[Picture]:
    found = []
    for paired in (case.paired, case.paired_to_anchor):
        if paired is not None and (paired.screen or paired.confirm):
            found.append(_pair(case, paired))
    return found


def _pair(case: Case, paired: Paired) -> Picture:
    latency = case.quantities.get("latency")
    strands = [
        Strand("first pairs", "dot", paired.screen),
        Strand("more pairs", "dot", paired.confirm),
        Strand("base / base", "old", paired.control),
    ]
    interval = None
    if latency is not None and latency.low is not None and latency.high is not None:
        interval = (latency.low, latency.high)
    svg = strip(
        f"{case.name} in turns with {paired.against}",
        strands,
        format_change,
        limit=latency.limit if latency is not None else None,
        interval=interval,
        middle=latency.ratio if latency is not None else None,
    )
    caption = f"In turns with {paired.against}: each dot is a pair of fresh processes, its time against the other's."
    return Picture(svg, caption)


def _composition(case: Case) -> list[Picture]:
    whole = sum(case.memory.values())
    if not whole:
        return []
    ordered = sorted(((name, size) for name, size in case.memory.items() if size > 0), key=lambda one: -one[1])
    large = [(name, float(size)) for name, size in ordered if size >= _SMALLEST * whole]
    rest = whole - sum(size for _, size in large)
    parts = [*large, *([("other", rest)] if rest > 0 else [])]
    svg = stack(f"Peak memory of {case.name}: {_bytes(whole)}", parts, _bytes)
    legend = [(colour(number), f"{name} {_bytes(size)}") for number, (name, size) in enumerate(parts)]
    return [Picture(svg, f"Peak memory of one call, {_bytes(whole)}.", legend)]


def _timeline(case: Case) -> list[Picture]:
    timeline = case.timeline
    if timeline is None or not timeline.highest_bytes:
        return []
    marks = [(name, at) for name, at in timeline.phases.items() if at < len(timeline.highest_bytes)]
    svg = steps(f"Live memory over one call of {case.name}", timeline.highest_bytes, _bytes, marks, "bytes")
    return [Picture(svg, "Live memory over one call: allocations and frees from left to right, the peak marked.")]


def _bytes(size: float) -> str:
    return amount(round(size), "bytes")


# --- sentences ---------------------------------------------------------------------------------------------------


def _lists(case: Case) -> dict[str, list[str]]:
    return {
        "Why": case.reasons,
        "Cause": case.cause,
        "In short": case.facts,
        "Drift": [_drifted(name, one.recorded, one.steps) for name, one in case.drift.items() if one.decides],
        "Not compared": [
            *([f"time: {case.no_times}"] if case.no_times else []),
            *(f"{one.quantity}: {one.reason}" for one in case.not_compared),
        ],
        "Noted by the test": [f"{name} = {value}" for name, value in case.noted.items()],
        "Quoted from elsewhere": [f"{one.source}: {format_ns(one.ns)}" for one in case.quotes],
        "Memory beside it": [f"{name}: {amount(size, 'bytes')}" for name, size in case.memory_beside.items()],
        "What could have disturbed it": evidence_of(case),
    }


def _drifted(name: str, recorded: str, steps: int) -> str:
    return f"{name} is compared with its anchor of {recorded}, {steps} accepted steps ago"


def evidence_of(case: Case) -> list[str]:
    """What was going on beside the case, as far as that is known."""
    told = list(case.disturbed or [])
    told += [text for text in case.beside if not any(one.startswith(text) for one in told)]
    if case.disturbed == [] and not told:
        told.append("nothing disturbed the processes that were judged")
    times = case.times
    if times is not None and times.settled is False:
        told.append(f"its readings had not settled after {times.warmup_calls} warm-up calls")
    told += [f"work ran on in {name} after the call had returned" for name in (times.ran_on if times else [])]
    told += [f"no profile: {case.not_profiled}"] if case.not_profiled else []
    read = {name: one for name, one in case.quantities.items() if name.startswith(CALIBRATION)}
    if read:
        figures = [f"{name.removeprefix(CALIBRATION)} {amount(one.now, one.unit)}" for name, one in read.items()]
        told.append(f"calibration workload: {', '.join(figures)}")
    return told + ([facts] if case.evidence is not None and (facts := _figures(case.evidence)) else [])


def _figures(evidence: Evidence) -> str:
    """The machine's counters over the samples, in one sentence."""
    told = [f"over {format_ns(evidence.span_ns)}"]
    if evidence.neighbours_cores is not None:
        told.append(f"other processes {evidence.neighbours_cores:.2f} cores")
    if evidence.steal_share is not None:
        told.append(f"stolen {format_percent(evidence.steal_share)}")
    if evidence.pressure_share is not None:
        told.append(f"waiting for a core {format_percent(evidence.pressure_share)}")
    if evidence.involuntary_switches is not None:
        told.append(f"{evidence.involuntary_switches:,} involuntary switches")
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
                *([f"{state.neighbours} other processes"] if state.neighbours else []),
                *state.throttle,
            ]
            told += [f"GPU {when}: {', '.join(figures)}"] if figures else []
    return "the machine " + ", ".join(told)
