"""Changes of many series made events: one event gives one alarm, whatever shares it. Pure.

A change lies somewhere among the runs after its last old point up to its first new one. Changes in one environment and
one direction that have a run in common are one event; those that the machine explains stand apart. Of all ways to share
changes out, the run that most of them have in common is taken first, and so on. An interval misses its place one time
in twenty, so a few that lie close beside a much larger event belong to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from perflab.history.judging import Found
from perflab.history.series import Series

HIGHER_IS_BETTER = ("warps_per_sm", "mma", "wgmma", "tcgen05", "tma")
"""Of kernels: occupancy, and instructions of tensor cores and TMA."""
_BESIDE_RUNS = 3
"""An interval that missed its place lies this close to it."""
_BESIDE_SHARE = 0.1
"""So many of an event's changes may have missed."""


@dataclass
class Event:
    """Changes of one cause."""

    group: str
    """What its environments have in common."""
    is_worse: bool
    is_alarm: bool
    members: list[Found]
    first: int
    """The earliest run that may be the first of the new level."""
    last: int
    """The latest one."""
    came_back: list[int] = field(default_factory=list)
    """Numbers of the earlier events that it undoes."""
    undone_by: dict[tuple[int, int], int] = field(default_factory=dict)
    """Of each member whose old level came back, by its series and place: the number of the event that brought it."""
    is_machines: bool = False
    """Whether the machine explains each of its changes."""


def is_worse(series: Series, found: Found) -> bool:
    """Whether a change is for the worse."""
    return (found.change.ratio > 1.0) != (series.quantity in HIGHER_IS_BETTER)


def gather(series: Sequence[Series], groups: Sequence[str], found: Sequence[Found]) -> list[Event]:
    """Changes as events, in the order of time.

    Args:
        series: what was judged.
        groups: by place, what the exact quantities and times of one machine have in common.
        found: the changes. No alarm rests on what is possible, but what is possible may belong to one.
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
    """Changes that have a run in common, with the runs that all of them have: the largest such cluster first."""
    left = [(*one.span(series), one) for one in found]
    clusters: list[tuple[list[Found], int, int]] = []
    while left:
        run = _most_common(left)
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


def _most_common(rows: Sequence[tuple[int, int, Found]]) -> int:
    """The run that most intervals hold; the earliest of several."""
    steps = Counter(first for first, _, _ in rows)
    steps.subtract(last + 1 for _, last, _ in rows)
    runs = sorted(steps)
    depths = list(accumulate(steps[run] for run in runs))
    return runs[depths.index(max(depths))]


def _joined(series: Sequence[Series], events: Sequence[Event]) -> list[Event]:
    """The same with fewer: exact changes belong to the event in time that they explain, possible ones to an alarm.

    Only what is certain says where an event lies.
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
    """Whether an event is part of another one: one direction, perhaps one run, and no times of two machines."""
    if (event.group, event.is_worse, event.is_machines) != (other.group, other.is_worse, other.is_machines):
        return False  # the machine's hide nothing of the code's: what needs something else is other code
    own, others = _timed(series, event), _timed(series, other)
    same_place = not own or not others or not own.isdisjoint(others)
    return same_place and event.first <= other.last and other.first <= event.last


def _timed(series: Sequence[Series], event: Event) -> set[int]:
    """The machines whose times changed in an event."""
    return {series[one.series].place for one in event.members if not series[one.series].is_exact}


def _note_returns(events: Sequence[Event]) -> None:
    """Note which event undoes which: each member that came back, and what most of an event's members came back to."""
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
