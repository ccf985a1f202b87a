"""How much of a change of time is the machine's: what its calibration workload, whose code never changes, did there.

A machine's workloads tell of its cores and of its memory apart. One of them alone does not speak for the machine: what
counts is the middle one of those that were timed beside the cases, with those that did not change. What it leaves of a
case's change is the code's, if that is more than the noise of both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist

from perflab.history.judging import Found, Rest
from perflab.history.series import Series

CHANCE = 0.01
"""That any change of a history without one of the code is called the code's."""
_MARGIN = 1.96
"""Standard errors from a ratio to an end of its interval."""


def without_the_machine(
    found: Sequence[Found], series: Sequence[Series], machines: Sequence[Series], moved: Sequence[Found]
) -> list[Found]:
    """The changes, each with what is left of it where the machine changed at its place in its direction.

    ``machines`` are the calibration workloads' series, and ``moved`` their changes, of which only alarms count.
    """
    workloads: dict[int, dict[int, list[Found]]] = {}
    for at, machine in enumerate(machines):
        workloads.setdefault(machine.place, {})[at] = []
    for one in moved:
        if one.is_alarm:
            workloads[machines[one.series].place][one.series].append(one)
    beside = [None if series[one.series].is_exact else _machines(one, series, machines, workloads) for one in found]
    many = sum(one is not None for one in beside)
    enough = NormalDist().inv_cdf(1.0 - CHANCE / max(1, many))
    return [
        one if other is None else replace(one, rest=_rest(one, other, enough))
        for one, other in zip(found, beside, strict=True)
    ]


def _machines(
    one: Found, series: Sequence[Series], machines: Sequence[Series], workloads: Mapping[int, Mapping[int, list[Found]]]
) -> Found | None:
    """What the middle one of the machine's workloads did at a change's place; None if it did nothing."""
    first, last = one.span(series)
    way = math.copysign(1.0, math.log(one.change.ratio))
    together = []
    for steps in workloads.get(series[one.series].place, {}).values():
        there = [(step, *step.span(machines)) for step in steps]
        logs = [
            (way * math.log(step.change.ratio), step) for step, begin, end in there if begin <= last and first <= end
        ]
        together.append(max(logs, key=lambda row: row[0], default=(0.0, None)))
    together.sort(key=lambda row: row[0])
    middle, step = together[(len(together) - 1) // 2] if together else (0.0, None)
    return step if middle > 0 else None


def _rest(one: Found, machine: Found, enough: float) -> Rest:
    """A change without the machine's: its ratio over the machine's, with the interval of both."""
    left = math.log(one.change.ratio / machine.change.ratio)
    error = math.hypot(_error(one), _error(machine))
    is_codes = math.copysign(left, left * math.log(one.change.ratio)) > enough * error
    margin = _MARGIN * error
    ends = math.exp(left - margin), math.exp(left + margin)
    return Rest(machine.change.ratio, math.exp(left), *ends, is_codes=is_codes)


def _error(one: Found) -> float:
    """Standard error of the logarithm of a change's ratio; infinite where too few runs tell how much it is."""
    if one.change.low is None or one.change.high is None:
        return math.inf
    return math.log(one.change.high / one.change.low) / (2 * _MARGIN)
