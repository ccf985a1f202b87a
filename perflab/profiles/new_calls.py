"""Finds an operator's new calls and gone calls: the calls of two profiles are matched by shapes and line. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

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
