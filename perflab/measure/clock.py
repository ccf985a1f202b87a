"""Reading time: a monotonic host clock, and CUDA events for work that a GPU does by itself.

``read_ns`` is the only place where perflab reads the host's clock for a measurement, so that a test can put a
virtual clock in its place and tell an exact story.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from perflab.measure.workload import Workload

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

read_ns: Callable[[], int] = time.perf_counter_ns


def synchronized_seconds() -> float:
    """Seconds on the monotonic clock, after the CUDA devices of this process have gone idle."""
    torch = sys.modules.get("torch")  # if nobody loaded torch, no CUDA work can be under way
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
        for index in range(torch.cuda.device_count()):
            if has_context is None or has_context(index):  # waiting for an unused device would make a context on it
                torch.cuda.synchronize(index)
    return time.perf_counter()


@dataclass(frozen=True)
class Sample:
    """Time of ``repetitions`` successive calls, and of each phase within them, in nanoseconds."""

    total_ns: int
    phases_ns: dict[str, int] = field(default_factory=dict)


class Stopwatch(Protocol):
    """Something that can time a workload."""

    name: str

    def time(self, workload: Workload, repetitions: int) -> Sample:
        """Call the workload ``repetitions`` times and return what that took."""
        ...


class HostStopwatch:
    """The host's monotonic clock: right where a call returns only when its work is done, as on a CPU."""

    name = "host"

    def time(self, workload: Workload, repetitions: int) -> Sample:
        """Time calls in a row. The clock is read outside of the loop, so its cost is shared by all of them."""
        if not workload.phases:
            call = workload.run
            start = read_ns()
            for _ in repeat(None, repetitions):
                call()
            return Sample(read_ns() - start)

        spent = dict.fromkeys(workload.phases, 0)
        marks: list[int] = []

        def mark() -> None:
            marks.append(read_ns())

        start = read_ns()
        for _ in repeat(None, repetitions):
            marks.clear()
            marks.append(read_ns())
            workload.run(after_phase=mark)
            for name, begin, end in zip(workload.spans, marks, marks[1:], strict=False):
                spent[name] += end - begin
        return Sample(read_ns() - start, spent)


class CudaStopwatch:
    """CUDA events on the current stream: the device's own clock, with no host round trip inside the span.

    The device is synchronised before the first event and after the last one. Work that a callable puts on
    another stream counts only as far as the current stream waits for it.
    """

    name = "cuda events"

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def time(self, workload: Workload, repetitions: int) -> Sample:
        """Time calls in a row; the events that mark phases are created before the span begins."""
        import torch

        per_call = len(workload.spans) + 1 if workload.spans else 0
        stream = torch.cuda.current_stream(self.device)
        new_event: Any = torch.cuda.Event
        bounds: Any = [new_event(enable_timing=True) for _ in range(2)]
        marks: Any = [new_event(enable_timing=True) for _ in range(per_call * repetitions)]
        upcoming = iter(marks)

        def mark() -> None:
            next(upcoming).record(stream)

        torch.cuda.synchronize(self.device)
        bounds[0].record(stream)
        if workload.phases:
            for _ in repeat(None, repetitions):
                mark()
                workload.run(after_phase=mark)
        else:
            for _ in repeat(None, repetitions):
                workload.run()
        bounds[1].record(stream)
        torch.cuda.synchronize(self.device)

        spent = dict.fromkeys(workload.phases, 0)
        for first in range(0, len(marks), per_call or 1):
            for offset, name in enumerate(workload.spans):
                spent[name] += _elapsed_ns(marks[first + offset], marks[first + offset + 1])
        return Sample(_elapsed_ns(*bounds), spent)


def _elapsed_ns(start: Any, end: Any) -> int:
    milliseconds: float = start.elapsed_time(end)
    return round(milliseconds * 1e6)  # CUDA reports milliseconds, resolution about 0.5 µs
