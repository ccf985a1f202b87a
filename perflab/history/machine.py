"""Separates the machine's part of a change of time, by the calibration workloads, whose code never changes.

The workloads measure the machine's cores and memory separately. One workload alone does not stand for the machine: the
machine's change is the middle one among all workloads that were timed beside the cases, including workloads that did
not change. The remainder of a case's change is the code's if it exceeds the noise of both changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist

from perflab.history.judging import Found, Rest
from perflab.history.series import Series

CHANCE = 0.01
"""The chance that any change in a history is attributed to the code although the code did not change."""
_MARGIN = 1.96
"""Standard errors from the logarithm of a ratio to an end of its 95 % interval."""


def without_the_machine(
    found: Sequence[Found], series: Sequence[Series], machines: Sequence[Series], moved: Sequence[Found]
) -> list[Found]:
    """Return the changes, each with its remainder in ``rest`` if the machine changed at its place in its direction.

    ``machines`` are the calibration workloads' series, and ``moved`` are the changes of these, of which only alarms
    count.
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
    """Return the change of the middle one of the machine's workloads at a change's place.

    None if the middle workload did not change in the same direction.
    """
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
    """Return the remainder of a change: its ratio divided by the machine's, with the interval of both."""
    left = math.log(one.change.ratio / machine.change.ratio)
    error = math.hypot(_error(one), _error(machine))
    is_codes = math.copysign(left, left * math.log(one.change.ratio)) > enough * error
    margin = _MARGIN * error
    ends = math.exp(left - margin), math.exp(left + margin)
    return Rest(machine.change.ratio, math.exp(left), *ends, is_codes=is_codes)


def _error(one: Found) -> float:
    """Return the standard error of the logarithm of a change's ratio; infinite if the ratio's interval is unknown."""
    if one.change.low is None or one.change.high is None:
        return math.inf
    return math.log(one.change.high / one.change.low) / (2 * _MARGIN)
