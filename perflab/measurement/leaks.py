"""Detects tensors that pile up from call to call, whatever keeps them.

All tensors that Python's garbage collector tracks are summed after each call, whoever holds them: a list that the
callable names, a module's own file, a hook. A container that fills once, or is replaced, does not grow in each call.
"""

from __future__ import annotations

import gc
from itertools import pairwise
from typing import TYPE_CHECKING

from perflab.attribution.held import held_storages
from perflab.measure.machine.devices import collector_off, synchronize
from perflab.ranks.together import together
from perflab.results.measurement import Leak

if TYPE_CHECKING:
    import torch

    from perflab.measure.calls.workload import Workload

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


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
    from perflab.measurement.measurement import tried
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
