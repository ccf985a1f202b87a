"""Draws the pictures of a case: readings against the baseline, pairs, the parts of the peak, live memory. Pure.

The module also draws the differences between runs: ratios of the cases that they share, the largest difference first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from perflab.page.charts import Bar, Strand, colour, ratios, stack, steps, strip
from perflab.page.table import title_of
from perflab.results.measurement import Paired
from perflab.results.records import says_nothing
from perflab.tables.beside_text import amount, name_in
from perflab.tables.contents import STEPS, Case, Contents, Quantity, Times
from perflab.units import format_change, format_count, format_ns

_SMALLEST = 0.002
"""The least share of a peak that is drawn and listed by itself; smaller parts are drawn and listed as one."""
_MOST_DIFFERENCES = 20
"""The most cases in one chart of the differences between runs; the table has all cases."""
_COMPARED = {"latency": "Time", "peak": "Peak memory"}
_SIDES = {"latency": ("faster", "slower"), "peak": ("less", "more")}


@dataclass(frozen=True)
class Picture:
    """A chart with its caption, and with the meaning of its colours if it has several."""

    svg: Markup
    caption: str = ""
    legend: Sequence[tuple[str, str]] = ()
    """The CSS class and the meaning of each colour."""


def pictures_of(case: Case) -> list[Picture]:
    """Draw all pictures for which the case has data, the readings first."""
    return [*_readings(case), *_pairs(case), *_composition(case), *_timeline(case)]


def _readings(case: Case) -> list[Picture]:
    """Draw the samples of this run, the readings of fresh processes, and the baseline's readings along one axis."""
    times, latency = case.times, case.quantities.get("latency")
    if times is None or latency is None:
        return []
    strands = [
        Strand("samples", "tick", times.samples_ns),
        Strand("quantiles", "tick", times.quantiles_ns),
        Strand("fresh processes", "dot", times.fresh_ns),
        Strand("set aside", "ring", times.set_aside_ns),
        Strand("baseline", "old", times.before_ns),
    ]
    in_turns = case.paired is not None or case.paired_to_anchor is not None
    before = None if in_turns else latency.before  # in an A/B comparison, interval and limit are those of the pairs
    interval = _interval(latency, before) if before is not None else None
    limit = before * latency.limit if before is not None and latency.limit is not None else None
    svg = strip(
        f"Time of one call of {case.name}",
        strands,
        format_ns,
        limit=limit,
        interval=interval,
        middle=latency.now if before is not None else None,
        description=_sampled(times),
    )
    told = [_sampled(times)]
    told += ["each dot is the median of one process"] if times.before_ns or times.fresh_ns else []
    told += ["dashed: the limit"] if limit is not None else []
    told += _untold(latency) if before is not None else []
    return [Picture(svg, "; ".join(told) + ".")]


def _interval(latency: Quantity, of: float = 1.0) -> tuple[float, float | None] | None:
    """Return the interval of the ratio, times ``of``; the upper end is None if unbounded.

    None: there is no interval, or it says nothing.
    """
    if latency.low is None or says_nothing(latency.low, latency.high):
        return None
    return of * latency.low, of * latency.high if latency.high is not None else None


def _untold(latency: Quantity) -> list[str]:
    """Return the text in place of an interval that says nothing; empty for any other interval."""
    return ["95 % interval: can't tell"] if says_nothing(latency.low, latency.high) else []


def _sampled(times: Times) -> str:
    calls = f" of {times.repetitions} calls" if times.repetitions > 1 else ""
    each = f": {STEPS + 1} of them, 5 % apart by rank" if times.quantiles_ns else ""
    return f"{format_count(times.samples, 'sample')}{calls}{each}, the median {format_ns(times.median_ns)}"


def _pairs(case: Case) -> list[Picture]:
    both = (case.paired, case.paired_to_anchor)
    return [_pair(case, one) for one in both if one is not None and (one.screen or one.confirm)]


def _pair(case: Case, paired: Paired) -> Picture:
    latency = case.quantities.get("latency")
    strands = [
        Strand("first pairs", "dot", paired.screen),
        Strand("more pairs", "dot", paired.confirm),
        Strand("base / base", "old", paired.control),
    ]
    svg = strip(
        f"{case.name}, A/B with {paired.against}",
        strands,
        format_change,
        limit=latency.limit if latency is not None else None,
        interval=_interval(latency) if latency is not None else None,
        middle=latency.ratio if latency is not None else None,
    )
    told = [f"A/B with {paired.against}: each dot is the ratio of times in a pair of fresh processes"]
    told += _untold(latency) if latency is not None else []
    return Picture(svg, "; ".join(told) + ".")


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


def differences(contents: Contents) -> list[Picture]:
    """Draw a chart for each later run and each quantity that differs in a case from the first run with that case."""
    found = [_difference(contents, number, name) for number in range(1, len(contents.runs)) for name in _COMPARED]
    return [one for one in found if one is not None]


def _difference(contents: Contents, number: int, name: str) -> Picture | None:
    shared = [
        (name_in(contents, one), ratio)
        for one in contents.compared
        if (ratio := one.ratios.get(name, [None] * len(contents.runs))[number]) is not None and ratio > 0
    ]
    other = sorted((one for one in shared if one[1] != 1.0), key=lambda one: -abs(math.log(one[1])))
    if not other:
        return None
    given = [Bar(case, ratio, format_change(ratio)) for case, ratio in other[:_MOST_DIFFERENCES]]
    title = f"{_COMPARED[name]} of run {number + 1}"
    told = [f"{title} against the first run that has numbers of a case, {_told(len(given), len(other), len(shared))}"]
    told += ["not judged: noise alone makes times differ"] if name == "latency" else []
    svg = ratios(f"{title}: {title_of(name)}", given, format_change, *_SIDES[name])
    return Picture(svg, "; ".join(told) + ".")


def _told(drawn: int, other: int, shared: int) -> str:
    cases = format_count(shared, "case")
    if drawn < other:
        return f"the {drawn} that differ most of {cases}"
    return f"{other} of {cases} differ" if other < shared else cases
