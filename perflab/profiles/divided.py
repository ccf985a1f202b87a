"""Divides the time of a profiled call among operators on the host, kernels on a device, and the gaps between. Pure.

What is known of a call's operators comes from another call of the same work, whose pieces are aligned with it by name.

A device's gaps are divided as in Holistic Trace Analysis (Meta, "Idle Time Breakdown"), with launches counted
separately. From the end of one kernel, the device waits for the host until the host begins to launch the next kernel,
then until this call of CUDA ends; the rest is the kernel's own delay. Each device has a timeline of its own."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise
from statistics import fmean, stdev
from typing import NamedTuple

from perflab.attribution.places import Where
from perflab.base.data import changed
from perflab.profiles.categories import category_without_place
from perflab.profiles.events import NOWHERE, Call, Phase
from perflab.results.profile import DISPATCH, OTHER_THREAD, PYTHON, ProfileRow

STRANGER = -1
"""The place of a piece that has no counterpart in the other call."""
_REACH = 400
"""The greatest cost up to which a common continuation is searched for: the search time grows with the square of the
cost."""
_SHIFT = 2
"""Cost of each piece by which one skipped stretch is longer than the other. Layers repeat, so without this cost
skipping a whole layer would always fit too."""
_ALIKE = 8
"""How many equal names in a row show that both calls go on alike."""
_MOST_COMPARED = 300
"""Length in pieces of the longest differing stretch that is compared piece by piece."""


def aligned(names: Sequence[Hashable], others: Sequence[Hashable]) -> list[int]:
    """Return the index of each name in ``others``, or ``STRANGER`` for a name without a counterpart.

    The sequences should differ in a few stretches only: one operator more among 20,000 moves all later indices by one.
    If no common continuation is found within the cost limit, all names up to the common end are strangers, unless the
    stretches are short enough to be compared piece by piece.
    """
    if names == others:  # the case nearly always
        return list(range(len(names)))
    found = [STRANGER] * len(names)
    # The common end of both sequences, behind their common beginning.
    shorter, length = min(len(names), len(others)), 0
    begin = next((at for at in range(shorter) if names[at] != others[at]), shorter)
    while length < shorter - begin and names[-1 - length] == others[-1 - length]:
        length += 1
        found[-length] = len(others) - length
    until, until_other = len(names) - length, len(others) - length
    at = other = 0
    while at < until and other < until_other:
        if names[at] == others[other]:
            found[at] = other
            skipped, skipped_other = 1, 1
        else:
            skipped, skipped_other = _differ(names[at:until], others[other:until_other])
            if max(skipped, skipped_other) <= _MOST_COMPARED:
                stretches = names[at : at + skipped], others[other : other + skipped_other]
                for a, b, size in SequenceMatcher(None, *stretches, autojunk=False).get_matching_blocks():
                    found[at + a : at + a + size] = range(other + b, other + b + size)
        at, other = at + skipped, other + skipped_other
    return found


def counterparts(names: Sequence[Hashable], others: Sequence[Hashable]) -> tuple[list[int], int]:
    """Return the index of each name's counterpart in another call of the same work, and the number of strangers.

    A stranger gets the index of the first equal name, or ``STRANGER`` if there is none.
    """
    found = aligned(names, others)
    first = {name: len(others) - 1 - at for at, name in enumerate(reversed(others))}
    indices = [at if at != STRANGER else first.get(name, STRANGER) for at, name in zip(found, names, strict=True)]
    return indices, found.count(STRANGER)


def _differ(names: Sequence[Hashable], others: Sequence[Hashable]) -> tuple[int, int]:
    """Return how many names of each to skip, at the least cost, until both go on alike; all names if none is found."""
    for cost in range(1, min(_REACH, (1 + _SHIFT) * (len(names) + len(others))) + 1):
        for shift in range(cost // (1 + _SHIFT) + 1):
            longer = cost - _SHIFT * shift
            for skipped, skipped_other in {(longer, longer - shift), (longer - shift, longer)}:
                is_within = skipped <= len(names) and skipped_other <= len(others)
                if is_within and names[skipped : skipped + _ALIKE] == others[skipped_other : skipped_other + _ALIKE]:
                    return skipped, skipped_other
    return len(names), len(others)


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


_WITHIN = 3.0
"""The greatest factor by which an event's cost in real calls may exceed, or fall below, the cost in calls that do
nothing."""
_ERRORS = 2.0
"""How many standard errors an event's cost in real calls must differ from the cost in calls that do nothing, to be
used instead."""


class Cost(NamedTuple):
    """The time that recording takes, in nanoseconds."""

    event_ns: float = 0.0
    """Time to record one event."""
    side_ns: float = 0.0
    """Time of one side of a mark around the call or a phase: Python runs on both sides of the moment at which a
    range begins or ends."""

    def of(self, sums: Iterable[Sum]) -> float:
        """Return the recording time in nanoseconds that these sums, of all calls together, contain."""
        return sum(self.event_ns * one.events + self.side_ns * one.sides for one in sums)

    def as_seen(self, longer_ns: Sequence[float], calls: Sequence[Iterable[Sum]]) -> Cost:
        """Return the cost with the cost of an event as seen in these calls, if it differs significantly from this one.

        Caches are colder in real calls than in a loop that does nothing.

        ``longer_ns`` is by how much each profiled call took longer than the plain call beside it; ``calls`` has the
        sums of each profiled call.
        """
        counted = [list(call) for call in calls]
        events = [sum(one.events for one in call) for call in counted]
        if self.event_ns <= 0 or len(counted) < 2 or not all(events):
            return self
        marks = Cost(side_ns=self.side_ns)
        seen = [
            (longer - marks.of(call)) / count for longer, call, count in zip(longer_ns, counted, events, strict=True)
        ]
        if abs(fmean(seen) - self.event_ns) <= _ERRORS * stdev(seen) / math.sqrt(len(seen)):
            return self
        return self._replace(event_ns=min(max(fmean(seen), self.event_ns / _WITHIN), self.event_ns * _WITHIN))


FREE = Cost()


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


def host_sums(root: Call, known: Mapping[int, Known], phases: Sequence[Phase]) -> dict[ProfileRow, Sum]:
    """Divide the time of one call on a CPU into the own times of operators and the gaps in which no operator runs.

    The profiler's cost of an event is in the time of the operator or gap in which the event was recorded.

    ``root`` is the range around the call, on the calling thread; ``known`` is by ``id`` of a call.
    """
    sums: dict[ProfileRow, Sum] = defaultdict(Sum)
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


def key_of(one: Known, category: str) -> ProfileRow:
    """Return the row of an operator on the host, without its numbers: equal pieces of work have equal rows.

    PyTorch's own work consists of many small calls, so its rows have no lines and shapes.
    """
    row = ProfileRow(category=category, operator=one.name, phase=one.phase, module=one.where.module)
    if category == DISPATCH:
        return row
    return changed(row, line=one.where.line, shapes=one.shapes, within=one.within, is_part=one.is_part)


class Gap(NamedTuple):
    """A stretch of the calling thread's time in which no operator runs."""

    start_ns: int
    end_ns: int
    key: ProfileRow
    events: int
    sides: int
    """How many sides of marks lie in the gap; ``events`` and ``sides`` are as in ``Sum``."""


def gaps_of(root: Call, known: Mapping[int, Known], phases: Sequence[Phase]) -> Iterator[Gap]:
    """Yield all gaps of one call, in which no recorded event runs, each with the place of the operator that ends it."""
    for opened in root.walk():
        if id(opened) in known:
            continue
        last_ns, sides, module = opened.event.start_ns, int(opened.is_mark), ""
        ends = [*((child, child.event.start_ns) for child in opened.children), (opened, opened.event.end_ns)]
        for end, end_ns in ends:
            below = end.walk() if end is not opened else ()
            at = next((known[id(one)] for one in below if id(one) in known), None)
            module, line = (at.where.module, at.where.line) if at is not None else (module, "")
            begun = [one.name for one in phases if one.start_ns <= last_ns]
            phase = begun[-1] if begun else phases[0].name if phases else ""
            row = ProfileRow(category=PYTHON, phase=phase, module=module, line=line)
            yield Gap(last_ns, end_ns, row, int(end is not opened and not end.is_mark), sides + end.is_mark)
            last_ns, sides = end.event.end_ns, int(end.is_mark)


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
) -> dict[ProfileRow, Sum]:
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
    sums: dict[ProfileRow, Sum] = defaultdict(Sum)
    rows = {id(kernel): _key(kernel, known) for kernel in kernels}
    seen: set[int] = set()
    for device, (begin_ns, until_ns) in spans.items():
        own = [kernel for kernel in kernels if kernel.device == device]
        for start_ns, end_ns, running, following in _intervals(own, begin_ns, until_ns):
            sharing = [one for one in running if not one.is_foreign] or running
            for kernel in sharing:
                sums[rows[id(kernel)]].time_ns += (end_ns - start_ns) / len(sharing)
            if running:
                continue
            one, begun_ns, ended_ns = _NOBODY, end_ns, end_ns  # after the last kernel, nothing is launched
            if following is not None:
                one = known.get(following.operator, _NOBODY)
                begun_ns = _within(start_ns, following.launched_ns, end_ns)
                ended_ns = _within(begun_ns, following.launch_ended_ns, end_ns)
            waits = (
                ("host wait", start_ns, begun_ns),
                ("launches", begun_ns, ended_ns),
                ("kernel wait", ended_ns, end_ns),
            )
            for category, from_ns, to_ns in waits:
                if to_ns > from_ns:
                    total = sums[ProfileRow(category=category, phase=one.phase, module=one.where.module, device=device)]
                    total.instances += 1
                    total.time_ns += to_ns - from_ns
    for kernel in kernels:
        begin_ns, until_ns = spans.get(kernel.device, (0, 0))
        if kernel.is_foreign and not begin_ns <= kernel.start_ns < until_ns:
            continue  # a kernel counts in the call in which it starts
        total = sums[rows[id(kernel)]]
        total.instances += 1
        if kernel.operator not in seen:  # an operator's work is done once, however many kernels do it
            total.flops += known.get(kernel.operator, _NOBODY).flops
            seen.add(kernel.operator)
    for at, one in known.items():
        if at not in seen:
            sums[key_of(one, DISPATCH)].instances += 1
    return sums


def _key(kernel: Kernel, known: Mapping[int, Known]) -> ProfileRow:
    row = ProfileRow(category=OTHER_THREAD, kernel=kernel.name, device=kernel.device)
    if kernel.is_foreign:
        return row
    one = known.get(kernel.operator, _NOBODY)
    category = "copies" if one.category == "dispatch" else one.category  # with a kernel, such an operator copies
    return changed(key_of(one, category), kernel=kernel.name, device=kernel.device, is_part=False)


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
