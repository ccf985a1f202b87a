"""Finds the changes of level in a history, decides which of them are alarms, and groups them into events.

Across many series false alarms add up. A change is an alarm if its chance in an unchanged series is at most 1 %, and if
it passes Benjamini and Hochberg's procedure over all series of its environment, so that of all alarms at most one in
ten is false (Benjamini and Hochberg 1995, "Controlling the false discovery rate"). A change that passes only the first
test is possible, and no alarm. Exact quantities do not vary, so each of their changes is an alarm.

The machine's part of a change of time is told by the calibration workloads, whose code never changes. They measure the
machine's cores and memory separately. One workload alone does not stand for the machine: the machine's change is the
middle one among all workloads that were timed beside the cases, including workloads that did not change. The remainder
of a case's change is the code's if it exceeds the noise of both changes.

One event gives one alarm, however many series share it. A change lies somewhere among the runs after its last old point
up to its first new point. Changes in one environment and one direction that have a run in common are one event; changes
that the machine explains form events of their own. The run that most changes have in common makes the first event, then
the same is done with the changes that are left. An interval misses its place one time in twenty, so a few changes that
lie close beside a much larger event belong to it.
"""

from __future__ import annotations

import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
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
    chances: dict[int, list[float]] = defaultdict(list)
    many: Counter[int] = Counter()
    for at, ones in zip(noisy, changes, strict=True):
        chances[series[at].place] += [change.p for change in ones]
        many[series[at].place] += max(1, len(ones))
    limits = {  # the largest p that is an alarm, by place
        place: min(MOST_P, largest_false_discovery(ones, many[place], FALSE_DISCOVERIES))
        for place, ones in chances.items()
    }
    found = []
    for at, ones in zip(noisy, changes, strict=True):
        limit = limits[series[at].place]
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
    told = []
    for one, other in zip(found, beside, strict=True):
        if other is None:
            told.append(one)
            continue
        # What remains is the ratio divided by the machine's, with the interval of both.
        left = math.log(one.change.ratio / other.change.ratio)
        error = math.hypot(_error(one), _error(other))
        is_codes = math.copysign(left, left * math.log(one.change.ratio)) > enough * error
        low, high = math.exp(left - _MARGIN * error), math.exp(left + _MARGIN * error)
        told.append(replace(one, rest=Rest(other.change.ratio, math.exp(left), low, high, is_codes=is_codes)))
    return told


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


def _error(one: Found) -> float:
    """Return the standard error of the logarithm of a change's ratio; infinite if the ratio's interval is unknown."""
    if one.change.low is None or one.change.high is None:
        return math.inf
    return math.log(one.change.high / one.change.low) / (2 * _MARGIN)


HIGHER_IS_BETTER = ("warps_per_sm", "mma", "wgmma", "tcgen05", "tma")
"""Quantities of kernels that are better when higher: occupancy, and instructions of tensor cores and TMA."""
_BESIDE_RUNS = 3
"""The most runs between an event and an interval that missed its place."""
_BESIDE_SHARE = 0.1
"""The largest share of an event's changes whose intervals may have missed their place."""


@dataclass
class Event:
    """Changes that one cause explains."""

    group: str
    """The text that the event's environments have in common: ``Place.group``."""
    is_worse: bool
    is_alarm: bool
    members: list[Found]
    first: int
    """The earliest run that may be the first of the new level."""
    last: int
    """The latest run that may be the first of the new level."""
    came_back: list[int] = field(default_factory=list)
    """Numbers, from 0, of the earlier events that this event undoes."""
    undone_by: dict[tuple[int, int], int] = field(default_factory=dict)
    """The number, from 0, of the event that restored a member's old level, by the member's series and ``at``."""
    is_machines: bool = False
    """Whether the machine explains each of the event's changes."""


def is_worse(series: Series, found: Found) -> bool:
    """Whether a change is for the worse."""
    return (found.change.ratio > 1.0) != (series.quantity in HIGHER_IS_BETTER)


def gather(series: Sequence[Series], groups: Sequence[str], found: Sequence[Found]) -> list[Event]:
    """Group changes into events, and return the events in the order of time.

    Args:
        series: the series that were judged.
        groups: for each place, the text that the exact quantities and times of one machine have in common.
        found: the changes. A possible change makes no alarm, but may belong to one.
    """
    kinds: dict[tuple[bool, int, bool, bool], list[Found]] = {}
    for one in found:
        own = series[one.series]
        kinds.setdefault((one.is_alarm, own.place, is_worse(own, one), one.is_machines), []).append(one)
    events: list[Event] = []
    for (alarm, place, worse, machines), ones in kinds.items():
        for members, first, last in _clusters(series, ones):
            events.append(Event(groups[place], worse, alarm, members, first, last, is_machines=machines))
    events = _joined(series, events)
    events.sort(key=lambda event: (event.first, event.last, not event.is_worse, event.group))
    _note_returns(events)
    return events


def _clusters(series: Sequence[Series], found: Sequence[Found]) -> list[tuple[list[Found], int, int]]:
    """Group changes that have a run in common, the largest group first.

    Return each group with the first and the last of the runs that its changes have in common.
    """
    left = [(*one.span(series), one) for one in found]
    clusters: list[tuple[list[Found], int, int]] = []
    while left:
        steps = Counter(first for first, _, _ in left)
        steps.subtract(last + 1 for _, last, _ in left)
        runs = sorted(steps)
        depths = list(accumulate(steps[run] for run in runs))
        run = runs[depths.index(max(depths))]  # the earliest run that most intervals contain
        members = [(first, last, one) for first, last, one in left if first <= run <= last]
        left = [row for row in left if not row[0] <= run <= row[1]]
        first, last = max(row[0] for row in members), min(row[1] for row in members)
        home = next(
            (
                at
                for at, (others, begin, end) in enumerate(clusters)
                if len(members) <= _BESIDE_SHARE * len(others)
                and first <= end + _BESIDE_RUNS
                and last >= begin - _BESIDE_RUNS
            ),
            None,
        )
        if home is None:
            clusters.append(([one for *_, one in members], first, last))
        else:
            clusters[home][0].extend(one for *_, one in members)
    return clusters


def _joined(series: Sequence[Series], events: Sequence[Event]) -> list[Event]:
    """Join events: exact changes join the event of times that they explain, and possible changes join an alarm.

    Only alarms narrow the range of runs in which an event lies.
    """
    kept: list[Event] = []
    for event in sorted(events, key=lambda event: (not event.is_alarm, not _timed(series, event))):
        kind, timed = (event.group, event.is_worse, event.is_machines), _timed(series, event)
        home = None
        for other in kept:
            # An exact change is the code's: a change of the machine must not hide it. Times of two machines stay apart.
            is_alike, beside = kind == (other.group, other.is_worse, other.is_machines), _timed(series, other)
            is_same_place = not timed or not beside or not timed.isdisjoint(beside)
            if is_alike and is_same_place and event.first <= other.last and other.first <= event.last:
                home = other
                break
        if home is None:
            kept.append(event)
            continue
        home.members.extend(event.members)
        if event.is_alarm:
            home.first, home.last = max(home.first, event.first), min(home.last, event.last)
    return kept


def _timed(series: Sequence[Series], event: Event) -> set[int]:
    """Return the places of the machines whose times changed in an event."""
    return {series[one.series].place for one in event.members if not series[one.series].is_exact}


def _note_returns(events: Sequence[Event]) -> None:
    """Note in each event which event restored its members' old levels, and which earlier events it undoes.

    An event undoes an earlier event if at least half of the later event's members restore a level of the earlier one.
    """
    by_change = {(one.series, one.change.at): at for at, event in enumerate(events) for one in event.members}
    for at, event in enumerate(events):
        undone: Counter[int] = Counter()
        for one in event.members:
            earlier = by_change.get((one.series, one.undoes)) if one.undoes is not None else None
            if earlier is not None and one.undoes is not None and earlier != at:
                events[earlier].undone_by.setdefault((one.series, one.undoes), at)
                undone[earlier] += 1
        for earlier, many in sorted(undone.items()):
            if 2 * many >= len(event.members):
                event.came_back.append(earlier)
