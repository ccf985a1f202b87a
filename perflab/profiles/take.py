"""Takes the profile of a call: once with modules, lines and shapes, then several times with as little as possible.

The first pass disturbs times, since it marks every module and every line with a range of the profiler. So times come
from calls in which the profiler records operators alone, and the two are joined operator by operator. Calls without a
profiler run between them, which gives the time that the profile has to add up to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from perflab.errors import UsageError
from perflab.files import write_whole
from perflab.measure.devices import synchronize
from perflab.profiles.categories import categories
from perflab.profiles.cost import event_cost_ns
from perflab.profiles.device import device_sums
from perflab.profiles.events import NODE
from perflab.profiles.export import chrome_trace, folded_stacks
from perflab.profiles.flops import flops_where_done
from perflab.profiles.host import Key, Known, Sum, host_sums, in_order, matched
from perflab.profiles.placed import placed
from perflab.profiles.places import Places, module_names
from perflab.profiles.recording import Recorded, recorded_calls, recording, run_marked
from perflab.profiles.records import Profile
from perflab.profiles.sum_up import summed_up
from perflab.reachable import reachable
from perflab.torch_internals.machine import a_profiler_runs

if TYPE_CHECKING:
    import torch

    from perflab.measure.clock import Stopwatch
    from perflab.measure.workload import Workload

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

LEAST_ROUNDS, MOST_ROUNDS = 2, 8
"""How often profiled and plain calls take turns: the more often, the less a drifting machine tells them apart."""
MOST_CALLS = 40
"""Profiled calls, at most: more say nothing new, and their events fill memory."""
LEAST_CALLS = 12
"""Calls that a profile takes at least: three that find places, one that is timed, and two rounds of four."""
LEAST_ON_CUDA = 5
"""Calls of a round there: one is only the beginning of the next, and plain calls begin on an idle device."""
_STRANGERS = 0.05
"""Share of operators that the pass with places has not seen, from which on the profile says so."""


@dataclass(frozen=True)
class ProfilePlan:
    """How a case is profiled."""

    budget_ns: float
    """How long its calls may take, after the few that find places; each kind of call is made a few times at least."""
    files: Path | None = None
    """Where one call is written for other tools, without the endings ``.trace.json`` and ``.folded``; None: nowhere."""


@dataclass
class _Times:
    """What the passes found, call by call."""

    sums: list[Mapping[Key, Sum]] = field(default_factory=list)
    profiled_ns: list[float] = field(default_factory=list)
    plain_ns: list[float] = field(default_factory=list)
    cost_ns: list[float] = field(default_factory=list)
    strangers: int = 0
    operators: int = 0


def take_profile(
    workload: Workload,
    device: torch.device,
    stopwatch: Stopwatch,
    plan: ProfilePlan,
    progress: Callable[[str], None],
) -> Profile:
    """Profile one call of a workload that is warm.

    Args:
        workload: what is called.
        device: where its work happens.
        stopwatch: times calls without the profiler.
        plan: how long it may take, and what is written besides.
        progress: called with what is under way.

    Raises:
        UsageError: another profiler runs, or ours saw nothing.
        OSError: a file cannot be written.
        Exception: whatever the workload raises.
    """
    if a_profiler_runs():
        raise UsageError(
            "a profiler runs in this process already, and a second one would end it",
            "profile without it; PyTorch has one profiler a process",
        )
    progress("profile: places")
    known, notes = _known(workload, device)
    call_ns = max(1.0, stopwatch.time(workload, 1).total_ns)
    rounds, calls = _turns(plan.budget_ns / (3.5 * call_ns), LEAST_ON_CUDA if device.type == "cuda" else 1)
    backward = any(one.name.startswith(NODE) for one in known)
    cost_ns = 0.0 if device.type == "cuda" else event_cost_ns(backward=backward)
    times = _Times()
    profilers = []
    for number in range(rounds):
        progress(f"profile: round {number + 1} of {rounds}")
        workload.run()  # the first call after something else is slower than those that follow each other
        if device.type == "cuda":  # as they follow each other, without waiting for the device between them
            times.plain_ns.append(stopwatch.time(workload, calls).total_ns / calls)
        else:
            times.plain_ns += [stopwatch.time(workload, 1).total_ns for _ in range(calls)]
        with recording(device.type) as profiler:
            workload.run()
            for _ in range(calls):
                run_marked(workload)
            synchronize(device)
        profilers.append(profiler)
    for profiler in profilers:
        recorded = recorded_calls(profiler, calls)
        if device.type == "cuda":
            for before, one in pairwise(recorded):
                _divide_device(before, one, known, times)
        else:
            for one in recorded:
                _divide_host(one, known, cost_ns, times)
    if min(times.plain_ns) <= 0:
        raise UsageError("the clock did not move while a call was timed", "profile more work in a call")
    if plan.files is not None:
        _write(plan.files, recorded[-1], known)
    if times.strangers > _STRANGERS * times.operators:
        notes.append(f"calls differ: {times.strangers / times.operators:.0%} of operators have no place")
    return summed_up(device.type, times.sums, times.profiled_ns, times.plain_ns, fmean(times.cost_ns), notes)


def _turns(affordable: float, least: int) -> tuple[int, int]:
    """Rounds, and profiled calls in each, where so many calls can be afforded and a round has so many at least."""
    calls = int(min(MOST_CALLS, affordable))
    rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, calls // least))
    return rounds, max(least, calls // rounds)


def _write(files: Path, recorded: Recorded, known: Sequence[Known]) -> None:
    calls = in_order(recorded.roots)
    by_call = {id(call): one for call, one in zip(calls, matched(calls, known)[0], strict=True)}
    files.parent.mkdir(parents=True, exist_ok=True)
    trace = chrome_trace(recorded.roots, recorded.kernels, by_call)
    for ending, text in ((".trace.json", trace), (".folded", folded_stacks(recorded.roots, by_call))):
        write_whole(files.with_name(files.name + ending), text.encode("utf-8", "backslashreplace"))


def _divide_host(recorded: Recorded, known: Sequence[Known], cost_ns: float, times: _Times) -> None:
    by_call = _matched(recorded, known, times)
    times.sums.append(host_sums(recorded.root, by_call, recorded.phases, cost_ns))
    times.profiled_ns.append(recorded.root.total_ns)
    times.cost_ns.append(cost_ns * sum(1 for _ in recorded.root.walk()))


def _divide_device(before: Recorded, recorded: Recorded, known: Sequence[Known], times: _Times) -> None:
    """A call lasts from the end of the kernels of the one before to the end of its own."""
    if not before.kernels or not recorded.kernels:
        raise UsageError(
            "the profiler saw no kernels on the device",
            "another profiler is attached to this process (CUPTI serves one), or has profiled the CPU alone before "
            "perflab did, after which PyTorch sees no device: profile without it",
        )
    by_call = _matched(recorded, known, times)
    calls = {call.event.correlation: by_call[id(call)] for call in in_order(recorded.roots)}
    begin_ns, end_ns = (max(kernel.end_ns for kernel in one.kernels) for one in (before, recorded))
    times.sums.append(device_sums(recorded.kernels, begin_ns, calls))
    times.profiled_ns.append(end_ns - begin_ns)
    times.cost_ns.append(0.0)


def _matched(recorded: Recorded, known: Sequence[Known], times: _Times) -> dict[int, Known]:
    """By ``id`` of each operator's call, what is known of it."""
    calls = in_order(recorded.roots)
    found, strangers = matched(calls, known)
    times.strangers += strangers
    times.operators += len(calls)
    return {id(call): one for call, one in zip(calls, found, strict=True)}


def _known(workload: Workload, device: torch.device) -> tuple[list[Known], list[str]]:
    """Every operator of a call in order, with place, category, shapes and FLOPs."""
    places = Places(module_names(reachable(workload.roots)))
    plain = _recorded(workload, device, contextlib.nullcontext)
    names, notes = [call.name for call in in_order(plain.roots)], list[str]()
    if any(name.startswith("Torch-Compiled Region") for name in names):
        notes.append("torch.compile: modules and lines of compiled code are not known")  # marks would compile it again
        recorded = _recorded(workload, device, contextlib.nullcontext)
    else:
        recorded = _recorded(workload, device, places.marking)
        if [call.name for call in in_order(recorded.roots)] != names:
            recorded = _recorded(workload, device, partial(places.marking, lines=False))
    found = placed(recorded.roots, recorded.phases, places.named)
    flops = flops_where_done([one.call for one in found])
    return [
        Known(one.call.name, category, one.phase, one.where, one.call.event.shapes, flops.get(id(one.call), 0))
        for one, category in zip(found, categories(found), strict=True)
    ], notes


def _recorded(
    workload: Workload, device: torch.device, marking: Callable[[], contextlib.AbstractContextManager[None]]
) -> Recorded:
    """One call with shapes and FLOPs, and the marks that are asked for."""
    with recording(device.type, shapes=True) as profiler:
        with marking():
            run_marked(workload)
        synchronize(device)
    return recorded_calls(profiler, 1, details=True)[0]
