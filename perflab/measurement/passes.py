"""The passes after the samples: memory and counts of a call, what is alive when memory runs out, and leaks.

A leak is tensors that pile up from call to call, whatever keeps them. All tensors that Python's garbage collector
tracks are summed after each call, whoever holds them: a list that the callable names, a module's own file, a hook. A
container that fills once, or is replaced, does not grow in each call.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from perflab.attribution.held import held_storages
from perflab.attribution.reachable import collector_off
from perflab.base.data import changed
from perflab.base.errors import PerflabError
from perflab.devices.kinds import backend_of
from perflab.internals.lookup import switched_off
from perflab.measure.clocks.device_clock import launch_ns
from perflab.measure.counts.counter import CallCounter
from perflab.measure.machine.devices import synchronize
from perflab.measure.memory.alike import Watched
from perflab.measure.memory.peak import measure_memory
from perflab.ranks.group import together
from perflab.results.measurement import Leak, Memory, OutOfMemory

if TYPE_CHECKING:
    import torch

    from perflab.measure.calls.workload import Workload

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Weight:
    """Memory, counts and result of one call."""

    memory: Memory | None
    counts: dict[str, int]
    off: dict[str, str]
    """The reason why a quantity is unknown, by the quantity's name."""
    result: Any
    """The call's return value."""
    launch_ns: float | None = None
    """Host time to launch a call on a GPU."""
    by_phase: dict[str, dict[str, int]] = field(default_factory=dict)
    """Counts of each phase."""


def weigh(workload: Watched, device: torch.device, counter: CallCounter | None) -> Weight:
    """Measure memory and counts of a call; ``off`` lists the quantities that this PyTorch does not let us read."""
    launching_ns = None
    try:
        if counter is not None:
            counter.count_apart(workload.inner)
            if not backend_of(device).is_host:  # before a result is alive, which may hold as much memory as a call
                launching_ns = launch_ns(workload.inner, device, counter.counts)
        memory, result = measure_memory(workload, device, counter)
    except Exception as error:
        why = switched_off(error)
        if why is None:
            raise
        unknown = ["memory", *(["counts"] if counter is not None else [])]
        return Weight(None, {}, dict.fromkeys(unknown, why.problem), workload.run())
    if counter is None:
        return Weight(memory, {}, {}, result)
    return Weight(memory, dict(sorted(counter.counts.items())), counter.off, result, launching_ns, counter.by_phase)


def with_what_was_alive(found: OutOfMemory, workload: Workload, device: torch.device) -> OutOfMemory:
    """Return ``found`` with what is alive when another call runs out of memory; unchanged if that is not recorded."""
    from perflab.profiles.take_peak import take_failure

    failure, _ = tried(lambda: take_failure(workload, device))
    return found if failure is None else changed(found, alive=failure[0].parts, asked_by=failure[1])


def tried(take: Callable[[], _Found]) -> tuple[_Found | None, str | None]:
    """Return the result of ``take``, or the reason of its failure, so that the completed measurement is not lost.

    The user's code may fail in one call more, or under marks: it may count its calls, or refuse subclasses of tensors.
    """
    try:
        return take(), None
    except PerflabError as error:
        return None, f"{error.problem}; {error.remedy}"
    except Exception as error:
        off = switched_off(error)
        said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        return None, off.problem if off is not None else said


def find_leak(workload: Workload, device: torch.device, calls: int) -> Leak | None:
    """Return what ``calls`` calls of a warm workload keep; None unless more is alive after each call than before it.

    Garbage is collected before each look, so reference cycles are no leak.

    Raises:
        Exception: whatever the workload raises.
    """
    with collector_off():
        workload.make_ready(1)
        workload.run()  # so that a result that is made and dropped changes nothing in the first of the calls
        levels = [_alive_bytes(device)]
        for _ in range(calls):
            workload.make_ready(1)
            workload.run()
            levels.append(_alive_bytes(device))
            if together().most(levels[-1] - levels[-2])[0] <= 0:
                return None
    from perflab.profiles.keepers import take_keepers
    from perflab.profiles.take_peak import take_kept

    kept, _ = tried(lambda: take_kept(workload, device))
    keepers, _ = tried(lambda: take_keepers(workload, device))
    grown_bytes = [after - before for before, after in pairwise(levels)]
    return Leak(grown_bytes=grown_bytes, kept=kept or [], keepers=keepers or [])


def _alive_bytes(device: torch.device) -> int:
    """Return the bytes of the storages of all tensors that Python tracks; only types are inspected, never objects."""
    import torch

    synchronize(device)
    gc.collect()
    return sum(held_storages((one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)), device).values())
