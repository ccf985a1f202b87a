"""From the divided time of several calls to a profile. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from perflab.profiles.host import Key, Sum, each_key, faster_half
from perflab.profiles.records import Profile, ProfileRow


def summed_up(
    device: str,
    calls: Sequence[Mapping[Key, Sum]],
    profiled_ns: Sequence[float],
    timer_ns: Sequence[float],
    cost_ns: float,
    notes: Sequence[str] = (),
) -> Profile:
    """The mean of the faster half of the calls, row by row.

    Args:
        device: ``cpu`` or ``cuda``.
        calls: the divided time of each profiled call.
        profiled_ns: how long each of them took.
        timer_ns: how long calls took that were not profiled.
        cost_ns: what the profiler adds to a call.
        notes: what a reader has to know.
    """
    quiet = [calls[at] for at in faster_half(profiled_ns)]
    return Profile(
        device=device,
        calls=len(quiet),
        timer_ns=round(fmean(timer_ns[at] for at in faster_half(timer_ns)), 1),
        profiled_ns=round(fmean(profiled_ns[at] for at in faster_half(profiled_ns)), 1),
        cost_ns=round(cost_ns, 1),
        rows=sorted((_row(key, quiet) for key in each_key(quiet)), key=lambda row: -row.time_ns),
        notes=list(notes),
    )


def _row(key: Key, calls: Sequence[Mapping[Key, Sum]]) -> ProfileRow:
    nothing = Sum()
    sums = [call.get(key, nothing) for call in calls]
    times = [one.time_ns for one in sums]
    return ProfileRow(
        category=key.category,
        operator=key.operator,
        kernel=key.kernel,
        phase=key.phase,
        module=key.module,
        line=key.line,
        shapes=key.shapes,
        instances=round(fmean(one.instances for one in sums), 3),
        time_ns=round(fmean(times), 1),
        spread_ns=round(_spread(times), 1),
        flops=round(fmean(one.flops for one in sums)),
    )


def _spread(values: Sequence[float]) -> float:
    """Standard deviation. ``pstdev`` computes it in fractions, 20 times as slow, and there is one a row."""
    mean = fmean(values)
    return math.sqrt(fmean((value - mean) ** 2 for value in values))
