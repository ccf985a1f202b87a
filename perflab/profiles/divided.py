"""Divides the time of a profiled call among operators on the host, kernels on a device, and the gaps between. Pure.

A device's gaps are divided as in Holistic Trace Analysis (Meta, "Idle Time Breakdown"), with launches counted
separately. From the end of one kernel, the device waits for the host until the host begins to launch the next kernel,
then until this call of CUDA ends; the rest is the kernel's own delay. Each device has a timeline of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from perflab.attribution.places import Where
from perflab.profiles.alignment import STRANGER, counterparts
from perflab.profiles.categories import category_without_place
from perflab.profiles.events import Call
from perflab.profiles.placed import NOWHERE, Phase
from perflab.results.profile import DISPATCH, OTHER_THREAD, PYTHON


class Known(NamedTuple):
    """The properties of an operator besides its time: category, place, shapes and FLOPs."""

    name: str
    category: str
    phase: str
    where: Where
    shapes: str = ""
    flops: int = 0
    within: str = ""
    """The outermost operator that this operator runs within; ``""``: none."""
    is_part: bool = False
    """Whether the operator runs within another operator of its category."""
    entries: int = 1
    """How many events the profiler records for one call: autocast casts the inputs and then calls the operator
    again."""


class Key(NamedTuple):
    """The fields of a profile's row in which equal pieces of work agree."""

    category: str
    operator: str
    kernel: str
    phase: str
    module: str
    line: str
    shapes: str
    within: str = ""
    device: int = 0
    is_part: bool = False
    code: str = ""


@dataclass
class Sum:
    """The sums of equal pieces of work in one call."""

    instances: float = 0
    time_ns: float = 0.0
    flops: int = 0
    events: int = 0
    """How many events were recorded within ``time_ns``, which includes the profiler's cost of each."""
    sides: int = 0
    """How many sides of marks around the call and its phases lie within ``time_ns``. Each begin and each end of a
    mark has one side within the mark and one outside."""


def matched(calls: Sequence[Call], known: Sequence[Known]) -> tuple[list[Known], int]:
    """Return what is known of each operator of another call of the same work, and the number of strangers.

    Calls of unchanged work call the same operators in the same order. A stranger, an operator without a counterpart,
    gets what is known of the first operator of its name, or its name alone.
    """
    places, strangers = counterparts([call.name for call in calls], [one.name for one in known])
    found = [
        known[at] if at != STRANGER else Known(call.name, category_without_place(call.name), "", NOWHERE)
        for at, call in zip(places, calls, strict=True)
    ]
    return found, strangers


def host_sums(root: Call, known: Mapping[int, Known], phases: Sequence[Phase]) -> dict[Key, Sum]:
    """Divide the time of one call on a CPU into the own times of operators and the gaps in which no operator runs.

    The profiler's cost of an event is in the time of the operator or gap in which the event was recorded.

    ``root`` is the range around the call, on the calling thread; ``known`` is by ``id`` of a call.
    """
    sums: dict[Key, Sum] = defaultdict(Sum)
    found: dict[int, Sum] = {}  # many calls share one ``Known``, whose key is made once
    for call in root.walk():
        one = known.get(id(call))
        if one is None:
            continue
        total = found.get(id(one))
        if total is None:
            total = found[id(one)] = sums[key_of(one, one.category)]
        total.instances += 1 / one.entries
        total.time_ns += call.self_ns
        total.events += len(call.children)
        total.flops += one.flops
    for gap in gaps_of(root, known, phases):
        total = sums[gap.key]
        total.instances += 1
        total.time_ns += gap.end_ns - gap.start_ns
        total.events += gap.events
        total.sides += gap.sides
    return sums


def key_of(one: Known, category: str) -> Key:
    """Return the key of an operator on the host.

    PyTorch's own work consists of many small calls, so its keys have no lines and shapes.
    """
    if category == DISPATCH:
        return Key(category, one.name, "", one.phase, one.where.module, "", "")
    module, line, _ = one.where
    return Key(category, one.name, "", one.phase, module, line, one.shapes, one.within, is_part=one.is_part)


class Gap(NamedTuple):
    """A stretch of the calling thread's time in which no operator runs."""

    start_ns: int
    end_ns: int
    key: Key
    events: int
    sides: int
    """How many sides of marks lie in the gap; ``events`` and ``sides`` are as in ``Sum``."""


def gaps_of(root: Call, known: Mapping[int, Known], phases: Sequence[Phase]) -> Iterator[Gap]:
    """Yield all gaps of one call, range by range."""
    for call in root.walk():
        if id(call) not in known:
            yield from _gaps_within(call, known, phases)


def _gaps_within(opened: Call, known: Mapping[int, Known], phases: Sequence[Phase]) -> Iterator[Gap]:
    """Yield the gaps of a range, in which no recorded event runs, each with the place of the operator that ends it."""
    last_ns, sides = opened.event.start_ns, int(opened.is_mark)
    module = line = ""

    def until(end_ns: int, end: Call, *, events: int) -> Gap:
        begun = [one.name for one in phases if one.start_ns <= last_ns]
        phase = begun[-1] if begun else phases[0].name if phases else ""
        return Gap(last_ns, end_ns, Key(PYTHON, "", "", phase, module, line, ""), events, sides + end.is_mark)

    for child in opened.children:
        at = next((known[id(one)] for one in child.walk() if id(one) in known), None)
        module, line = (at.where.module, at.where.line) if at is not None else (module, "")
        yield until(child.event.start_ns, child, events=int(not child.is_mark))
        last_ns, sides = child.event.end_ns, int(child.is_mark)
    line = ""
    yield until(opened.event.end_ns, opened, events=0)


def faster_half(totals_ns: Sequence[float]) -> list[int]:
    """Return the indices of the faster half of calls, of which the mean is taken.

    Means add up, as medians do not, and the slower half was disturbed.
    """
    ranked = sorted(range(len(totals_ns)), key=lambda at: totals_ns[at])
    return sorted(ranked[: max(1, (len(ranked) + 1) // 2)])


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
