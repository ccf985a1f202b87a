"""Times work on an accelerator with its own events, and checks them against the host's clock.

Events are the device's own clock, and include no host round trip. But events see one stream, code that replaces
``torch.cuda.Event`` can report any time, and the events of some backends do nothing. So a span ends when *all* streams
of the device are idle: the host times the work that other streams still have to do when the current stream has ended,
and adds it. And the host's clock has to agree with the whole.

A call's time on a GPU is the time of its kernels only if the host launches faster than the device works. Otherwise the
device waits, and the measured time is the host's: Python, PyTorch's dispatch and the driver. ``launch_ns`` times the
host's launching apart from the work that the GPU then does.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from statistics import median
from typing import TYPE_CHECKING, Any

from perflab.attribution.reachable import collector_off
from perflab.base.errors import ClockError
from perflab.devices.backend import Backend, Quantity
from perflab.devices.kinds import backend_of
from perflab.measure.clocks import clock
from perflab.measure.clocks.clock import Sample, Stopwatch
from perflab.measure.machine.devices import synchronize
from perflab.units import format_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from perflab.devices.backend import Backend
    from perflab.measure.calls.workload import Workload


__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours
_READINGS = 9
_MOST_CALLS = 16
_WORTH_NS = 100e6
"""Nanoseconds after which no further reading begins: launching does not limit calls that take longer."""
_QUEUED = 500
"""Number of launches in a row that the driver takes without making the host wait: its queue holds about 1,000."""
_PROBED_S = 0.005
"""Seconds that the host waits between two events that are to show whether they tell the time."""
EVENT_STEP_NS = 500
"""Approximate resolution, in nanoseconds, of the time between events, which PyTorch reports in milliseconds."""
_WAITS = 3
"""Waiting for an idle device takes at most this many times as long as just before; a longer wait is for other work."""
_WAIT_NS = 10_000
SLACK = 0.05
SLACK_NS = 200_000
"""Nanoseconds by which the host's reading may exceed that of events, beside the share ``SLACK``: the host launches the
first event, and wakes up after the last."""
AHEAD = 0.01
AHEAD_NS = 5_000
"""Nanoseconds by which the host's reading may fall short of that of events, beside the share ``AHEAD``: the events lie
within the host's time, and the two clocks run almost alike."""

_READINGS_TO_JUDGE = 8
"""Least number of samples of which a busy host has not delayed all."""


@dataclass(frozen=True)
class Reading:
    """Two readings of one span: the device's time, which is reported, and the host's time around the span."""

    device_ns: int
    host_ns: int


def timing_events(count: int, backend: Backend, stream: Any) -> list[Any]:
    """Return events that were recorded once, since PyTorch creates an event at its first recording.

    Recording these events again costs nothing but the recording.
    """
    events = [backend.new_event() for _ in range(count)]
    for event in events:
        event.record(stream)
    return events


def elapsed_ns(start: Any, end: Any) -> int:
    """Return the nanoseconds between two events that the device has passed."""
    milliseconds: float = start.elapsed_time(end)
    return round(milliseconds * 1e6)


class DeviceSpan:
    """A timer of the work that is launched between ``begin`` and ``end``, created before the span of one sample."""

    def __init__(self, backend: Backend, stream: Any) -> None:
        self._backend = backend
        self._stream = stream
        self._bounds = timing_events(2, backend, stream)
        self._idle_wait_ns = self._began_ns = self._host_ns = 0
        self.others_ns = 0
        """Nanoseconds for which other streams were still at work when the current stream had ended."""

    def begin(self) -> None:
        """Wait until the device is idle, and begin the span."""
        self._backend.synchronize()
        before_ns = clock.read_ns()
        self._backend.synchronize()
        self._began_ns = clock.read_ns()
        self._idle_wait_ns = self._began_ns - before_ns
        self._bounds[0].record(self._stream)

    def end(self) -> None:
        """End the span on the current stream, then wait for all other streams."""
        self._bounds[1].record(self._stream)
        self._bounds[1].synchronize()
        stream_ended_ns = clock.read_ns()
        self._backend.synchronize()
        ended_ns = clock.read_ns()
        waited_ns = ended_ns - stream_ended_ns
        self.others_ns = waited_ns if waited_ns > _WAIT_NS + _WAITS * self._idle_wait_ns else 0
        self._host_ns = ended_ns - self._began_ns

    def reading(self) -> Reading:
        """Return the readings of the whole span by both clocks."""
        return Reading(elapsed_ns(*self._bounds) + self.others_ns, self._host_ns)


def check_agreement(readings: Sequence[Reading | None], *, more_to_come: bool = False) -> None:
    """Refuse samples whose events disagree with the host's clock.

    A busy machine delays the host in some samples, at times in most of them, but not in three of four. While there are
    few samples and ``more_to_come``, only samples that no delay explains are refused: their events last longer than the
    host's time around the events. If few samples are all there will be, the sample that agrees best has to agree.

    Raises:
        ClockError: the two clocks disagree.
    """
    beyond_ns = _ahead_ns if more_to_come and len(readings) < _READINGS_TO_JUDGE else _beyond_slack_ns
    read = sorted((reading for reading in readings if reading is not None), key=beyond_ns)
    if read and beyond_ns(told := read[len(read) // 4 if len(read) >= _READINGS_TO_JUDGE else 0]) > 0:
        raise ClockError(
            f"the device's events say that a sample lasts {format_ns(told.device_ns)}, and the host's clock "
            f"{format_ns(told.host_ns)} around it",
            "do not patch torch.Event, torch.cuda.Event, their methods or synchronize() while perf() measures",
        )


def _beyond_slack_ns(reading: Reading) -> float:
    """Return by how many nanoseconds the two clocks differ too much; negative if they agree."""
    over_ns = reading.host_ns - reading.device_ns
    return max(over_ns - SLACK_NS - SLACK * reading.host_ns, _ahead_ns(reading))


def _ahead_ns(reading: Reading) -> float:
    """Return by how many nanoseconds the events' time exceeds the host's too much; negative if it does not."""
    return reading.device_ns - reading.host_ns - AHEAD_NS - AHEAD * reading.host_ns


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
