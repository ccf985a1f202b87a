"""Patterns of what layers do, for any number of layers.

``find_patterns`` finds them in traces, and ``unroll`` lays them out.

A layer's number stands for itself only in relation: so far from the beginning, from the end, from the layer that looks,
or from that one's mirror image.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from perflab.predicted.trace.trace import Alloc, Layer, Op, Use


class NotPeriodic(Exception):  # noqa: N818 - an answer, not a mistake
    """The layers do not repeat in a way that is understood here. Its text says why, for who reads a traceback."""


class Line(NamedTuple):
    """A layer's number as a layer sees it: counted from the beginning, the end, itself, or its own mirror image."""

    of_number: int
    of_last: int
    constant: int

    def at(self, number: int, last: int) -> int:
        """The number, for the seeing layer's number and the last number of the stack that is looked at."""
        return self.of_number * number + self.of_last * last + self.constant


_LINES = ((0, 0), (0, 1), (1, 0), (-1, 1))


def line_through(seen: Collection[tuple[int, int, int]]) -> Line | None:
    """The line that gives each third number for the first two, if there is one: (seeing, last, seen)."""
    for of_number, of_last in _LINES:
        constants = {value - of_number * number - of_last * last for number, last, value in seen}
        if len(constants) == 1:
            return Line(of_number, of_last, constants.pop())
    return None


@dataclass(frozen=True, slots=True)
class Course:
    """The way of a sweep, for any number of layers."""

    stack: str | None
    first: Line
    last: Line
    step: int
    grows: bool

    def numbers(self, last: int) -> range:
        """Its layers in order, where ``last`` is the stack's last number."""
        return range(self.first.at(0, last), self.last.at(0, last) + self.step, self.step)

    def pattern(self, number: int, last: int) -> str:
        """The name of the pattern that a layer follows: of a sweep that does not grow, each visit has its own."""
        if not self.grows:
            return str((number - self.first.at(0, last)) * self.step)
        return self.role(number, last)

    def role(self, number: int, last: int) -> str:
        """``first``, ``middle`` or ``last`` of its stack, and ``tail`` for a middle one that ends the sweep."""
        role = role_of(number, last)
        return "tail" if self.grows and role == "middle" and number == self.last.at(0, last) else role


def role_of(number: int, last: int) -> str:
    """``first``, ``middle`` or ``last`` of a stack."""
    return "first" if number == 0 else "last" if number == last else "middle"


class Tag(NamedTuple):
    """Which layer of a stack that is unrolled an event is tagged with."""

    stack: str
    line: Line


OWN = Line(1, 0, 0)
"""The layer itself."""


@dataclass(frozen=True, slots=True)
class Did:
    """An operator. ``growth`` is FLOPs, bytes moved and launches with every layer more."""

    op: Op
    tag: Tag | Layer | None
    growth: tuple[int, int, int] | None
    has_lists: bool = False
    """It works on lists, of which it is known how they grow: its launches follow from them."""


@dataclass(frozen=True, slots=True)
class Made:
    """A block that comes to be. ``growth`` is bytes, ``shape_growth`` of the tensor that is saved."""

    alloc: Alloc
    tag: Tag | Layer | None
    growth: int
    use: Use | None
    shape_growth: tuple[int, ...] | None
    lasting: bool
    """It is of the result."""


@dataclass(frozen=True, slots=True)
class Freed:
    """A block that goes."""

    tag: Tag | Layer | None
    stack: str | None
    """Whose layer made it."""
    line: Line
    """Which layer."""
    targets: Mapping[str, tuple[int, int]]
    """By that layer's role: the sweep, and how many blocks the visit had made before."""


Step = Did | Made | Freed


@dataclass(frozen=True, slots=True)
class Pattern:
    """A sweep for any number of layers: its way, and by the names of its patterns what a visit does."""

    course: Course
    visits: Mapping[str, tuple[Step, ...]]
