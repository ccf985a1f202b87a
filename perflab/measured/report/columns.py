"""The columns of tables: their names, the value that each reads from a case, and the format of that value.

A value is in its column's unit: nanoseconds, bytes, per second, a share of one. This module defines the units of
standard columns; the ending of a fact's name defines the fact's unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from perflab.base.identity import leaf_of
from perflab.judging.statistics import SHARES, quantile, quantile_interval
from perflab.measured.report.judged import Reading, judged, share_of_rate
from perflab.results.measurement import (
    PER_TOKEN,
    Beside,
    Generation,
    Measurement,
    Ratio,
    Record,
    Replicate,
    Statistic,
    per_call_ns,
)
from perflab.results.result import Result
from perflab.tables.view import COLLECTED, OF_TOKENS, QUANTILES, STANDARD, STATISTICS, View
from perflab.units import (
    format_between,
    format_bytes,
    format_change,
    format_names,
    format_noise,
    format_ns,
    format_percent,
    format_ratio,
    format_si,
)

Value = str | int | float | bool | None
NOTHING = "–"

_TIMES = (*STATISTICS, *QUANTILES, "first", *OF_TOKENS)
_OF_A_CALL = ("median", "min", "mean")
"""Columns of times that show the ratio of a call's time."""
_NOT_IN_TURNS = (
    "they were not measured in turns, and measured one after another the same code differs too "
    "-> run these cases together"
)
_UNITS = {"peak": "bytes", "MFU": "share", "spread": "share", "vs_base": "ratio", "ops": "per second"}
_WRITTEN: dict[str, Callable[[float], str]] = {
    "spread": format_noise,
    "vs_base": format_change,
}
"""Formats of columns that are not written as other values of their unit."""
_TITLES = {"ops": "ops/s", "vs_base": "vs base"}
_RATE = "/s"
WORK = {"flops": "FLOP", "bytes": "B"}
"""Unit of work -> its name in a rate."""
_ENDINGS: dict[str, tuple[str, Callable[[float], str]]] = {
    "_per_s": ("per second", format_si),
    "_ns": ("ns", format_ns),
    "_s": ("s", lambda seconds: format_ns(1e9 * seconds)),
    "_bytes": ("bytes", lambda size: format_bytes(round(size))),
    "_share": ("share", format_percent),
    "_ratio": ("ratio", format_ratio),
}
"""Ending of a fact's name -> the fact's unit and format. The first ending that matches applies."""


@dataclass(frozen=True)
class Column:
    """One column. ``name`` is its name in ``columns=``, and ``title`` the text in its head."""

    name: str
    title: str
    source: str | None = None
    """The source of a column of quoted times; None for any other column."""
    is_phase: bool = False
    """Whether the column is the time of a phase."""

    def has(self, result: Result) -> bool:
        """Whether the case has something to show in this column; a fact that was noted as None counts."""
        record = result.record
        return self.value(result) is not None or (record is not None and self.name in record.facts)

    def value(self, result: Result) -> Value:
        """Return the case's value in this column; None if there is none."""
        record, reading = result.record, judged(result)
        if record is None or record.summary is None or reading is None:
            return None
        if self.source is not None:
            return next((quote.ns for quote in record.quotes if quote.source == self.source), None)
        return _read(self.name, result, record, record.summary, reading)

    @property
    def unit(self) -> str:
        """The unit of the values: ``ns``, ``s``, ``bytes``, ``per second``, ``share``, ``ratio``, or empty."""
        if self.source is not None or self.is_phase or self.name in _TIMES:
            return "ns"
        if self.name.endswith(_RATE):
            return "per second"
        if self.name in STANDARD:
            return _UNITS.get(self.name, "")
        return _ending(self.name)[1]

    def text(self, value: Value) -> str:
        """Format a value for the table."""
        if value is None:
            return NOTHING
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, str):
            return " ".join(value.split())
        written = _WRITTEN.get(self.name) or {unit: how for unit, how in _ENDINGS.values()}.get(self.unit)
        if written is None:
            return str(value) if isinstance(value, int) else f"{value:.4g}"
        return written(value) if value >= 0 else f"-{written(-value)}"

    @property
    def is_timed(self) -> bool:
        """Whether the column is compared by interleaved runs of a case and its base."""
        return self.source is None and (self.is_phase or self.name in _OF_A_CALL or self.name.endswith(_RATE))

    def change(self, now: Value, base: Value) -> tuple[float, str] | None:
        """Return the ratio of exact values, now / base, and its text; None for a column without exact values."""
        if self.name != "peak" or not isinstance(now, int | float) or not isinstance(base, int | float) or base <= 0:
            return None
        return now / base, _grown(now / base)

    def in_turns(self, result: Result, base: Result) -> Ratio | None:
        """Return the column's value as a multiple of the base's, from an interleaved run with the base.

        None if the column is not timed or the interleaved run has no such ratio.
        """
        found, record, other = turns_with(result, base), result.record, base.record
        if record is None or other is None or not self.is_timed:
            return None
        if not self.name.endswith(_RATE):
            return found.phases.get(self.name) if self.is_phase else found.call
        unit = self.name.removesuffix(_RATE)
        phase = phase_in(unit, own_phases(record))
        time = found.phases.get(phase) if phase else found.call
        more = record.work.get(unit, 0.0) / (other.work.get(unit) or math.inf)
        if time is None or more <= 0:
            return None
        return Ratio(value=more / time.value, low=more / time.high, high=more / time.low)


def in_blocks(widths: Sequence[int], room: int) -> list[list[int]]:
    """Return the indices of columns of these widths in blocks, each with as many columns as fit beside each other."""
    blocks: list[list[int]] = [[]]
    left = room
    for at, width in enumerate(widths):
        if width > left and blocks[-1]:
            blocks.append([])
            left = room
        blocks[-1].append(at)
        left -= width
    return blocks


def named(name: str, phases: Collection[str] = ()) -> Column:
    """Return the column of a name. A fact's title is its name without the unit, since the values show the unit.

    ``phases`` are the phases of the table's cases.
    """
    if name in STANDARD:
        return Column(name, _TITLES.get(name, name.replace("_", " ")))
    if name in phases:
        return Column(name, name.replace("_", " "), is_phase=True)
    if name.endswith(_RATE):
        return Column(name, f"{work_title(name.removesuffix(_RATE), phases)}{_RATE}")
    stem, unit = _ending(name)
    title = (stem or name).replace("_", " ")
    return Column(name, f"{WORK.get(stem, title)}{_RATE}" if unit == "per second" else title)


def own_phases(record: Record) -> Collection[str]:
    """Return the names of a case's phases."""
    return record.summary.phases_ns if record.summary is not None else ()


def phases_of(results: Iterable[Result]) -> list[str]:
    """Return the names of the phases of several cases, in the order of their first occurrence."""
    return list(dict.fromkeys(name for one in results if one.record is not None for name in own_phases(one.record)))


def own_columns(results: Sequence[Result]) -> list[str]:
    """Return the names of the columns of cases besides standard ones: phases, rates, facts, statistics of tokens."""
    records = [one.record for one in results if one.record is not None]
    found = phases_of(results)
    for record in records:
        found += [*(f"{unit}{_RATE}" for unit in record.work), *record.facts]
        found += [] if (generation := generation_in(record.measurement)) is None else generation.known
    return list(dict.fromkeys(found))


def generation_in(measurement: Measurement | None) -> Generation | None:
    """Return the generation in a measurement; None without a measurement or a generation."""
    return measurement.generation if measurement is not None else None


def phase_in(unit: str, phases: Iterable[str]) -> str:
    """Return the phase whose name begins a unit of work (``backward_flops``); ``""`` for one of the whole call."""
    return max((name for name in phases if unit.startswith(f"{name}_")), key=len, default="")


def work_title(unit: str, phases: Iterable[str]) -> str:
    """Return a unit of work in words: ``backward FLOP``."""
    phase = phase_in(unit, phases)
    rest = unit.removeprefix(f"{phase}_") if phase else unit
    return f"{phase.replace('_', ' ')} {WORK.get(rest, rest)}" if phase else WORK.get(rest, rest.replace("_", " "))


def quoted(sources: list[str]) -> list[Column]:
    """Return a column for each source, numbered if there are several. The table lists the sources below its rows."""
    if len(sources) == 1:
        return [Column("quoted", "quoted", sources[0])]
    return [Column("quoted", f"quoted {number}", source) for number, source in enumerate(sources, 1)]


def shown_ns(result: Result) -> float | None:
    """Return the time of one call that the report shows for a case, in ns; None if nothing was measured."""
    reading = judged(result)
    return reading.median_ns if reading is not None else None


def interval_ns(result: Result) -> tuple[float, float] | None:
    """Return the 95 % interval of ``shown_ns``, within the process or by the interleaved pairs.

    None for a single sample, or if the noise is unknown or 100 % or more.
    """
    reading = judged(result)
    if reading is None or reading.samples < 2 or reading.noise is None or reading.noise >= 1.0:
        return None
    return reading.median_ns * (1 - reading.noise), reading.median_ns * (1 + reading.noise)


def turns_with(result: Result, base: Result) -> Beside:
    """Return the result of interleaving a case with this reading of its base, or a record that there is none."""
    none = Beside(base=base.case, base_ns=shown_ns(base) or math.inf, problem=_NOT_IN_TURNS)
    return next((one for one in result.beside if (one.base, one.base_ns) == (none.base, none.base_ns)), none)


def told(ratio: Ratio | None) -> str:
    """Format a ratio with its interval: ``×1.07 (1.03…1.11)``; empty for None."""
    return f"{format_ratio(ratio.value)} {format_between(ratio.low, ratio.high)}" if ratio is not None else ""


def without_ratio(rows: Sequence[tuple[str, Result, Result]]) -> list[str]:
    """Return why rows have no ratio of times, one line for each reason. ``rows``: (label, case, its base)."""
    reasons: dict[str, list[str]] = {}
    for label, result, base in rows:
        found = turns_with(result, base)
        if found.call is None:
            reasons.setdefault(found.problem or _NOT_IN_TURNS, []).append(label)
    return [
        f"no ratio of times{'' if len(labels) == len(rows) else f' of {format_names(labels)}'}: {why}"
        for why, labels in reasons.items()
    ]


def rate(unit: str, record: Record, reading: Reading) -> float | None:
    """Return a unit's amount per second, by the time of its phase or else of the whole call; None if unknown."""
    amount = record.work.get(unit)
    phase = phase_in(unit, own_phases(record))
    ns = reading.phases_ns.get(phase) if phase else reading.median_ns
    return amount / (ns / 1e9) if amount is not None and ns else None


def _read(name: str, result: Result, record: Record, summary: Replicate, reading: Reading) -> Value:
    if name in reading.phases_ns:
        return reading.phases_ns[name]
    statistic = told_of_tokens(reading).get(name)
    if name.endswith(_RATE) and name.removesuffix(_RATE) in record.work:
        return rate(name.removesuffix(_RATE), record, reading)
    if statistic is not None:
        return whole(statistic) if name.endswith(PER_TOKEN) else statistic.value
    if name in STANDARD:
        flops, latency = record.work.get("flops"), result.judgement.latency
        standard: dict[str, Value] = {
            **_of_samples(reading.measurement),
            **summary.counts,
            "median": reading.median_ns,
            "min": reading.fastest_ns,
            "mean": reading.mean_ns,
            "ops": 1e9 / reading.mean_ns if reading.mean_ns else None,
            "rounds": reading.samples,
            "spread": reading.noise if reading.samples > 1 else None,
            "vs_base": latency.ratio if latency is not None else None,
            "std": reading.std_ns,
            "first": reading.first_ns,
            "peak": summary.memory.shown_bytes if summary.memory is not None else None,
            "MFU": share_of_rate(flops, reading.median_ns, record) if flops is not None else None,
        }
        return standard.get(name)
    return record.facts.get(name)


def told_of_tokens(reading: Reading) -> dict[str, Statistic]:
    """Return the statistics of a generation by name; empty if the reading has no generation."""
    generation = generation_in(reading.measurement)
    return generation.known if generation is not None else {}


def whole(statistic: Statistic) -> int | float:
    """Return the value of a count per token: an int if it is whole, as it is if all tokens agree."""
    return int(statistic.value) if statistic.value.is_integer() else statistic.value


def quantiles_of(measurement: Measurement) -> dict[str, tuple[float, float, float]]:
    """Return name -> (quantile of a call's time, low, high), in ns with a 95 % interval.

    A quantile that has too few samples for an interval is left out.
    """
    calls_ns = sorted(per_call_ns(measurement.samples_ns, measurement.repetitions))
    found = {name: quantile_interval(calls_ns, share) for name, share in SHARES.items()}
    return {
        name: (quantile(calls_ns, SHARES[name]), *interval) for name, interval in found.items() if interval is not None
    }


def _of_samples(measurement: Measurement | None) -> dict[str, Value]:
    """Return the columns that need the samples themselves; empty without a measurement."""
    if measurement is None:
        return {}
    calls_ns = sorted(per_call_ns(measurement.samples_ns, measurement.repetitions))
    return {
        **{name: value for name, (value, _, _) in quantiles_of(measurement).items()},
        "max": calls_ns[-1],
        "iqr": _interquartile_range(calls_ns),
        "iterations": measurement.repetitions,
        "warmup": measurement.warmup_calls,
    }


def _interquartile_range(ordered: Sequence[float]) -> float | None:
    """Return the third quartile minus the first; None for a single sample.

    For an odd number of samples, a quartile is the mean of two medians of a half: without the middle sample, and with
    it. pytest-benchmark uses the same definition, so the numbers agree.
    """
    size = len(ordered)
    if size < 2:
        return None
    without, within = size // 2, (size + 1) // 2
    first = (median(ordered[:without]) + median(ordered[:within])) / 2
    third = (median(ordered[size - without :]) + median(ordered[size - within :])) / 2
    return third - first


def _ending(name: str) -> tuple[str, str]:
    """Split a fact's name: the name without its unit, and the unit, which may be empty."""
    for ending, (unit, _) in _ENDINGS.items():
        if name.endswith(ending):
            return name.removesuffix(ending), unit
    return name, ""


def _grown(ratio: float) -> str:
    """Format a change of memory: ``-38%``, ``+2.5%``, ``0%``; a ratio of three or more as ``×3.10``."""
    percent = 100.0 * (ratio - 1.0)
    if ratio >= 3.0:
        return format_ratio(ratio)
    if abs(percent) < 0.05:
        return "0%"
    return f"{percent:+.0f}%" if abs(percent) >= 9.95 else f"{percent:+.1f}%"


def ordered(results: Sequence[Result], view: View) -> list[Result]:
    """Return the results in the view's order; those without a number in the sorting column come last, as collected."""
    by, down = view.sort.removeprefix("-"), view.sort.startswith("-")
    if by == COLLECTED:
        return list(reversed(results)) if down else list(results)
    if by == "fullname":
        return sorted(results, key=lambda result: result.case, reverse=down)
    if by == "name":
        return sorted(results, key=lambda result: leaf_of(result.case), reverse=down)
    column = named(by, phases_of(results))
    values = [(column.value(result), result) for result in results]
    known = [(value, result) for value, result in values if isinstance(value, int | float)]
    known.sort(key=lambda pair: pair[0], reverse=down)
    return [
        *(result for _, result in known),
        *(result for value, result in values if not isinstance(value, int | float)),
    ]
