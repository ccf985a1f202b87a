"""Patterns of what layers do, for any number of layers.

``find_patterns`` finds the patterns in traces, and ``unroll`` lays the patterns out as a trace.

A pattern states a layer's number only as a distance: from the first layer, from the last layer, from the layer that
refers to it, or from the referring layer's mirror image.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from perflab.predicted.trace.trace import Alloc, Layer, Op, Use


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
    growth: tuple[int, int, int] | None
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
