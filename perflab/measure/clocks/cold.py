"""Times calls with cold caches: evicts before each call, outside of its span.

Calls do not share a reading of the clock, so the time of each call includes the cost of a reading; ``empty_call_ns``
measures that cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import repeat
from statistics import median
from typing import TYPE_CHECKING, Any

from perflab.devices.kinds import backend_of
from perflab.measure.calls.workload import Workload
from perflab.measure.clocks import clock
from perflab.measure.clocks.clock import HostStopwatch, Sample, Stopwatch
from perflab.measure.clocks.device_clock import DeviceSpan, elapsed_ns, timing_events
from perflab.measure.machine.caches import Eviction

if TYPE_CHECKING:
    import torch

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

EMPTY_READINGS = 5
_WHOLE = ("",)
"""The names of the spans of a workload without phases: a single unnamed span."""


_EMPTY = Workload(lambda: None, (), {})
"""A workload whose calls do nothing."""


class _ColdStopwatch(Stopwatch):
    """Base class of the stopwatches that evict caches before each call."""

    def __init__(self, eviction: Eviction) -> None:
        self._evict = eviction
        self.evicted_bytes = eviction.size_bytes

    def empty_call_ns(self) -> float:
        """Return the median time of a few empty calls with cold caches, in nanoseconds."""
        return float(median(self.time(_EMPTY, 1).total_ns for _ in range(EMPTY_READINGS)))

    def release(self) -> None:
        """Free the eviction buffer."""
        self._evict.release()


class ColdHostStopwatch(_ColdStopwatch):
    """A stopwatch that reads the host's clock around each call.

    Eviction removes instructions from the caches together with the data, both PyTorch's and the case's own.
    """

    name = "host"

    def __init__(self, eviction: Eviction, wait: Callable[[], None] | None = None) -> None:
        """``wait`` as in ``HostStopwatch``."""
        super().__init__(eviction)
        self._wait = wait

    def time(self, workload: Workload, repetitions: int) -> Sample:
        """Evict caches before each call and time the calls; nothing is evicted between the phases of a step."""
        inner = HostStopwatch(self._wait)
        total_ns = apart_ns = cpu_ns = 0
        spent = dict.fromkeys(workload.phases, 0)
        for _ in repeat(None, repetitions):
            began_ns = clock.read_ns()
            self._evict()
            inner.time(_EMPTY, 1)  # loads the clock's own instructions, which are not to be measured
            cpu_before_ns = time.process_time_ns()
            sample = inner.time(workload, 1)
            cpu_ns += time.process_time_ns() - cpu_before_ns
            total_ns += sample.total_ns
            apart_ns += clock.read_ns() - began_ns - sample.total_ns
            for name, phase_ns in sample.phases_ns.items():
                spent[name] += phase_ns
        return Sample(total_ns, spent, apart_ns, cpu_ns)


class ColdDeviceStopwatch(_ColdStopwatch):
    """A stopwatch that records events around each call, after the eviction, as in Triton's ``do_bench``.

    The host does not wait between calls: while the device evicts, the call is launched, and it follows at once.
    """

    def __init__(self, device: torch.device, eviction: Eviction) -> None:
        super().__init__(eviction)
        self._backend = backend_of(device)
        self.name = f"{device.type} events"

    def time(self, workload: Workload, repetitions: int) -> Sample:
        """Queue all calls with their evictions, wait once, and read the events."""
        spans = workload.spans or _WHOLE
        stream = self._backend.current_stream()
        span = DeviceSpan(self._backend, stream)
        calls = [timing_events(len(spans) + 1, self._backend, stream) for _ in range(repetitions)]
        span.begin()
        for events in calls:
            self._evict()
            self._record(workload, events, stream)
        span.end()

        spent = dict.fromkeys(spans, 0)
        for events in calls:
            for name, begin, end in zip(spans, events, events[1:], strict=False):
                spent[name] += elapsed_ns(begin, end)
        reading = span.reading()
        # Other streams worked after each call as they did after the last, hidden behind the next call's eviction.
        total_ns = sum(spent.values()) + repetitions * span.others_ns
        apart_ns = max(0, reading.device_ns - total_ns)
        return Sample(total_ns, spent if workload.phases else {}, apart_ns, reading=reading)

    def _record(self, workload: Workload, events: list[Any], stream: Any) -> None:
        """Run one call, recording events at its beginning and at the end of each span."""
        upcoming = iter(events)

        def mark() -> None:
            next(upcoming).record(stream)

        mark()
        if workload.phases:
            workload.run(after_phase=mark)
        else:
            workload.run()
            mark()
