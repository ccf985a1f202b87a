"""Facts of the code: operators that are called more or less often than in another profile, or on other shapes. Pure.

The calls of an operator in two profiles are matched by shapes and line; what is left on a side is gone or new.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import hypot

from perflab.results.profile import SAME, UNNAMED, VARY, ProfileRow

Place = tuple[str, str]
"""The input shapes and the line of a call."""
_NONE = 0.02
"""The mean number of calls up to which no call is left: numbers of calls are rounded."""


@dataclass
class Calls:
    """An operator's calls at one place, in one call of the case.

    Calls that are left over from a match have their share of the time.
    """

    instances: float = 0.0
    time_ns: float = 0.0
    spread_ns: float = 0.0

    def add(self, other: Calls | ProfileRow) -> None:
        """Add other calls; spreads are added as squares."""
        self.instances += other.instances
        self.time_ns += other.time_ns
        self.spread_ns = hypot(self.spread_ns, other.spread_ns)


@dataclass(frozen=True)
class Unmatched:
    """Calls that only one of two profiles has."""

    gone: dict[Place, Calls]
    come: dict[Place, Calls]

    @property
    def change_ns(self) -> float:
        """The time of new calls minus the time of gone calls, in nanoseconds.

        Calls that both profiles have do not count, however much longer they take.
        """
        return sum(one.time_ns for one in self.come.values()) - sum(one.time_ns for one in self.gone.values())

    @property
    def more(self) -> float:
        """How many more calls there are now; negative: fewer."""
        return sum(one.instances for one in self.come.values()) - sum(one.instances for one in self.gone.values())

    def by_line(self, shifts: Shifts) -> dict[str, Unmatched]:
        """Return the unmatched calls of each line, by the line as it stands now."""
        found: dict[str, Unmatched] = defaultdict(lambda: Unmatched({}, {}))
        for place, one in self.come.items():
            found[place[1]].come[place] = one
        for place, one in self.gone.items():
            found[shifts.now(place[1])].gone[place] = one
        return found


class Shifts:
    """The current places of the base's lines, as shown by operators that are called as before.

    ``pairs`` are lines of the base, ``net.py:9``, each with the line of the same calls now.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        votes: dict[tuple[str, int], Counter[int]] = defaultdict(Counter)
        for before, now in pairs:
            (file, number), (other_file, other) = parsed(before), parsed(now)
            if file == other_file and number and other:
                votes[file, number][other - number] += 1
        self._by_file: dict[str, dict[int, int]] = defaultdict(dict)
        for (file, number), found in votes.items():
            self._by_file[file][number] = found.most_common(1)[0][0]

    def now(self, line: str) -> str:
        """Return a line of the base moved as far as the nearest known line of its file; unchanged if none is known."""
        file, number = parsed(line)
        known = self._by_file.get(file, {})
        if not known or not number:
            return line
        nearest = min(known, key=lambda one: (abs(one - number), one))
        return f"{file}:{number + known[nearest]}"


def parsed(line: str) -> tuple[str, int]:
    """Return the file and the number of a line, ``net.py:9``; the number is 0 if the line has none."""
    file, _, number = line.rpartition(":")
    return file, int(number) if number.isdecimal() else 0


def same_calls(before: Mapping[Place, Calls], now: Mapping[Place, Calls]) -> Iterator[tuple[str, str]]:
    """Yield pairs of lines, before and now, that have as many calls on the same shapes, in the order of lines."""
    old, new = _by_shapes(before), _by_shapes(now)
    for shapes, there in old.items():
        here = new.get(shapes, [])
        if [often for _, often in there] == [often for _, often in here]:
            yield from ((was, now_is) for (was, _), (now_is, _) in zip(there, here, strict=True))


def _by_shapes(calls: Mapping[Place, Calls]) -> dict[str, list[tuple[str, float]]]:
    found: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for (shapes, line), one in sorted(calls.items(), key=lambda item: parsed(item[0][1])):
        found[shapes].append((line, one.instances))
    return found


def unmatched(before: Mapping[Place, Calls], now: Mapping[Place, Calls], shifts: Shifts) -> Unmatched:
    """Return the calls of two profiles that have no counterpart on the same shapes in the other profile.

    Calls are matched on the same line first, then on any line, since lines move.
    """
    left_before = {place: one.instances for place, one in before.items()}
    left_now = {place: one.instances for place, one in now.items()}
    same_line = [(place, (place[0], shifts.now(place[1]))) for place in before]
    same_shapes = [(old, new) for old in before for new in now if old[0] == new[0]]
    for old, new in (*same_line, *same_shapes):
        both = min(left_before[old], left_now.get(new, 0.0))
        if both > 0:
            left_before[old] -= both
            left_now[new] -= both
    return Unmatched(_left(before, left_before), _left(now, left_now))


def _left(calls: Mapping[Place, Calls], left: Mapping[Place, float]) -> dict[Place, Calls]:
    return {
        place: Calls(left[place], one.time_ns * left[place] / one.instances)
        for place, one in calls.items()
        if left[place] > _NONE
    }


_WHOLE = 0.02
"""How far a mean number of calls may be from a whole number if the work is the same in each call."""
HALF = 0.5
"""The change in an operator's number of calls up to which it is called as often as before. Also the share of the
further calls that a caller must exceed to be named."""


@dataclass
class Total(Calls):
    """The sums of one operator in one module and phase of a profile."""

    category: str = ""
    shapes: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    calls: dict[Place, Calls] = field(default_factory=lambda: defaultdict(Calls))
    within: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))

    @property
    def line(self) -> str:
        """The line that takes most of the operator's time."""
        return _longest(self.calls)

    @property
    def direct(self) -> dict[str, float]:
        """The number of calls on each line that run within no other operator."""
        return {line: often for (line, within), often in self.within.items() if not within}

    @property
    def varies(self) -> bool:
        """Whether the operator is called on other shapes, or another number of times, from call to call."""
        return not all(is_whole(often) for often in (self.instances, *self.shapes.values()))

    def inputs_of(self, before: Total) -> str:
        """Compare the operator's inputs with those of ``before``, an operator of which no fact is known.

        Return ``VARY`` if shapes or numbers of calls vary, ``SAME`` if shapes are known and equal, or else ``""``.
        """
        if self.varies or before.varies:
            return VARY
        is_known = any(self.shapes) or any(before.shapes)
        return SAME if is_known and self.shapes.keys() == before.shapes.keys() else ""


Key = tuple[str, str, str]
"""An operator's name, module and phase."""


@dataclass(frozen=True)
class Change:
    """A change in the calls of one operator in one module and phase, and on one line if the line is known."""

    key: Key
    more: float
    """How many more calls, negative for fewer; 0: as many as before."""
    change_ns: float
    category: str
    line: str
    """The operator's line in the version that has more of these calls."""
    spot: str
    """The line's place in the current version."""
    shapes: str = ""
    within: str = ""
    """The operator that makes most of the further, or missing, calls; ``""``: none."""


def totals_of(rows: Iterable[ProfileRow]) -> dict[Key, Total]:
    """Sum the rows of a profile by operator, module and phase."""
    found: dict[Key, Total] = {}
    for row in rows:
        name = row.operator or (row.category if row.category in UNNAMED else row.kernel or row.category)
        total = found.setdefault((name, row.module, row.phase), Total())
        total.add(row)
        total.category = row.category
        total.shapes[row.shapes] += row.instances
        total.calls[row.shapes, row.line].add(row)
        total.within[row.line, row.within] += row.instances
    return found


def facts_of(before: Mapping[Key, Total], now: Mapping[Key, Total]) -> list[Change]:
    """Return all facts of the code in which two profiles differ, in no particular order."""
    shifts = shifts_of(before, now)
    return [one for key in {**before, **now} for one in _facts(key, before.get(key), now.get(key), shifts)]


def shifts_of(before: Mapping[Key, Total], now: Mapping[Key, Total]) -> Shifts:
    """Return where lines of the profile before stand in the profile now."""
    both = [key for key in before if key in now]
    return Shifts(pair for key in both for pair in same_calls(before[key].calls, now[key].calls))


def _facts(key: Key, before: Total | None, now: Total | None, shifts: Shifts) -> Iterator[Change]:
    """Yield the changes of one operator: it is called more or less often, or on other shapes."""
    old, new = before or Total(), now or Total()
    if key[0] in UNNAMED or not all(is_whole(one.instances) for one in (old, new)):
        return  # the work differs from call to call, such as logging every few steps
    # Shapes that vary from call to call are ignored.
    calls, calls_now = (_without_shapes(one) if old.varies or new.varies else one.calls for one in (old, new))
    more, apart = new.instances - old.instances, unmatched(calls, calls_now, shifts)
    if abs(more) > HALF:
        by_line = apart.by_line(shifts)
        if not all(is_whole(one.more) for one in by_line.values()):
            by_line = {"": apart}
        for spot, one in by_line.items():
            is_more_or_less = abs(one.more) > HALF
            if not is_more_or_less and not (one.gone and one.come):
                continue
            line = _longest(one.gone if one.more < -HALF else one.come)
            shapes = "" if is_more_or_less else f"{min(one.gone)[0]} -> {min(one.come)[0]}"
            within = _caller(old, new, one.more, shifts, spot if len(by_line) > 1 else None)
            category, change_ns = (now or old).category, round(one.change_ns, 1)
            yield Change(key, round(one.more, 2), change_ns, category, line, spot or line, shapes, within)
        return
    gone, come = (_more_shapes(old, new), _more_shapes(new, old))
    direct = sum(new.direct.values()) - sum(old.direct.values())
    if (
        not (gone and come)
        and direct > HALF
        and all(is_whole(often) for one in (old, new) for often in one.direct.values())
    ):
        # As many calls as before, which another operator made: a loop in place of ``_foreach``.
        line = max(new.direct, key=lambda one: new.direct[one])
        yield Change(key, round(direct, 2), round(new.time_ns - old.time_ns, 1), new.category, line, line)
        return
    if gone and come:
        change_ns = apart.change_ns if apart.come else new.time_ns - old.time_ns
        line = _longest(apart.come) or new.line
        yield Change(key, 0.0, round(change_ns, 1), new.category, line, line, f"{min(gone)} -> {min(come)}")


def _caller(old: Total, new: Total, more: float, shifts: Shifts, spot: str | None) -> str:
    """Return the operator that makes most of the further calls on a line; ``""`` if there is none.

    ``spot`` is where the line stands now; None: calls on any line count.
    """
    callers: dict[str, float] = defaultdict(float)
    for (line, name), often in new.within.items():
        callers[name] += often if spot in (None, line) else 0.0
    for (line, name), often in old.within.items():
        callers[name] -= often if spot in (None, shifts.now(line)) else 0.0
    most = max(callers, key=lambda one: callers[one] * more, default="")
    return most if more and callers[most] / more > HALF else ""


def _without_shapes(total: Total) -> dict[Place, Calls]:
    found: dict[Place, Calls] = defaultdict(Calls)
    for (_, line), one in total.calls.items():
        found["", line].add(one)
    return found


def _longest(calls: Mapping[Place, Calls]) -> str:
    """Return the line on which these calls take most time."""
    lines: dict[str, float] = defaultdict(float)
    for (_, line), one in calls.items():
        lines[line] += one.time_ns
    return max(lines, key=lambda one: lines[one], default="")


def is_whole(often: float) -> bool:
    """Whether a mean number of calls is so close to a whole number that it can be the number in each call."""
    return abs(often - round(often)) <= _WHOLE


def _more_shapes(one: Total, other: Total) -> set[str]:
    """Return the shapes on which ``one`` is called more often than ``other`` in each call.

    A mean number of calls that is not whole shows shapes that vary from call to call, which are left out.
    """
    both = {shapes: (one.shapes[shapes], other.shapes.get(shapes, 0.0)) for shapes in one.shapes if shapes}
    return {
        shapes
        for shapes, (often, before) in both.items()
        if often - before > HALF and all(is_whole(count) for count in (often, before))
    }
