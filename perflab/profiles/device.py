"""The device's side of a profiled call: its time divided among kernels and the gaps between kernels. Pure functions.

Gaps are divided as in Holistic Trace Analysis (Meta, "Idle Time Breakdown"), with launches counted separately. From the
end of one kernel, the device waits for the host until the host begins to launch the next kernel, then until this call
of CUDA ends; the rest is the kernel's own delay. Each device has a timeline of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from perflab.attribution.places import Where
from perflab.profiles.host import Key, Known, Sum, key_of
from perflab.results.profile import DISPATCH, OTHER_THREAD


class Kernel(NamedTuple):
    """One kernel, copy or fill on the device."""

    name: str
    start_ns: int
    end_ns: int
    operator: int = 0
    """Correlation number of the operator that launched the kernel; 0: none."""
    launched_ns: int | None = None
    """When the host began to launch the kernel; None: unknown."""
    launch_ended_ns: int | None = None
    """When the call of CUDA that launched the kernel had ended; None: unknown."""
    device: int = 0
    """The GPU's number in the process."""
    stream: int = 0
    """The number of the stream in which the kernel runs. Kernels of two streams may overlap."""
    is_foreign: bool = False
    """Whether a host thread that the profiler does not follow launched the kernel. Such a kernel is no work of the
    call's."""


_NOBODY = Known("", "other", "", Where())


def device_sums(
    kernels: Sequence[Kernel], spans: Mapping[int, tuple[int, int]], known: Mapping[int, Known]
) -> dict[Key, Sum]:
    """Divide the time of each device among its kernels and the gaps between them.

    Time in which several kernels of a device run at once is divided evenly among these kernels, so that all times add
    up. A kernel of another thread gets only time in which no kernel of the call runs.

    Args:
        kernels: the kernels of one call, and kernels of other threads that run at the same time.
        spans: for each device that runs kernels, when the call begins on the device (the kernels of the call before
            have ended) and when the call ends. After its last kernel a device waits for the host.
        known: what is known of each operator, by its correlation number. An operator that launches nothing has no time
            on the device; it is counted as PyTorch's own work.
    """
    sums: dict[Key, Sum] = defaultdict(Sum)
    seen: set[int] = set()
    for device, (begin_ns, until_ns) in spans.items():
        own = [kernel for kernel in kernels if kernel.device == device]
        for start_ns, end_ns, running, following in _intervals(own, begin_ns, until_ns):
            if not running:
                _add_gap(start_ns, end_ns, following, device, known, sums)
            sharing = [one for one in running if not one.is_foreign] or running
            for kernel in sharing:
                sums[_key(kernel, known)].time_ns += (end_ns - start_ns) / len(sharing)
    for kernel in kernels:
        begin_ns, until_ns = spans.get(kernel.device, (0, 0))
        if kernel.is_foreign and not begin_ns <= kernel.start_ns < until_ns:
            continue  # a kernel counts in the call in which it starts
        total = sums[_key(kernel, known)]
        total.instances += 1
        if kernel.operator not in seen:  # an operator's work is done once, however many kernels do it
            total.flops += known.get(kernel.operator, _NOBODY).flops
            seen.add(kernel.operator)
    for at, one in known.items():
        if at not in seen:
            sums[key_of(one, DISPATCH)].instances += 1
    return sums


def _key(kernel: Kernel, known: Mapping[int, Known]) -> Key:
    if kernel.is_foreign:
        return Key(OTHER_THREAD, "", kernel.name, "", "", "", "", device=kernel.device)
    one = known.get(kernel.operator, _NOBODY)
    category = "copies" if one.category == "dispatch" else one.category  # with a kernel, such an operator copies
    module, line, _ = one.where
    return Key(category, one.name, kernel.name, one.phase, module, line, one.shapes, one.within, kernel.device)


def _add_gap(
    start_ns: int,
    end_ns: int,
    following: Kernel | None,
    device: int,
    known: Mapping[int, Known],
    sums: dict[Key, Sum],
) -> None:
    one = known.get(following.operator, _NOBODY) if following is not None else _NOBODY
    begun_ns = ended_ns = end_ns  # after the last kernel, nothing is launched
    if following is not None:
        begun_ns = _within(start_ns, following.launched_ns, end_ns)
        ended_ns = _within(begun_ns, following.launch_ended_ns, end_ns)
    parts = (("host wait", begun_ns - start_ns), ("launches", ended_ns - begun_ns), ("kernel wait", end_ns - ended_ns))
    for category, length_ns in parts:
        if length_ns:
            total = sums[Key(category, "", "", one.phase, one.where.module, "", "", device=device)]
            total.instances += 1
            total.time_ns += length_ns


def _within(start_ns: int, moment_ns: int | None, end_ns: int) -> int:
    return start_ns if moment_ns is None else min(end_ns, max(start_ns, moment_ns))


def _intervals(
    kernels: Sequence[Kernel], begin_ns: int, end_ns: int
) -> Iterator[tuple[int, int, list[Kernel], Kernel | None]]:
    """Yield stretches of time in which the same kernels run: start, end, these kernels, and the next kernel.

    The next kernel is given for stretches without a kernel: the next one of the call's own, or None.
    """
    waiting = sorted(kernels, key=lambda kernel: kernel.start_ns)
    ends = (at for one in kernels for at in (one.start_ns, one.end_ns))
    moments = sorted({begin_ns, end_ns, *(min(end_ns, max(begin_ns, at)) for at in ends)})
    own = [one for one in waiting if not one.is_foreign]
    running: list[Kernel] = []
    at = own_at = 0
    for start_ns, until_ns in pairwise(moments):
        while at < len(waiting) and waiting[at].start_ns <= start_ns:
            running.append(waiting[at])
            at += 1
        running = [one for one in running if one.end_ns > start_ns]
        while own_at < len(own) and own[own_at].start_ns <= start_ns:
            own_at += 1
        yield start_ns, until_ns, running, own[own_at] if not running and own_at < len(own) else None
