"""Finds the changes of level in a history, and decides which of them are alarms.

Across many series false alarms add up. A change is an alarm if its chance in an unchanged series is at most 1 %, and if
it passes Benjamini and Hochberg's procedure over all series of its environment, so that of all alarms at most one in
ten is false (Benjamini and Hochberg 1995, "Controlling the false discovery rate"). A change that passes only the first
test is possible, and no alarm. Exact quantities do not vary, so each of their changes is an alarm.

The machine's part of a change of time is told by the calibration workloads, whose code never changes. They measure the
machine's cores and memory separately. One workload alone does not stand for the machine: the machine's change is the
middle one among all workloads that were timed beside the cases, including workloads that did not change. The remainder
of a case's change is the code's if it exceeds the noise of both changes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING

from perflab.history.series import Series

if TYPE_CHECKING:
    from types import ModuleType

    from perflab.history.change_points import Change

_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
MOST_P = 0.01
FALSE_DISCOVERIES = 0.1
COUNTS = 0.05
"""Share by which an accepted time must differ from the last time that counted: the gate's default threshold."""
FEWEST = 8
"""The fewest points in which a change can be found: ``change_points.SHORTEST``, whose module loads numpy."""
CHANCE = 0.01
"""The chance that any change in a history is attributed to the code although the code did not change."""
_MARGIN = 1.96
"""Standard errors from the logarithm of a ratio to an end of its 95 % interval."""


@dataclass(frozen=True)
class Rest:
    """The remainder of a change without the machine's part, if the machine changed at the same place."""

    machine: float
    """The ratio by which the calibration workload changed."""
    ratio: float
    """The change's ratio divided by ``machine``."""
    low: float
    """Lower bound of the 95 % interval of ``ratio``; ``high`` is the upper bound."""
    high: float
    is_codes: bool
    """Whether the remainder exceeds the noise of both changes, so that it is the code's."""


@dataclass(frozen=True)
class Found:
    """A change of one series."""

    series: int
    """Index into the series that were judged."""
    change: Change
    is_alarm: bool
    undoes: int | None = None
    """The ``at`` of the earlier change that this change undoes; None: it undoes none."""
    rest: Rest | None = None
    """The remainder of the change without the machine's part; None if the machine did not change."""

    @property
    def is_machines(self) -> bool:
        """Whether the machine explains the change."""
        return self.rest is not None and not self.rest.is_codes

    def span(self, series: Sequence[Series]) -> tuple[int, int]:
        """Return the earliest and the latest run that may be the first of the new level."""
        runs = series[self.series].runs
        return runs[self.change.before] + 1, runs[self.change.after]


def judge(series: Sequence[Series]) -> list[Found]:
    """Find all changes of these series, in the order of the series and oldest first."""
    noisy = [at for at, one in enumerate(series) if not one.is_exact and len(one.values) >= FEWEST]
    changes = _statistics().find_changes([series[at].values for at in noisy])
    limits = _limits([(series[at].place, ones) for at, ones in zip(noisy, changes, strict=True)])
    found = []
    for at, ones in zip(noisy, changes, strict=True):
        limit = limits.get(series[at].place, 0.0)
        found += [Found(at, one, one.p <= limit, _undone(ones, one)) for one in ones if one.p <= MOST_P]
    return sorted([*found, *_exact(series)], key=lambda one: (one.series, one.change.at))


def creep_of(one: Series, found: Sequence[Found]) -> float | None:
    """Return the ratio by which a series crept without a step; None if it did not, is exact, or has too few points."""
    if one.is_exact or len(one.values) < FEWEST:
        return None
    ratio: float | None = _statistics().creep(one.values, [each.change for each in found])
    return ratio


def judge_accepted(series: Sequence[Series]) -> list[Found]:
    """Find the steps between accepted levels: all steps of exact quantities, and the steps of times past ``COUNTS``.

    A time is compared with the last time that counted, so that many small steps add up.
    """
    found = list(_exact(series))
    for at, one in enumerate(series):
        values, base = one.values, 0
        for new in range(1, len(values)) if not one.is_exact else ():
            ratio = values[new] / values[base]
            if not 1.0 / (1.0 + COUNTS) < ratio < 1.0 + COUNTS:
                base = new
                found.append(Found(at, _statistics().Change(new - 1, new, new, ratio, ratio, ratio, 0.0, None), True))
    return sorted(found, key=lambda one: (one.series, one.change.at))


def _statistics() -> ModuleType:
    """Import and return ``change_points``. It loads numpy with one thread for linear algebra, since matrices are small.

    The environment is restored, so that measuring processes started later have their usual number of threads.
    """
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        from perflab.history import change_points
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    return change_points


def _exact(series: Sequence[Series]) -> Iterator[Found]:
    for at, one in enumerate(series):
        if one.is_exact and min(one.values) != max(one.values):
            changes = _statistics().find_exact_changes(one.values)
            yield from (Found(at, change, True, _undone(changes, change)) for change in changes)


def _undone(changes: Sequence[Change], one: Change) -> int | None:
    return changes[one.back_to].at if one.back_to is not None else None


def _limits(series: Sequence[tuple[int, Sequence[Change]]]) -> dict[int, float]:
    """Return the largest p that is an alarm, by the number of the place."""
    chances: dict[int, list[float]] = {}
    many: dict[int, int] = {}
    for place, changes in series:
        chances.setdefault(place, []).extend(change.p for change in changes)
        many[place] = many.get(place, 0) + max(1, len(changes))
    return {
        place: min(MOST_P, largest_false_discovery(ones, many[place], FALSE_DISCOVERIES))
        for place, ones in chances.items()
    }


def largest_false_discovery(chances: Sequence[float], many: int, rate: float) -> float:
    """Return Benjamini and Hochberg's limit: the largest p that passes among ``many`` hypotheses; 0 if none does.

    ``rate`` is the share of false discoveries that is allowed.
    """
    passing = [p for rank, p in enumerate(sorted(chances), 1) if p <= rate * rank / many]
    return max(passing, default=0.0)


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
