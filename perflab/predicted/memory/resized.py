"""Computes the peak at other sizes from two or three traces. Pure.

A tensor's bytes are a polynomial of the batch size (of degree 1) and of the context length (2: naive attention). If a
call does the same at each size, block by block, its peak at another size can be computed: each block is interpolated
separately, and the highest level is determined afterwards. So the curve of the peak bends at a size where another
moment becomes the worst.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from perflab.predicted.memory.account import rounded_as_on_cuda
from perflab.predicted.trace.trace import Alloc, Free, Trace


@dataclass(frozen=True)
class Outline:
    """The part of a trace that decides its peak: the blocks' sizes, and the order of allocations and frees."""

    sizes: tuple[int, ...]
    """The bytes requested for each block, in order of allocation."""
    steps: tuple[int, ...]
    """The allocations and frees in order: a block's index in ``sizes`` for an allocation, ``~index`` for a free."""

    def peak_bytes(self) -> int:
        """Return the highest level of live bytes, with block sizes rounded as on CUDA."""
        return _peak(list(map(rounded_as_on_cuda, self.sizes)), self.steps)


def outline_of(trace: Trace) -> Outline:
    """Return the outline of a trace."""
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
    """The peak at any size, interpolated through the outlines of a call at two sizes or more.

    Args:
        outlines: outlines of the call by size; a polynomial of degree n takes n + 1.
    """

    outlines: Mapping[int, Outline]

    @cached_property
    def holds(self) -> bool:
        """Whether the outlines have the same allocations and frees, block by block."""
        return len({outline.steps for outline in self.outlines.values()}) == 1

    @cached_property
    def _columns(self) -> list[tuple[int, ...]]:
        return list(zip(*(outline.sizes for outline in self.outlines.values()), strict=True))

    def peak_bytes(self, size: int) -> int:
        """Return the peak in bytes at a size, traced or not."""
        at = _polynomial(tuple(self.outlines), size)
        found = {column: rounded_as_on_cuda(max(0, at(column))) for column in set(self._columns)}
        steps = next(iter(self.outlines.values())).steps
        return _peak([found[column] for column in self._columns], steps)


def _polynomial(points: tuple[int, ...], size: int) -> Callable[[tuple[int, ...]], int]:
    """Return the function from values at the points to the interpolated value at ``size``.

    The polynomial is in Lagrange's form, computed in integers except for the last division.
    """
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
