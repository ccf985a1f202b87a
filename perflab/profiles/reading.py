"""Turns recorded calls into a profile: what is known of each operator, and the time of several calls. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

from perflab.attribution.places import Where
from perflab.base.data import changed
from perflab.base.errors import UsageError
from perflab.profiles.categories import categories, flops_where_done
from perflab.profiles.divided import (
    FREE,
    STRANGER,
    Cost,
    Kernel,
    Known,
    Sum,
    aligned,
    device_sums,
    faster_half,
    host_sums,
    matched,
)
from perflab.profiles.events import Call, entered, operators, phases_without_any, placed, within
from perflab.profiles.recording import Recorded
from perflab.results.profile import CudaCall, Profile, ProfileRow

STRANGERS = 0.05
"""Share of operators without a counterpart in the call recorded with places, above which the profile has a note."""


def known_of(recorded: Recorded, named: Callable[[str], Where]) -> list[Known]:
    """Return every operator of a call in order, with place, category, shapes and FLOPs.

    ``named`` returns the place that a mark stands for.
    """
    found = placed(recorded.roots, recorded.phases, named)
    calls = [one.call for one in found]
    flops = flops_where_done(calls)
    category = dict(zip(map(id, calls), categories(found), strict=True))
    phases = [one.phase for one in found] if recorded.phases else phases_without_any(found)
    known = (
        Known(
            call.name,
            kind := category[id(entries[0])],
            phase,
            one.where,
            _shapes(entries),
            flops.get(id(call), 0),
            within(entries[0]),
            any(category.get(id(above)) == kind for above in entries[0].above()),
            len(entries),
        )
        for one, call, entries, phase in zip(found, calls, entered(calls), phases, strict=True)
    )
    once: dict[Known, Known] = {}  # layers repeat: equal values become one object
    return [once.setdefault(one, one) for one in known]


def with_lines(known: Sequence[Known], by_line: Sequence[Known]) -> list[Known]:
    """Return what is known of every operator of a call, with the lines of its counterparts in another call.

    Only counterparts in the same module count.
    """
    found = list(known)
    for at, other in enumerate(aligned([one.name for one in known], [one.name for one in by_line])):
        if other != STRANGER and by_line[other].where.module == known[at].where.module:
            found[at] = known[at]._replace(where=by_line[other].where)
    return found


def _shapes(entries: Sequence[Call]) -> str:
    """Return the shapes and dtype of an operator's inputs, as autocast casts them, without the last entry's output."""
    asked, done = (one.event.shapes for one in (entries[0], entries[-1]))
    return done if done.rpartition(" ")[0] == asked.rpartition(" ")[0] else asked


def known_by_call(recorded: Recorded, known: Sequence[Known]) -> tuple[dict[int, Known], int]:
    """Return what is known of each operator by ``id`` of its call, and how many operators are strangers."""
    calls = operators(recorded.roots)
    found, strangers = matched(calls, known)
    return {id(call): one for call, one in zip(calls, found, strict=True)}, strangers


@dataclass
class Reading:
    """The sums of profiled calls, to which calls are added one by one."""

    known: Sequence[Known]
    cost: Cost = FREE
    """The profiler's cost, as measured in calls that do nothing."""
    sums: list[Mapping[ProfileRow, Sum]] = field(default_factory=list)
    profiled_ns: list[float] = field(default_factory=list)
    cuda_calls: list[Mapping[str, Sum]] = field(default_factory=list)
    strangers: int = 0
    operators: int = 0
    not_shown: set[int] = field(default_factory=set)
    """Devices on which other threads work during a call that does not work there, and has no timeline of the device."""

    def add(self, device: str, recorded: Sequence[Recorded]) -> None:
        """Add calls that followed each other on ``cpu`` or ``cuda``.

        On CUDA, the first call is only the beginning of the next.

        Raises:
            UsageError: no kernels of the call's own were recorded.
        """
        if device == "cuda":
            for before, one in pairwise(recorded):
                self._add_on_device(before, one)
        else:
            for one in recorded:  # a call on a CPU lasts as long as the range around it
                self.sums.append(host_sums(one.root, self._by_call(one), one.phases))
                self.profiled_ns.append(one.root.total_ns)

    def _add_on_device(self, before: Recorded, recorded: Recorded) -> None:
        """Add a call on CUDA.

        On each device, the call lasts from the end of the kernels of the call before to the end of its own kernels.
        """
        if not before.kernels or not recorded.kernels:
            if recorded.foreign:
                raise UsageError(
                    "all kernels are launched by threads that PyTorch's profiler does not follow",
                    "launch them from the thread that calls, whose operators it records",
                )
            raise UsageError(
                "the profiler saw no kernels on the device",
                "another profiler is attached to this process (CUPTI serves one), or has profiled the CPU alone before "
                "perflab did, after which PyTorch sees no device: profile without it",
            )
        by_call = self._by_call(recorded)
        calls = {call.event.correlation: by_call[id(call)] for call in operators(recorded.roots)}
        begins, ends = _ends(before.kernels), _ends(recorded.kernels)
        spans = {device: (begins.get(device, max(begins.values())), end_ns) for device, end_ns in ends.items()}
        foreign = recorded.foreign_within(min(one[0] for one in spans.values()), max(ends.values()))
        self.not_shown |= {one.device for one in foreign} - spans.keys()
        self.sums.append(device_sums([*recorded.kernels, *foreign], spans, calls))
        self.profiled_ns.append(fmean(end_ns - begin_ns for begin_ns, end_ns in spans.values()))
        calls_of_cuda: dict[str, Sum] = defaultdict(Sum)
        for name, length_ns in recorded.cuda_calls:
            calls_of_cuda[name].instances += 1
            calls_of_cuda[name].time_ns += length_ns
        self.cuda_calls.append(calls_of_cuda)

    def profile(self, device: str, plain_ns: Sequence[float], notes: Sequence[str]) -> Profile:
        """Return the profile of all calls: the mean of the faster half of pairs of a profiled call and a plain call.

        The two calls of a pair ran in the same minute. Rows and timer are of the same pairs: two separate faster halves
        would be of different minutes, between which a machine may drift.

        ``plain_ns`` has the time of the plain call, without the profiler, beside each profiled call.
        """
        said = list(notes)
        not_shown = self.not_shown - {key.device for sums in self.sums for key in sums}
        if not_shown:
            named = " and ".join(f"{device}:{number}" for number in sorted(not_shown))
            said.append(f"work of other threads on {named} is not shown: the call launches nothing there")
        if self.strangers > STRANGERS * self.operators:
            said.append(f"calls differ: {self.strangers / self.operators:.0%} of operators have no place")
        quiet = faster_half([one + beside for one, beside in zip(self.profiled_ns, plain_ns, strict=True)])
        longer_ns = [self.profiled_ns[at] - plain_ns[at] for at in quiet]
        return summed_up(
            device,
            self.sums,
            self.profiled_ns,
            quiet,
            fmean(plain_ns[at] for at in quiet),
            cost=self.cost.as_seen(longer_ns, [self.sums[at].values() for at in quiet]),
            notes=said,
            cuda_calls=self.cuda_calls,
        )

    def _by_call(self, recorded: Recorded) -> dict[int, Known]:
        found, strangers = known_by_call(recorded, self.known)
        self.strangers += strangers
        self.operators += len(found)
        return found


def _ends(kernels: Sequence[Kernel]) -> dict[int, int]:
    """Return when the last kernel of each device ended."""
    found: dict[int, int] = {}
    for one in kernels:
        found[one.device] = max(one.end_ns, found.get(one.device, 0))
    return found


def summed_up(
    device: str,
    calls: Sequence[Mapping[ProfileRow, Sum]],
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


def _row(key: ProfileRow, calls: Sequence[Mapping[ProfileRow, Sum]], cost: Cost) -> ProfileRow:
    nothing = Sum()
    sums = [call.get(key, nothing) for call in calls]
    times = [one.time_ns for one in sums]
    mean_ns = fmean(times)
    # ``pstdev`` computes in fractions, which takes 20 times as long, and each row needs one.
    spread_ns = math.sqrt(fmean((time_ns - mean_ns) ** 2 for time_ns in times))
    return changed(
        key,
        instances=round(fmean(one.instances for one in sums), 3),
        time_ns=round(max(0.0, mean_ns - cost.of(sums) / len(sums)), 1),
        spread_ns=round(spread_ns, 1),
        flops=round(fmean(one.flops for one in sums)),
    )
