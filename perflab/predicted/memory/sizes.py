"""Computes the peak at other sizes from two or three traces, and finds the largest size that fits. Pure.

A tensor's bytes are a polynomial of the batch size (of degree 1) and of the context length (2: naive attention). If a
call does the same at each size, block by block, its peak at another size can be computed: each block is interpolated
separately, and the highest level is determined afterwards. So the curve of the peak bends at a size where another
moment becomes the worst.

Otherwise sizes are predicted one by one. Peak memory grows with the size, close to a straight line (batch) or a
parabola (context length in naive attention), in steps (blocks are rounded, kernels change). So the next size to predict
is where the curve through the known points meets the available memory. The answer does not depend on the curve:
predictions of the answer and of the size after it prove it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from types import MappingProxyType

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
    common = math.prod(below for _, below in weights)
    shares = [above * (common // below) for above, below in weights]
    return lambda values: round(sum(share * value for share, value in zip(shares, values, strict=True)) / common)


def _peak(sizes: list[int], steps: tuple[int, ...]) -> int:
    return max(accumulate((sizes[step] if step >= 0 else -sizes[~step] for step in steps), initial=0))


MOST = 2**24
"""The largest size that a search considers: no context or batch is longer."""
TRUSTED_CALLS = 10
"""The number of calls in which the curve may choose the size.

A search that has not ended then is bisected: the steps of memory are wider than the curve can show.
"""
_NONE: Mapping[int, int] = MappingProxyType({})


def largest(
    peak_bytes: Callable[[int], int],
    room_bytes: int,
    *,
    start: int,
    step: int = 1,
    known: Mapping[int, int] = _NONE,
) -> int | None:
    """Return the largest multiple of ``step`` whose peak fits into the room; None if ``step`` itself does not fit.

    The answer fits, and the next multiple does not: both were predicted, or follow from a known larger size that fits
    or a known smaller size that does not. The answer never exceeds ``MOST``: an answer of ``MOST``, rounded down to a
    multiple, means "that, or more". If peaks are not quite monotone, the answer is one of the sizes where fitting ends.

    On a straight line, two calls are enough if two points are known, and three if one point is known; a parabola takes
    one call more. The search never takes more than ``TRUSTED_CALLS`` calls beyond a bisection of all sizes up to
    ``MOST``.

    Args:
        peak_bytes: returns the peak memory at a size, in bytes; not decreasing.
        room_bytes: the memory that the peak has to fit into, in bytes.
        start: the first size to try if no point is known, such as the size that is run; 1 or more.
        step: the unit of sizes: the answer is a multiple of it; 1 or more.
        known: peaks in bytes that are known already, by size; these sizes need not be multiples of ``step``.
    """
    points = dict(known)
    # In units of `step`: `fits` is a size that fits, or 0; `over` is one that does not, or the first past the end.
    end = MOST // step + 1
    over = min([end, *(-(-size // step) for size, peak in points.items() if size > 0 and peak > room_bytes)])
    settled = [min(size // step, end - 1) for size, peak in points.items() if peak <= room_bytes]
    fits = max([0, *(number for number in settled if number < over)])
    widths: list[int] = []
    while over - fits > 1:
        widths.append(over - fits)
        at = _meeting(points, room_bytes) if points else float(start)
        if len(widths) > TRUSTED_CALLS or (
            over < end and (at is None or (len(widths) > 3 and 2 * widths[-1] > widths[-4]))
        ):
            # Bisect after many calls, without a curve, or if the last three did not even halve the interval.
            number = (fits + over) // 2
        elif at is None:
            number = min(2 * fits + 1, end - 1)  # no curve: double
        else:
            number = min(max(math.floor(min(at / step, float(end))), fits + 1), over - 1)
        points[number * step] = peak_bytes(number * step)
        if points[number * step] <= room_bytes:
            fits = number
        else:
            over = number
    return fits * step if fits else None


def _meeting(points: Mapping[int, int], room_bytes: int) -> float | None:
    """Return the size at which the curve through the points nearest to the room meets it; None if no size does."""
    near = sorted(points.items(), key=lambda point: (abs(point[1] - room_bytes), point[0]))[:3]
    if len(near) == 1:
        ((size, peak),) = near
        return size * room_bytes / peak if peak > 0 else None
    # Newton's form around the nearest point: left = slope * x + bend * x * (x - second).
    (origin, base), (second, peak), *rest = near
    left, width = room_bytes - base, second - origin
    slope, bend = (peak - base) / width, 0.0
    for third, other in rest:
        bend = ((other - base) / (third - origin) - slope) / (third - second)
    if bend:
        # The root next to the nearest point, in the form that does not cancel: 2c / (b + sqrt(b² + 4ac)).
        linear = slope - bend * width
        inside = linear * linear + 4.0 * bend * left
        if inside >= 0.0 and linear + math.sqrt(inside) > 0.0:
            return origin + 2.0 * left / (linear + math.sqrt(inside))
    return origin + left / slope if slope > 0.0 else None
