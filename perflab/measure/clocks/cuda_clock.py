"""Times work on a GPU with CUDA events around successive calls."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from perflab.measure.clocks.clock import Sample, Stopwatch
from perflab.measure.clocks.span import DeviceSpan, elapsed_ns, timing_events

if TYPE_CHECKING:
    import torch

    from perflab.measure.calls.workload import Workload

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


class CudaStopwatch(Stopwatch):
    """A stopwatch on CUDA events of the current stream: the device's own clock, with no host round trip in the span.

    The device is idle before the first event. The span ends when all streams of the device are idle. A phase of a step
    is timed on the current stream, so work on other streams belongs to a phase as far as the current stream waits for
    that work.
    """

    name = "cuda events"

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def time(self, workload: Workload, repetitions: int) -> Sample:
        """Time calls in a row; the events that mark phases are created before the span begins."""
        import torch

        per_call = len(workload.spans) + 1 if workload.spans else 0
        stream = torch.cuda.current_stream(self.device)
        span = DeviceSpan(self.device, stream)
        marks = timing_events(per_call * repetitions, stream)
        upcoming = iter(marks)

        def mark() -> None:
            next(upcoming).record(stream)

        span.begin()
        if workload.phases:
            for _ in repeat(None, repetitions):
                mark()
                workload.run(after_phase=mark)
        else:
            for _ in repeat(None, repetitions):
                workload.run()
        span.end()

        spent = dict.fromkeys(workload.phases, 0)
        for first in range(0, len(marks), per_call or 1):
            for offset, name in enumerate(workload.spans):
                spent[name] += elapsed_ns(marks[first + offset], marks[first + offset + 1])
        reading = span.reading()
        return Sample(reading.device_ns, spent, reading=reading)
