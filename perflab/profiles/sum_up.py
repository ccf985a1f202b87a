"""Sums up the divided times of several calls as one profile. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from perflab.profiles.cost import FREE, Cost
from perflab.profiles.host import Key, Sum
from perflab.results.profile import CudaCall, Profile, ProfileRow


def summed_up(
    device: str,
    calls: Sequence[Mapping[Key, Sum]],
    profiled_ns: Sequence[float],
    quiet: Sequence[int],
    timer_ns: float,
    *,
    cost: Cost = FREE,
    notes: Sequence[str] = (),
    cuda_calls: Sequence[Mapping[str, Sum]] = (),
) -> Profile:
    """Return the profile that is the mean of the quiet calls, row by row.

    ``calls`` has the divided time of each profiled call, and ``quiet`` the indices of those that count; ``timer_ns`` is
    the time of a call that is not profiled. ``cost``, the time that the profiler adds, is subtracted. ``cuda_calls``
    has the host's calls of CUDA by name, for each call; it is empty if they are not known.
    """
    counted = [calls[at] for at in quiet]
    keys = dict.fromkeys(key for call in counted for key in call)
    rows = sorted((_row(key, counted, cost) for key in keys), key=lambda row: -row.time_ns)
    return Profile(
        device=device,
        calls=len(quiet),
        timer_ns=round(timer_ns, 1),
        profiled_ns=round(fmean(profiled_ns[at] for at in quiet), 1),
        cost_ns=round(fmean(cost.of(call.values()) for call in counted), 1),
        rows=rows,
        notes=list(notes),
        devices=len({row.device for row in rows}) or 1,
        cuda_calls=_cuda_calls([cuda_calls[at] for at in quiet]) if cuda_calls else [],
    )


def _cuda_calls(calls: Sequence[Mapping[str, Sum]]) -> list[CudaCall]:
    nothing = Sum()
    found = [
        CudaCall(
            name=name,
            instances=round(fmean(call.get(name, nothing).instances for call in calls), 3),
            time_ns=round(fmean(call.get(name, nothing).time_ns for call in calls), 1),
        )
        for name in dict.fromkeys(name for call in calls for name in call)
    ]
    return sorted(found, key=lambda one: -one.time_ns)


def _row(key: Key, calls: Sequence[Mapping[Key, Sum]], cost: Cost) -> ProfileRow:
    nothing = Sum()
    sums = [call.get(key, nothing) for call in calls]
    times = [one.time_ns for one in sums]
    return ProfileRow(
        **key._asdict(),
        instances=round(fmean(one.instances for one in sums), 3),
        time_ns=round(max(0.0, fmean(times) - cost.of(sums) / len(sums)), 1),
        spread_ns=round(_spread(times), 1),
        flops=round(fmean(one.flops for one in sums)),
    )


def _spread(values: Sequence[float]) -> float:
    """Return the standard deviation of a population.

    ``pstdev`` computes it in fractions, which takes 20 times as long, and each row needs one.
    """
    mean = fmean(values)
    return math.sqrt(fmean((value - mean) ** 2 for value in values))
