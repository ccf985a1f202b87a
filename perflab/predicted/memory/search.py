"""Finds the largest size that fits, with few predictions. Pure.

Peak memory grows with the size, close to a straight line (batch) or a parabola (context length in naive attention), in
steps (blocks are rounded, kernels change). So the next size to predict is where the curve through the known points
meets the available memory. The answer does not depend on the curve: predictions of the answer and of the size after it
prove it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

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
    stride = 1
    while over - fits > 1:
        widths.append(over - fits)
        at = _meeting(points, room_bytes) if points else float(start)
        number = _next(at / step if at is not None else None, fits, over, end, stride)
        if len(widths) > TRUSTED_CALLS or (len(widths) > 3 and over < end and 2 * widths[-1] > widths[-4]):
            # Bisect after many calls, or if the last three did not even halve the interval.
            number = (fits + over) // 2
        size = number * step
        points[size] = peak_bytes(size)
        before = fits, over
        if points[size] <= room_bytes:
            fits = number
        else:
            over = number
        # A call beside an answer proves it. If the call moves that end again, the curve is a little off: go further.
        beside = number - before[0] <= stride if fits == number else before[1] - number <= stride
        stride = 2 * stride if beside else 1
    return fits * step if fits else None


def _next(at: float | None, fits: int, over: int, end: int, stride: int) -> int:
    """Return the number of steps to try: where the curve meets the room, but ``stride`` away from settled sizes."""
    if at is None:  # No curve: double, or bisect.
        return min(2 * fits + 1, end - 1) if over == end else (fits + over) // 2
    guess = math.floor(min(at, float(end)))
    nearest, farthest = min(fits + stride, over - 1), max(over - stride, fits + 1)
    if over == end:
        farthest = over - 1
    if nearest > farthest:
        return (fits + over) // 2
    return min(max(guess, nearest), farthest)


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
