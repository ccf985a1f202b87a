"""Patterns of what layers do, for any number of layers, found in two traces of which the second has one layer more.

A sweep's visits follow up to four patterns: one for the first layer, one for the last, one for all layers between, and
one for a layer between that ends a sweep, since events after the sweep belong to its last visit. Each pattern is
learned from all its copies in the two traces, and the copies must agree: the layers between match to the byte; an event
that belongs to no layer may grow by a constant with every layer. ``unroll`` lays the patterns out as a trace.

A pattern states a layer's number only as a distance: from the first layer, from the last layer, from the layer that
refers to it, or from the referring layer's mirror image."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from perflab.predicted.trace.sweeps import Cut, Sweep
from perflab.predicted.trace.trace import Alloc, Event, Free, Layer, Op, Use


class NotPeriodic(Exception):  # noqa: N818 - an answer, not a mistake
    """The layers do not repeat in a way that ``unroll`` supports. The message states why, for readers of tracebacks."""


class Line(NamedTuple):
    """A layer's number relative to a referring layer.

    The number is counted from the first layer, the last layer, the referring layer, or the referring layer's mirror
    image.
    """

    of_number: int
    of_last: int
    constant: int

    def at(self, number: int, last: int) -> int:
        """Return the number, given the referring layer's number and the last number of the stack referred to."""
        return self.of_number * number + self.of_last * last + self.constant


_LINES = ((0, 0), (0, 1), (1, 0), (-1, 1))


def line_through(seen: Collection[tuple[int, int, int]]) -> Line | None:
    """Return the line through all triples (referring number, last number, number referred to); None if none fits."""
    for of_number, of_last in _LINES:
        constants = {value - of_number * number - of_last * last for number, last, value in seen}
        if len(constants) == 1:
            return Line(of_number, of_last, constants.pop())
    return None


@dataclass(frozen=True, slots=True)
class Course:
    """The path of a sweep, for any number of layers; the sweep ``grows`` if each further layer adds a visit."""

    stack: str | None
    first: Line
    last: Line
    step: int
    grows: bool

    def numbers(self, last: int) -> range:
        """Return the numbers of the sweep's layers in order; ``last`` is the number of the stack's last layer."""
        return range(self.first.at(0, last), self.last.at(0, last) + self.step, self.step)

    def pattern(self, number: int, last: int) -> str:
        """Return the name of a layer's pattern: its role, or the visit's position in a sweep that does not grow."""
        if not self.grows:
            return str((number - self.first.at(0, last)) * self.step)
        return self.role(number, last)

    def role(self, number: int, last: int) -> str:
        """Return ``first``, ``middle`` or ``last`` of the stack, or ``tail`` for a middle layer that ends the sweep."""
        role = role_of(number, last)
        return "tail" if self.grows and role == "middle" and number == self.last.at(0, last) else role


def role_of(number: int, last: int) -> str:
    """Return ``first``, ``middle`` or ``last`` by a layer's place in its stack."""
    return "first" if number == 0 else "last" if number == last else "middle"


class Tag(NamedTuple):
    """The layer that an event is tagged with, in a stack that is unrolled."""

    stack: str
    line: Line


OWN = Line(1, 0, 0)
"""The line from a layer to itself."""


@dataclass(frozen=True, slots=True)
class Did:
    """A pattern's step that runs an operator. ``growth``: FLOPs, bytes moved and launches per additional layer."""

    op: Op
    tag: Tag | Layer | None
    growth: tuple[int, int, int]
    has_lists: bool = False
    """Whether the operator takes lists whose growth is known; the launches then follow from the lists."""


@dataclass(frozen=True, slots=True)
class Made:
    """A pattern's step that allocates a block.

    ``growth`` is in bytes per additional layer, ``shape_growth`` in elements per side of the saved tensor.
    """

    alloc: Alloc
    tag: Tag | Layer | None
    growth: int
    use: Use | None
    shape_growth: tuple[int, ...] | None
    lasting: bool
    """Whether the block belongs to the call's result."""


@dataclass(frozen=True, slots=True)
class Freed:
    """A pattern's step that frees a block."""

    tag: Tag | Layer | None
    stack: str | None
    """The stack of the layer that made the block; None if no layer made it."""
    line: Line
    """The number of the layer that made the block, relative to the layer that frees it."""
    targets: Mapping[str, tuple[int, int]]
    """The sweep that made the block and the number of blocks made before it in that visit, by the role of the layer."""


Step = Did | Made | Freed


@dataclass(frozen=True, slots=True)
class Pattern:
    """A sweep for any number of layers: the sweep's course, and the steps of a visit by the name of its pattern."""

    course: Course
    visits: Mapping[str, tuple[Step, ...]]


@dataclass(frozen=True, slots=True)
class _Copy:
    """One visit of a layer in a trace; ``number`` is the layer's number."""

    cut: Cut
    number: int
    visit: Sequence[Event]


def find_patterns(few: Cut, more: Cut) -> list[Pattern]:
    """Return the patterns of two traces that are cut along the same stacks; ``more`` has one layer more than ``few``.

    Raises:
        NotPeriodic: the traces have no patterns in common.
    """
    if len(few.sweeps) != len(more.sweeps) or few.held_sweeps != more.held_sweeps:
        raise NotPeriodic("with one layer more the call goes over its layers more or less often")
    courses = [_course(few, a, more, b) for a, b in zip(few.sweeps, more.sweeps, strict=True)]
    patterns = []
    for index, course in enumerate(courses):
        copies: dict[str, list[_Copy]] = {}
        for cut in (few, more):
            last = cut.last(course.stack)
            for number, visit in zip(course.numbers(last), cut.sweeps[index].visits, strict=True):
                copies.setdefault(course.pattern(number, last), []).append(_Copy(cut, number, visit))
        patterns.append(Pattern(course, _visits(course, copies, courses, more)))
    return patterns


def _course(few: Cut, a: Sweep, more: Cut, b: Sweep) -> Course:
    grown = len(b.visits) - len(a.visits)
    if a.stack == b.stack and grown in (0, 1):
        first = line_through([(0, few.last(a.stack), a.number), (0, more.last(b.stack), b.number)])
        last = line_through([(0, few.last(a.stack), a.last), (0, more.last(b.stack), b.last)])
        if first and last and (a.step == b.step or len(a.visits) == 1):
            return Course(a.stack, first, last, b.step, grown == 1)
    raise NotPeriodic("with one layer more the call takes another way over its layers")


def _visits(
    course: Course, copies: Mapping[str, Sequence[_Copy]], courses: Sequence[Course], more: Cut
) -> dict[str, tuple[Step, ...]]:
    if course.grows and "middle" not in copies:
        raise NotPeriodic("too few layers were run to see what the ones between do")
    visits = {}
    for name, found in copies.items():
        seen, middle = list(found), course.grows and name == "middle"
        if middle and len(seen) < 3:
            length = len(seen[0].visit)  # the last visit begins with the events of a middle visit
            seen = [_Copy(one.cut, one.number, one.visit[:length]) for one in copies.get("tail", ())] + seen
        if len(seen) < 2 or seen[-1].cut is not more:
            raise NotPeriodic("what a layer does was seen only once")
        _ask_equal([[_plain(event) for event in one.visit] for one in seen])
        places = range(len(seen[-1].visit))
        visits[name] = tuple(_step(seen, index, courses, may_grow=not middle) for index in places)
    return visits


def _plain(event: Event) -> tuple[object, ...]:
    """Return the attributes of an event that are equal in all alike layers."""
    if isinstance(event, Op):
        return event.name, event.place, event.dtype
    if isinstance(event, Alloc):
        return event.operator, event.place
    return ()


def _ask_equal(values: Sequence[object]) -> None:
    """Raise ``NotPeriodic`` unless all values are equal."""
    if any(value != values[-1] for value in values):
        raise NotPeriodic("layers differ")


def _step(seen: Sequence[_Copy], index: int, courses: Sequence[Course], may_grow: bool) -> Step:
    events = [copy.visit[index] for copy in seen]
    tag = _tag(seen, events)
    grown = may_grow and not isinstance(tag, Tag)
    now = events[-1]
    if isinstance(now, Op):
        values = [(op.flops, op.bytes_moved, op.launches) for op in events if isinstance(op, Op)]
        if not grown:
            _ask_equal(values)
        x, y = values[0], values[-1]
        growth = (y[0] - x[0], y[1] - x[1], y[2] - x[2])
        return Did(now, tag, growth, _have_lists(seen, events))
    if isinstance(now, Alloc):
        return _made(seen, [event for event in events if isinstance(event, Alloc)], tag, grown)
    return _freed(seen, [event for event in events if isinstance(event, Free)], tag, courses)


def _have_lists(seen: Sequence[_Copy], events: Sequence[Event]) -> bool:
    """Whether ``Lists.with_layers`` derives the lists of every copy of an operator from those of the last copy."""
    last, layers = events[-1], seen[-1].cut.trace.layers
    if not isinstance(last, Op) or last.lists is None:
        return False
    return all(
        isinstance(one, Op) and one.lists == last.lists.with_layers(layers, copy.cut.trace.layers)
        for one, copy in zip(events, seen, strict=True)
    )


def _tag(seen: Sequence[_Copy], events: Sequence[Event]) -> Tag | Layer | None:
    tag = events[-1].layer
    if tag is None or tag.stack not in seen[-1].cut.stacks:
        if all(event.layer == tag for event in events):
            return tag
    elif all(event.layer is not None and event.layer.stack == tag.stack for event in events):
        numbers = [event.layer.number for event in events if event.layer is not None]
        line = line_through([(one.number, one.cut.last(tag.stack), n) for one, n in zip(seen, numbers, strict=True)])
        if line is not None:
            return Tag(tag.stack, line)
    raise NotPeriodic("what layers do belongs to other layers")


def _made(seen: Sequence[_Copy], allocs: Sequence[Alloc], tag: Tag | Layer | None, grown: bool) -> Made:
    traces = [copy.cut.trace for copy in seen]
    uses = [trace.uses.get(alloc.block) for trace, alloc in zip(traces, allocs, strict=True)]
    lasting = [alloc.block in trace.result_blocks for trace, alloc in zip(traces, allocs, strict=True)]
    sizes = [alloc.size_bytes for alloc in allocs]
    shape_growth = _shape_growth(uses[0], uses[-1]) if grown else None
    if not grown:
        _ask_equal(sizes)
    if shape_growth is None:
        _ask_equal(uses)
    _ask_equal(lasting)
    return Made(allocs[-1], tag, sizes[-1] - sizes[0], uses[-1], shape_growth, lasting[-1])


def _shape_growth(one: Use | None, other: Use | None) -> tuple[int, ...] | None:
    """Return the growth of each side of the saved tensor.

    None if the uses are equal, one has no saved tensor, or they differ in more than the lengths of the sides.
    """
    if one == other or one is None or other is None or one.saved is None or other.saved is None:
        return None
    if one.category != other.category or one.saved._replace(shape=other.saved.shape) != other.saved:
        return None
    if len(one.saved.shape) != len(other.saved.shape):
        return None
    return tuple(b - a for a, b in zip(one.saved.shape, other.saved.shape, strict=True))


def _freed(seen: Sequence[_Copy], frees: Sequence[Free], tag: Tag | Layer | None, courses: Sequence[Course]) -> Freed:
    places = [copy.cut.made[free.block] for copy, free in zip(seen, frees, strict=True)]
    stacks = {courses[place.sweep].stack for place in places}
    stack = stacks.pop()
    line = line_through(
        [(copy.number, copy.cut.last(stack), place.number) for copy, place in zip(seen, places, strict=True)]
    )
    targets: dict[str, tuple[int, int]] = {}
    clear = not stacks
    for copy, place in zip(seen, places, strict=True):
        role = courses[place.sweep].role(place.number, copy.cut.last(stack))
        clear = clear and targets.setdefault(role, (place.sweep, place.ordinal)) == (place.sweep, place.ordinal)
    if not clear or line is None:
        raise NotPeriodic("layers free blocks that were made elsewhere")
    return Freed(tag, stack, line, targets)
