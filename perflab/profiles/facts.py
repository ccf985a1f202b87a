"""What the code of one profile does otherwise: operators more or less often, or on other shapes. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import hypot

from perflab.profiles.new_calls import Calls, Place, Shifts, Unmatched, same_calls, unmatched
from perflab.profiles.records import SAME, UNNAMED, VARY, ProfileRow

_WHOLE = 0.02
"""How far a mean number of calls may be from a whole number: work that is not the same in each call has no such one."""
HALF = 0.5
"""Of a call: fewer more of an operator is none. Of the further calls: the share that a caller must make to be named."""


@dataclass
class Total:
    """One operator in one module and phase of a profile."""

    instances: float = 0.0
    time_ns: float = 0.0
    spread_ns: float = 0.0
    category: str = ""
    shapes: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    calls: dict[Place, Calls] = field(default_factory=lambda: defaultdict(Calls))
    within: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, row: ProfileRow) -> None:
        """One row of it."""
        self.instances += row.instances
        self.time_ns += row.time_ns
        self.spread_ns = hypot(self.spread_ns, row.spread_ns)
        self.category = row.category
        self.shapes[row.shapes] += row.instances
        calls = self.calls[row.shapes, row.line]
        calls.instances += row.instances
        calls.time_ns += row.time_ns
        self.within[row.within] += row.instances

    @property
    def line(self) -> str:
        """That which takes most of its time."""
        return _longest(self.calls)

    @property
    def varies(self) -> bool:
        """Whether it is called on other shapes, or another number of times, from call to call."""
        return not all(is_whole(often) for often in (self.instances, *self.shapes.values()))

    def inputs_of(self, before: Total) -> str:
        """Whether they are those of ``before``, of which no fact is known: that they are the same, or vary."""
        if self.varies or before.varies:
            return VARY
        is_known = any(self.shapes) or any(before.shapes)
        return SAME if is_known and self.shapes.keys() == before.shapes.keys() else ""


Key = tuple[str, str, str]
"""Operator, module, phase."""


@dataclass(frozen=True)
class Change:
    """What is otherwise of one operator in one module and phase."""

    key: Key
    more: float
    """How many more calls; 0: as many."""
    change_ns: float
    category: str
    line: str
    shapes: str = ""
    within: str = ""
    """The operator that calls it, where most of the change in number is within that one."""


def totals_of(rows: Iterable[ProfileRow]) -> dict[Key, Total]:
    """The rows of a profile by operator, module and phase."""
    found: dict[Key, Total] = {}
    for row in rows:
        name = row.operator or (row.category if row.category in UNNAMED else row.kernel or row.category)
        found.setdefault((name, row.module, row.phase), Total()).add(row)
    return found


def facts_of(before: Mapping[Key, Total], now: Mapping[Key, Total]) -> list[Change]:
    """All of them, in no order that means anything."""
    both = [key for key in before if key in now]
    shifts = Shifts(pair for key in both for pair in same_calls(before[key].calls, now[key].calls))
    found = (_fact(key, before.get(key), now.get(key), shifts) for key in {**before, **now})
    return [one for one in found if one is not None]


def _fact(key: Key, before: Total | None, now: Total | None, shifts: Shifts) -> Change | None:
    """What the code does otherwise: an operator more or less often, or on other shapes."""
    if key[0] in UNNAMED:
        return None
    old, new = before or Total(), now or Total()
    more = new.instances - old.instances
    if not all(is_whole(one.instances) for one in (old, new)):
        return None  # not the same in each call: logging every few steps, say
    apart = _apart(old, new, shifts)
    if abs(more) > HALF:
        shown = now or old
        callers = {one: new.within.get(one, 0.0) - old.within.get(one, 0.0) for one in {**old.within, **new.within}}
        caller = max(callers, key=lambda one: callers[one] / more)
        within = caller if callers[caller] / more > HALF else ""
        line = _longest(apart.come if more > 0 else apart.gone)
        return Change(key, round(more, 2), round(apart.change_ns, 1), shown.category, line, within=within)
    gone, come = (_more_shapes(old, new), _more_shapes(new, old))
    if gone and come:
        said = f"{min(gone)} -> {min(come)}"
        change_ns = apart.change_ns if apart.come else new.time_ns - old.time_ns
        return Change(key, 0.0, round(change_ns, 1), new.category, _longest(apart.come) or new.line, said)
    return None


def _apart(old: Total, new: Total, shifts: Shifts) -> Unmatched:
    """What only one of them has. Where shapes vary from call to call, they tell no calls apart."""
    before, now = (_without_shapes(one) if old.varies or new.varies else one.calls for one in (old, new))
    return unmatched(before, now, shifts)


def _without_shapes(total: Total) -> dict[Place, Calls]:
    found: dict[Place, Calls] = defaultdict(Calls)
    for (_, line), one in total.calls.items():
        found["", line].instances += one.instances
        found["", line].time_ns += one.time_ns
    return found


def _longest(calls: Mapping[Place, Calls]) -> str:
    """The line that takes most of their time."""
    lines: dict[str, float] = defaultdict(float)
    for (_, line), one in calls.items():
        lines[line] += one.time_ns
    return max(lines, key=lambda one: lines[one], default="")


def is_whole(often: float) -> bool:
    """Whether a mean number of calls can be that of each call."""
    return abs(often - round(often)) <= _WHOLE


def _more_shapes(one: Total, other: Total) -> set[str]:
    """Shapes on which one is called more often than the other in each call: where they vary, the mean is not whole."""
    both = {shapes: (one.shapes[shapes], other.shapes.get(shapes, 0.0)) for shapes in one.shapes if shapes}
    return {
        shapes
        for shapes, (often, before) in both.items()
        if often - before > HALF and all(is_whole(count) for count in (often, before))
    }
