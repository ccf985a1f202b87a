"""Times the host's launching of a call on a GPU, apart from the work that the GPU then does.

A call's time on a GPU is the time of its kernels only if the host launches faster than the device works. Otherwise the
device waits, and the measured time is the host's: Python, PyTorch's dispatch and the driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING

from perflab.measure.clocks import clock
from perflab.measure.machine.devices import collector_off, synchronize

if TYPE_CHECKING:
    import torch

    from perflab.measure.calls.workload import Workload

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_READINGS = 9
_MOST_CALLS = 16
_WORTH_NS = 100e6
"""Nanoseconds after which no further reading begins: launching does not limit calls that take longer."""
_QUEUED = 500
"""Number of launches in a row that the driver takes without making the host wait: its queue holds about 1,000."""


def launch_ns(workload: Workload, device: torch.device, counts: Mapping[str, int]) -> float | None:
    """Return the host time to launch one call of a warm workload, in nanoseconds.

    The device is idle before the calls, and the calls are too few to fill the driver's queue, so the host never waits.

    Args:
        workload: the workload that is called.
        device: the GPU.
        counts: the counts of one call. None is returned for a call that waits for the device itself, that launches
            nothing or more than the queue is sure to hold, and if nothing was counted.
    """
    launches = counts.get("kernel_launches", 0)
    if not 0 < launches <= _QUEUED or counts.get("host_syncs", 1):
        return None
    spent_ns, calls, readings_ns = 0, 1, list[float]()
    with collector_off():
        while len(readings_ns) < _READINGS and spent_ns < _WORTH_NS:
            workload.make_ready(calls)
            synchronize(device)
            began_ns = clock.read_ns()
            for _ in range(calls):
                workload.run()
            readings_ns.append((clock.read_ns() - began_ns) / calls)
            synchronize(device)
            lasted_ns = clock.read_ns() - began_ns
            spent_ns += lasted_ns
            if calls == 1 and lasted_ns * _MOST_CALLS < _WORTH_NS / _READINGS:
                calls = max(1, min(_MOST_CALLS, _QUEUED // launches))
    return round(median(readings_ns), 3)
