"""The device's side of a profiled call: its time divided among kernels and the gaps between them. Pure functions.

Gaps are divided as Holistic Trace Analysis does (Meta, "Idle Time Breakdown"): the device waits for the host from the
end of one kernel until the host has launched the next, and what is left of the gap is the kernel's own delay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from perflab.profiles.host import Key, Known, Sum
from perflab.profiles.places import Where


class Kernel(NamedTuple):
    """One kernel, copy or fill on the device."""

    name: str
    start_ns: int
    end_ns: int
    operator: int = 0
    """Correlation of the operator that launched it; 0: none."""
    launched_ns: int | None = None
    """When the host began to launch it."""


_NOBODY = Known("", "other", "", Where())


def device_sums(kernels: Sequence[Kernel], begin_ns: int, known: Mapping[int, Known]) -> dict[Key, Sum]:
    """Divide the time from ``begin_ns``, when the kernels before had ended, to the end of these.

    Where several kernels run at once, the time is divided among them evenly, so that all of it adds up.

    Args:
        kernels: those of one call.
        begin_ns: the end of the last kernel of the call before.
        known: what is known of an operator, by its correlation.
    """
    sums: dict[Key, Sum] = defaultdict(Sum)
    seen: set[int] = set()
    for start_ns, end_ns, running, following in _intervals(kernels, begin_ns):
        if not running and following is not None:
            _add_gap(start_ns, end_ns, following, known.get(following.operator, _NOBODY), sums)
        for kernel in running:
            sums[_key(kernel, known)].time_ns += (end_ns - start_ns) / len(running)
    for kernel in kernels:
        total = sums[_key(kernel, known)]
        total.instances += 1
        if kernel.operator not in seen:  # an operator's work is done once, however many kernels do it
            total.flops += known.get(kernel.operator, _NOBODY).flops
            seen.add(kernel.operator)
    return sums


def _key(kernel: Kernel, known: Mapping[int, Known]) -> Key:
    one = known.get(kernel.operator, _NOBODY)
    category = "copies" if one.category == "dispatch" else one.category  # whatever it is for the host
    return Key(category, one.name, kernel.name, one.phase, one.where.module, one.where.line, one.shapes)


def _add_gap(start_ns: int, end_ns: int, kernel: Kernel, one: Known, sums: dict[Key, Sum]) -> None:
    launched_ns = min(end_ns, max(start_ns, kernel.launched_ns if kernel.launched_ns is not None else start_ns))
    for category, length_ns in (("host wait", launched_ns - start_ns), ("kernel wait", end_ns - launched_ns)):
        if length_ns:
            total = sums[Key(category, "", "", one.phase, one.where.module, "", "")]
            total.instances += 1
            total.time_ns += length_ns


def _intervals(kernels: Sequence[Kernel], begin_ns: int) -> Iterator[tuple[int, int, list[Kernel], Kernel | None]]:
    """Stretches of time in which the same kernels run; of one in which none does, the kernel that ends it."""
    waiting = sorted(kernels, key=lambda kernel: kernel.start_ns)
    moments = sorted({begin_ns, *(max(begin_ns, at) for one in kernels for at in (one.start_ns, one.end_ns))})
    running: list[Kernel] = []
    at = 0
    for start_ns, end_ns in pairwise(moments):
        while at < len(waiting) and waiting[at].start_ns <= start_ns:
            running.append(waiting[at])
            at += 1
        running = [one for one in running if one.end_ns > start_ns]
        yield start_ns, end_ns, running, waiting[at] if not running and at < len(waiting) else None
