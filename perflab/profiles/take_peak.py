"""Divides the peak memory of a call into what was held before, and what operators, modules and lines add to that.

Also finds the memory that a call keeps when it is over, by operator, module and line.

As in the gate's own pass, a first call lets the profiler know the blocks that the second one frees. Marks for modules
and lines may change the memory that a call needs: then fewer marks are set, until the call rises as far as without any.
"""

from __future__ import annotations

import contextlib
import gc
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from perflab.attribution.held import held_by_address, held_bytes, held_storages
from perflab.attribution.places import Places, module_names
from perflab.attribution.reachable import collector_off, reachable
from perflab.base.data import changed
from perflab.devices.backend import Quantity
from perflab.devices.kinds import backend_of
from perflab.internals.of_torch.machine import BlockEvent, block_events, kineto_results
from perflab.measure.counts.events import OPERATOR, profiler
from perflab.measure.machine.devices import as_out_of_memory, release_memory, synchronize
from perflab.measure.memory.peak import free_bytes_in, replayed_pools
from perflab.profiles.events import placed
from perflab.profiles.keepers import take_keepers
from perflab.profiles.peak import Askers, alive_after, made_by_call, summed
from perflab.profiles.recording import RAN_OUT, Recorded, recorded_calls, refuse_another_profiler, run_marked
from perflab.results.peak import INPUTS, KEPT, LET_GO, Peak, PeakPart
from perflab.results.profile import BACKWARD

if TYPE_CHECKING:
    import torch

    from perflab.measure.calls.workload import Workload

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_AROUND = "perflab: peak memory"
_CALLS = 3
"""The number of calls that show what a call keeps. The first lets the profiler know the blocks that the second frees;
the third frees the blocks that live from one call to the next."""
_Marking = Callable[[], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class _Pass:
    """Two recorded calls, and the memory that was held between the two."""

    calls: list[Recorded]
    events: list[BlockEvent]
    held: dict[int, PeakPart]
    """The parts held between the calls, by address."""
    pools_bytes: int
    grows_bytes: int

    def parts(self, places: Places) -> list[PeakPart]:
        """Return all parts that are alive at the peak of the second call, the largest first."""
        askers, call = _askers(self.calls, places), self.calls[1].root.event
        made = made_by_call(self.events, call.start_ns, askers, ended_ns=call.end_ns)
        before = takewhile(lambda one: one.time_ns < call.start_ns, self.events)
        kept = {event.address: askers.at(event) for event in alive_after(before)}
        inputs = {address: one.size_bytes for address, one in self.held.items() if one.category == INPUTS}
        # A holder that grows has blocks of earlier calls too, which are as large as the block of the last call.
        alike = {size: kept[address] for address, size in inputs.items() if address in kept and self.grows_bytes > 0}
        asked = {address: kept.get(address) or alike.get(size) for address, size in inputs.items()}
        held = [
            by.part(KEPT, one.size_bytes, 1)
            if (by := asked.get(address))
            else _with_line(one, places.called.get(one.module, []))
            for address, one in self.held.items()
        ]
        pools = [PeakPart(category="CUDA graphs", size_bytes=self.pools_bytes, blocks=1)] if self.pools_bytes else []
        # Without marks for lines, a block has the line that calls its module.
        made = [one if one.line else _with_line(one, places.called.get(one.module, [])) for one in made]
        return sorted([*summed(held), *pools, *made], key=lambda part: -abs(part.size_bytes))

    def with_gradients(self, places: Places) -> dict[str, list[str]]:
        """Return the operators of the second call's forward that autograd numbers, alone or around them, by module."""
        call, found = self.calls[1], defaultdict[str, dict[str, None]](dict)
        for one in placed(call.roots, call.phases, places.named):
            if OPERATOR.match(one.call.name) and one.role != BACKWARD:
                names = found[one.where.module]
                if any(above.event.sequence >= 0 for above in one.call.outwards() if not above.is_range):
                    names[one.call.name] = None
        return {module: list(names) for module, names in found.items()}


def _askers(calls: Sequence[Recorded], places: Places) -> Askers:
    found = [one for call in calls for one in placed(call.roots, call.phases, places.named)]
    return Askers(found, [(phase.start_ns, phase.name) for call in calls for phase in call.phases])


def _with_line(part: PeakPart, called: Sequence[str]) -> PeakPart:
    """Return a part with the line that calls its module, if the line is known."""
    stack = called[0].split(" < ") if called and part.module else []
    return changed(part, line=stack[0], stack=stack) if stack else part


def take_peak(workload: Workload, device: torch.device) -> Peak:
    """Return what is alive at the peak of one call of a workload that is warm.

    Raises:
        UsageError: another profiler runs, or perflab's own recorded nothing.
        Exception: whatever the workload raises.
    """
    backend_of(device).refuse(Quantity.HISTORY, "compare peaks on a CPU or under CUDA")
    refuse_another_profiler("measure")
    places = Places(module_names(reachable(workload.roots)))
    plain = _recorded(workload, device, contextlib.nullcontext)
    parts = plain.parts(places)
    if plain.calls[1].is_compiled:  # marks would compile it again
        return Peak(parts=parts, grows_bytes=plain.grows_bytes)
    total_bytes, with_gradients = sum(part.size_bytes for part in parts), dict[str, list[str]]()
    for lines in (True, False):
        total_bytes += 2 * plain.grows_bytes  # the two calls of each pass keep as much
        recorded = _recorded(workload, device, partial(places.marking, lines=lines, stacks=lines))
        marked = recorded.parts(places)
        if sum(part.size_bytes for part in marked) == total_bytes:
            parts, with_gradients = marked, recorded.with_gradients(places)
            break
    is_kept = plain.grows_bytes > 0 or any(part.category == KEPT for part in parts)
    keepers = take_keepers(workload, device) if is_kept else []
    return Peak(
        parts=parts,
        grows_bytes=plain.grows_bytes,
        keepers=keepers,
        backward=places.called.get("", []),
        with_gradients=with_gradients,
    )


def take_failure(workload: Workload, device: torch.device) -> tuple[Peak, PeakPart] | None:
    """Return what is alive when a call runs out of memory, and the origin of the allocation that failed.

    The origin is operator, module, line and its callers, without a size. None: the call does not run out of memory.

    Raises:
        UsageError: another profiler runs.
        Exception: whatever else the workload raises.
    """
    backend_of(device).refuse(Quantity.HISTORY, "compare peaks on a CPU or under CUDA")
    refuse_another_profiler("measure")
    places = Places(module_names(reachable(workload.roots)))
    workload.make_ready(0)
    with collector_off(), profiler(device.type, profile_memory=True) as watching:
        workload.make_ready(1)
        found = list(reachable(workload.roots))
        before = held_by_address(found, module_names(found), device)
        del found
        try:
            run_within_a_range(workload, partial(places.marking, stacks=True))
        except Exception as error:
            if as_out_of_memory(error) is None:
                raise
        left = held_storages(reachable(workload.roots), device)
    results = kineto_results(watching)
    ran_out = [one for one in results.events() if one.name() == RAN_OUT]
    if not ran_out:
        return None
    failed_ns, thread = ran_out[-1].start_ns(), ran_out[-1].start_thread_id()
    (call,) = recorded_calls(watching, 1, details=True)
    askers = _askers([call], places)
    events, began_ns = block_events(results, device), call.root.event.start_ns
    # Which held blocks the call has freed is read from the objects: the profiler records this for CUDA alone.
    anew = {event.address for event in events if event.size_bytes > 0 and event.time_ns >= began_ns}
    held = summed(part for address, part in before.items() if address in left and address not in anew)
    made = [part for part in made_by_call(events, began_ns, askers, failed_ns) if part.category != LET_GO]
    alive = Peak(parts=sorted([*held, *made], key=lambda part: -abs(part.size_bytes)))
    return alive, askers.at(BlockEvent(failed_ns, thread, 0, 0)).part("", 0, 0)


def _recorded(workload: Workload, device: torch.device, marking: _Marking) -> _Pass:
    import torch

    workload.make_ready(0)
    release_memory(device)
    backend = backend_of(device)
    pools = contextlib.nullcontext(set[Any]()) if backend.is_host else replayed_pools(workload.roots)
    with collector_off(), pools as replayed, profiler(device.type, profile_memory=True) as watching:
        workload.make_ready(1)
        before_bytes = held_bytes(workload.roots, device)
        run_within_a_range(workload, marking)
        workload.make_ready(1)
        synchronize(device)
        backend.await_autograd()
        found = list(reachable(workload.roots))
        held = held_by_address(found, module_names(found), device)
        grows_bytes = sum(one.size_bytes for one in held.values()) - before_bytes
        pools_bytes = free_bytes_in(replayed, device)
        del found  # the list keeps gradients alive that the next call frees
        result = run_within_a_range(workload, marking)
        synchronize(device)
        with torch.profiler.record_function(_AROUND):  # records what the result frees
            del result
    return _Pass(
        recorded_calls(watching, 2, details=True),
        block_events(kineto_results(watching), device),
        held,
        pools_bytes,
        grows_bytes,
    )


def run_within_a_range(workload: Workload, marking: _Marking) -> Any:
    """Run one marked call, within a range that is opened before the marks; return the call's result.

    The profiler drops events of a device's memory that lie in no range, and a mark ends the ranges opened within it.
    """
    import torch

    with torch.profiler.record_function(_AROUND), marking():
        return run_marked(workload)


def take_kept(workload: Workload, device: torch.device) -> list[PeakPart]:
    """Return the blocks that one call allocates and a later call has not freed, the largest first.

    Raises:
        UsageError: another profiler runs, or perflab's own recorded nothing.
        Exception: whatever the workload raises.
    """
    refuse_another_profiler("look for leaks")
    places = Places(module_names(reachable(workload.roots)))
    with collector_off(), profiler(device.type, profile_memory=True) as watching:
        for _ in range(_CALLS):
            run_within_a_range(workload, places.marking)
            synchronize(device)
            gc.collect()
    calls = recorded_calls(watching, _CALLS, details=True)
    began_ns, ended_ns = (call.root.event.start_ns for call in calls[1:])
    askers = _askers(calls, places)
    there = alive_after(block_events(kineto_results(watching), device))
    made = (event for event in there if began_ns <= event.time_ns < ended_ns)
    return summed(askers.at(event).part(KEPT, event.size_bytes, 1) for event in made)
