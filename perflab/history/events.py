"""Groups the changes of many series into events: one event gives one alarm, however many series share it. Pure.

A change lies somewhere among the runs after its last old point up to its first new point. Changes in one environment
and one direction that have a run in common are one event; changes that the machine explains form events of their own.
The run that most changes have in common makes the first event, then the same is done with the changes that are left. An
interval misses its place one time in twenty, so a few changes that lie close beside a much larger event belong to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from perflab.history.judging import Found
from perflab.history.series import Series

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
        home = next((other for other in kept if _belongs(series, event, other)), None)
        if home is None:
            kept.append(event)
            continue
        home.members.extend(event.members)
        if event.is_alarm:
            home.first, home.last = max(home.first, event.first), min(home.last, event.last)
    return kept


def _belongs(series: Sequence[Series], event: Event, other: Event) -> bool:
    """Whether an event is part of another event.

    It is if both have the same direction and may have a run in common, and their times are not of different machines.
    """
    if (event.group, event.is_worse, event.is_machines) != (other.group, other.is_worse, other.is_machines):
        return False  # an exact change is the code's: a change of the machine must not hide it
    own, others = _timed(series, event), _timed(series, other)
    same_place = not own or not others or not own.isdisjoint(others)
    return same_place and event.first <= other.last and other.first <= event.last


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
