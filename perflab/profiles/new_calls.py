"""Which calls of an operator are new and which are gone: those of two profiles matched by shapes and line. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

Place = tuple[str, str]
"""Shapes and line."""
_NONE = 0.02
"""So small a mean number of calls is none: numbers of calls are rounded."""


@dataclass
class Calls:
    """Of an operator at one place, in one call of the case; those that are left over have their share of the time."""

    instances: float = 0.0
    time_ns: float = 0.0
    spread_ns: float = 0.0


@dataclass(frozen=True)
class Unmatched:
    """What only one of two profiles has."""

    gone: dict[Place, Calls]
    come: dict[Place, Calls]

    @property
    def change_ns(self) -> float:
        """What takes part in both is no part of this, however much longer it takes."""
        return sum(one.time_ns for one in self.come.values()) - sum(one.time_ns for one in self.gone.values())

    @property
    def more(self) -> float:
        """How many more calls."""
        return sum(one.instances for one in self.come.values()) - sum(one.instances for one in self.gone.values())

    def by_line(self, shifts: Shifts) -> dict[str, Unmatched]:
        """The same of each line, as it stands now."""
        found: dict[str, Unmatched] = defaultdict(lambda: Unmatched({}, {}))
        for place, one in self.come.items():
            found[place[1]].come[place] = one
        for place, one in self.gone.items():
            found[shifts.now(place[1])].gone[place] = one
        return found


class Shifts:
    """Where lines of the base stand now, as shown by what is called as before.

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
        """The line as the nearest known one of its file has moved; where none is known, the same."""
        file, number = parsed(line)
        known = self._by_file.get(file, {})
        if not known or not number:
            return line
        nearest = min(known, key=lambda one: (abs(one - number), one))
        return f"{file}:{number + known[nearest]}"


def parsed(line: str) -> tuple[str, int]:
    """File and number of a line."""
    file, _, number = line.rpartition(":")
    return file, int(number) if number.isdecimal() else 0


def same_calls(before: Mapping[Place, Calls], now: Mapping[Place, Calls]) -> Iterator[tuple[str, str]]:
    """Pairs of lines whose calls on the same shapes are as many as before, in the order in which they stand."""
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
    """Calls on the same shapes are the same: those on the same line first, then whatever line they moved to."""
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
