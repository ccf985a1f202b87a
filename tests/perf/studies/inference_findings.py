"""What the inference studies come to, in words. Pure functions of a run's results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perflab import Result
from perflab.serving import saturation

from .recommendation import LEAST_TIME, number, result_parameters

BASELINE = "baseline"
LEAST_MEMORY = 0.02
"""Share of the peak from which a change is spoken of."""


def decode_findings(results: Sequence[Result]) -> list[str]:
    """How near a step's reading of weights and cache comes to a plain copy's rate, for the smallest batch."""
    lines = []
    for one in results:
        record = one.record
        if record is None or record.summary is None or result_parameters(one).get("batch") != 1:
            continue
        read, copied = number(record.facts.get("read_bytes")), number(record.facts.get("copy_bytes_per_s"))
        if read and copied:
            share = read / (record.summary.median_ns / 1e9) / copied
            case = one.case.rpartition("[")[2].rstrip("]")
            lines.append(f"{case}: reads weights and cache at {share:.0%} of a copy's rate")
    return lines


@dataclass(frozen=True)
class Worth:
    """What a switch is worth: time and peak in multiples of the baseline's, the time with its 95 % interval."""

    time: float
    low: float
    high: float
    peak: float | None

    def advice(self) -> str:
        """When to use it, from these numbers alone."""
        faster, slower = self.high < 1 - LEAST_TIME, self.low > 1 + LEAST_TIME
        smaller = self.peak is not None and self.peak < 1 - LEAST_MEMORY
        larger = self.peak is not None and self.peak > 1 + LEAST_MEMORY
        if faster:
            return "use when time is short" + ("; it needs more memory" if larger else "")
        if smaller:
            return "use when memory is short" + ("; it costs time" if slower else "")
        return "skip here: it only costs" if slower or larger else "skip here: no difference seen"


def switch_findings(results: Sequence[Result]) -> list[str]:
    """A line of advice for each switch that took turns with the baseline."""
    lines: list[str] = []
    by_switch: Mapping[object, Result] = {result_parameters(one).get("switch"): one for one in results}
    base = by_switch.get(BASELINE)
    for name, one in by_switch.items() if base is not None else ():
        turns = next((found.call for found in one.beside if base is not None and found.base == base.case), None)
        if turns is None:
            continue
        worth = Worth(turns.value, turns.low, turns.high, _peak_ratio(one, base))
        told = f"×{1 / worth.time:.2f} ({1 / worth.high:.2f}…{1 / worth.low:.2f}) as fast"
        if worth.peak is not None:
            told += f", peak {worth.peak - 1:+.0%}"
        lines.append(f"{name}: {told}: {worth.advice()}")
    return lines


def load_findings(results: Sequence[Result]) -> list[str]:
    """Between which offered rates the scheduler begins to fall behind."""
    completed: dict[float, float] = {}
    for one in results:
        facts = one.record.facts if one.record is not None else {}
        offered, done = number(facts.get("offered_per_s")), number(facts.get("requests_per_s"))
        if offered and done:
            completed[offered] = done
    if not completed:
        return []
    keeps_up, falls_behind = saturation(completed)
    if falls_behind is None:
        return [f"keeps up with {max(completed):.3g} requests/s, the most that was offered"]
    return [
        f"falls behind at {falls_behind:.3g} requests/s"
        + (f", keeps up with {keeps_up:.3g}" if keeps_up is not None else ", the least that was offered")
    ]


def _peak_ratio(one: Result, base: Result) -> float | None:
    peaks = []
    for result in (one, base):
        summary = result.record.summary if result.record is not None else None
        if summary is None or summary.memory is None or not summary.memory.peak_bytes:
            return None
        peaks.append(summary.memory.peak_bytes)
    return peaks[0] / peaks[1]
