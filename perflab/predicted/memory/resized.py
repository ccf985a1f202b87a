"""Computes the peak at other sizes from two or three traces. Pure.

A tensor's bytes are a polynomial of the batch size (of degree 1) and of the context length (2: naive attention). Where
a call does the same at each size, block by block, its peak at another follows: each block is interpolated by itself,
and only then is the highest level looked for. So it bends where one moment takes over from another as the worst.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from perflab.predicted.memory.account import rounded_as_on_cuda
from perflab.predicted.trace.trace import Alloc, Free, Trace


@dataclass(frozen=True)
class Outline:
    """What of a trace decides its peak."""

    sizes: tuple[int, ...]
    """Of each block, in the order in which they came."""
    steps: tuple[int, ...]
    """A block that came, by its place in ``sizes``; or ``~place`` of one that went."""

    def peak_bytes(self) -> int:
        """The highest level."""
        return _peak(list(map(rounded_as_on_cuda, self.sizes)), self.steps)


def outline_of(trace: Trace) -> Outline:
    """The outline of a trace."""
    places: dict[int, int] = {}
    sizes: list[int] = []
    steps: list[int] = []
    for event in (*trace.held, *trace.events):
        if isinstance(event, Alloc):
            places[event.block] = len(sizes)
            steps.append(len(sizes))
            sizes.append(event.size_bytes)
        elif isinstance(event, Free):
            steps.append(~places[event.block])
    return Outline(tuple(sizes), tuple(steps))


@dataclass(frozen=True)
class Interpolated:
    """The peak by size, through outlines of two sizes or more that do the same.

    Args:
        outlines: by size; of a polynomial of degree n, n + 1 are enough.
    """

    outlines: Mapping[int, Outline]

    @cached_property
    def holds(self) -> bool:
        """Whether the calls do the same, block by block."""
        return len({outline.steps for outline in self.outlines.values()}) == 1

    @cached_property
    def _columns(self) -> list[tuple[int, ...]]:
        return list(zip(*(outline.sizes for outline in self.outlines.values()), strict=True))

    def peak_bytes(self, size: int) -> int:
        """The peak at a size, traced or not."""
        at = _polynomial(tuple(self.outlines), size)
        found = {column: rounded_as_on_cuda(max(0, at(column))) for column in set(self._columns)}
        steps = next(iter(self.outlines.values())).steps
        return _peak([found[column] for column in self._columns], steps)


def _polynomial(points: tuple[int, ...], size: int) -> Callable[[tuple[int, ...]], int]:
    """Lagrange's form, in whole numbers but for the last division."""
    weights = []
    for point in points:
        above = below = 1
        for other in points:
            if other != point:
                above, below = above * (size - other), below * (point - other)
        weights.append((above, below))
    common = 1
    for _, below in weights:
        common *= below
    shares = [above * (common // below) for above, below in weights]
    return lambda values: round(sum(share * value for share, value in zip(shares, values, strict=True)) / common)


def _peak(sizes: list[int], steps: tuple[int, ...]) -> int:
    level = peak = 0
    for step in steps:
        if step >= 0:
            level += sizes[step]
            if level > peak:
                peak = level
        else:
            level -= sizes[~step]
    return peak
