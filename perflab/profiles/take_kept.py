"""Finds the memory that a call keeps when it is over: blocks by operator, module and line."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from perflab.attribution.places import Places, module_names
from perflab.base.reachable import reachable
from perflab.internals.of_torch.machine import BlockEvent, block_events, kineto_results
from perflab.measure.counts.events import profiler
from perflab.measure.machine.devices import collector_off, synchronize
from perflab.profiles.peak import Askers, summed
from perflab.profiles.placed import placed
from perflab.profiles.recording import recorded_calls, refuse_another_profiler
from perflab.profiles.take_peak import run_within_a_range
from perflab.results.peak import PeakPart

if TYPE_CHECKING:
    import torch

    from perflab.measure.calls.workload import Workload

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

KEPT = "kept"
_CALLS = 3
"""The number of calls. The first lets the profiler know the blocks that the second frees; the third frees the blocks
that live from one call to the next."""


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
    found = [one for call in calls for one in placed(call.roots, call.phases, places.named)]
    askers = Askers(found, [(phase.start_ns, phase.name) for call in calls for phase in call.phases])
    there: dict[int, BlockEvent] = {}
    for event in block_events(kineto_results(watching), device):
        if event.size_bytes < 0:
            there.pop(event.address, None)
        else:
            there[event.address] = event
    made = (event for event in there.values() if began_ns <= event.time_ns < ended_ns)
    return summed(askers.at(event).part(KEPT, event.size_bytes, 1) for event in made)
