"""What the code of one profile does otherwise: operators more or less often, or on other shapes. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import hypot

from perflab.profiles.records import UNNAMED, ProfileRow

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
    lines: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    within: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, row: ProfileRow) -> None:
        """One row of it."""
        self.instances += row.instances
        self.time_ns += row.time_ns
        self.spread_ns = hypot(self.spread_ns, row.spread_ns)
        self.category = row.category
        self.shapes[row.shapes] += row.instances
        self.lines[row.line] += row.time_ns
        self.within[row.within] += row.instances

    @property
    def line(self) -> str:
        """That which takes most of its time."""
        return max(self.lines, key=lambda one: self.lines[one], default="")


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
    return [one for key in {**before, **now} if (one := _fact(key, before.get(key), now.get(key))) is not None]


def _fact(key: Key, before: Total | None, now: Total | None) -> Change | None:
    """What the code does otherwise: an operator more or less often, or on other shapes."""
    if key[0] in UNNAMED:
        return None
    old, new = before or Total(), now or Total()
    more = new.instances - old.instances
    if any(abs(one.instances - round(one.instances)) > _WHOLE for one in (old, new)):
        return None  # not the same in each call: logging every few steps, say
    if abs(more) > HALF:
        if not old.instances or not new.instances:
            change_ns = new.time_ns - old.time_ns
        else:  # the others take as long as they took: what noise adds to them is no part of this
            one = new if more > 0 else old
            change_ns = more * one.time_ns / one.instances
        shown = now or old
        callers = {one: new.within.get(one, 0.0) - old.within.get(one, 0.0) for one in {**old.within, **new.within}}
        caller = max(callers, key=lambda one: callers[one] / more)
        within = caller if callers[caller] / more > HALF else ""
        return Change(key, round(more, 2), round(change_ns, 1), shown.category, shown.line, within=within)
    gone, come = (_more_shapes(old, new), _more_shapes(new, old))
    if gone and come:
        said = f"{min(gone)} -> {min(come)}"
        return Change(key, 0.0, round(new.time_ns - old.time_ns, 1), new.category, new.line, said)
    return None


def _more_shapes(one: Total, other: Total) -> set[str]:
    """Shapes on which one is called more often than the other in each call: where they vary, the mean is not whole."""
    both = {shapes: (one.shapes[shapes], other.shapes.get(shapes, 0.0)) for shapes in one.shapes if shapes}
    return {
        shapes
        for shapes, (often, before) in both.items()
        if often - before > HALF and all(abs(count - round(count)) <= _WHOLE for count in (often, before))
    }
