"""Times work on an accelerator with its own events around successive calls."""

from __future__ import annotations

import time
from functools import cache
from itertools import repeat
from typing import TYPE_CHECKING

from perflab.base.errors import ClockError
from perflab.devices.backend import Backend, Quantity
from perflab.devices.kinds import backend_of
from perflab.measure.clocks.clock import Sample, Stopwatch
from perflab.measure.clocks.span import DeviceSpan, elapsed_ns, timing_events

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from perflab.measure.calls.workload import Workload

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


class DeviceStopwatch(Stopwatch):
    """A stopwatch on events of the current stream: the device's own clock, with no host round trip in the span.

    The device is idle before the first event. The span ends when all streams of the device are idle. A phase of a step
    is timed on the current stream, so work on other streams belongs to a phase as far as the current stream waits for
    that work.
    """

    def __init__(self, device: torch.device) -> None:
        self._backend = backend_of(device)
        self.name = f"{device.type} events"

    def time(self, workload: Workload, repetitions: int) -> Sample:
        """Time calls in a row; the events that mark phases are created before the span begins."""
        per_call = len(workload.spans) + 1 if workload.spans else 0
        stream = self._backend.current_stream()
        span = DeviceSpan(self._backend, stream)
        marks = timing_events(per_call * repetitions, self._backend, stream)
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


_PROBED_S = 0.005
"""Seconds that the host waits between two events that are to show whether they tell the time."""


def wait_of_the_host(backend: Backend) -> Callable[[], None] | None:
    """Return what the host's clock waits with where a device's events cannot time; None where they can, and on a CPU.

    Raises:
        ClockError: the events cannot time, and nothing is known to wait for the device either.
    """
    if backend.is_host or (why := events_fail(backend.device)) is None:
        return None
    if not backend.waits_by_itself:
        kind = backend.device.type
        raise ClockError(
            f"nothing tells the time of work on {backend.device}: {why}, and its module has no synchronize()",
            f"let the backend's module (torch.{kind}) have a synchronize() that waits until the device is idle",
        )
    return backend.synchronize


@cache
def events_fail(device: torch.device) -> str | None:
    """Return why a device's events cannot time its work; None if two of them agree with the host about a short wait.

    CUDA's are taken as true: every sample is held against the host's clock (``check_agreement``). Others' are tried
    once a process: the events of a backend that is written in Python may do nothing, and raise nothing
    (https://github.com/pytorch/pytorch/issues/195458, https://github.com/pytorch/pytorch/issues/196302).
    """
    backend = backend_of(device)
    if (why := backend.MISSING.get(Quantity.EVENTS)) is not None or backend.profiler == "cuda":
        return why
    try:
        with backend.current():
            stream = backend.current_stream()
            start, end = (backend.new_event() for _ in range(2))
            outer_s = time.perf_counter()
            start.record(stream)
            start.synchronize()
            time.sleep(_PROBED_S)
            end.record(stream)
            end.synchronize()
            outer_s = time.perf_counter() - outer_s
            told_s = elapsed_ns(start, end) / 1e9
    except Exception as error:  # a backend's own, of any class
        return f"its events raise {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    if 0.9 * _PROBED_S <= told_s <= outer_s + 0.1 * _PROBED_S:
        return None
    return f"its events say that a wait of {_PROBED_S * 1e3:.0f} ms took {told_s * 1e3:.3g} ms"
