"""Times a sample on an accelerator twice, with events and with the host's clock, and checks that both agree.

Events are the device's own clock, and include no host round trip. But events see one stream, code that replaces
``torch.cuda.Event`` can report any time, and the events of some backends do nothing. So a span ends when *all* streams
of the device are idle: the host times the work that other streams still have to do when the current stream has ended,
and adds it. And the host's clock has to agree with the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perflab.base.errors import ClockError
from perflab.measure.clocks import clock
from perflab.units import format_ns

if TYPE_CHECKING:
    from perflab.devices.backend import Backend

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

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
