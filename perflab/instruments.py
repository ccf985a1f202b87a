"""The instruments of ``perf``, for a study with its own timing loop: clock, devices, memory, caches. Public.

    synchronize(device)
    began_ns = read_ns()
    step()
    synchronize(device)
    step_ns = read_ns() - began_ns

Importing this module loads no torch.
"""

from perflab.judging.statistics import median_interval
from perflab.measure.clocks.clock import read_ns
from perflab.measure.counts.instructions import count_events
from perflab.measure.machine.devices import as_out_of_memory, available_bytes, eviction_bytes, synchronize

__all__ = [
    "as_out_of_memory",
    "available_bytes",
    "count_events",
    "eviction_bytes",
    "median_interval",
    "read_ns",
    "synchronize",
]
