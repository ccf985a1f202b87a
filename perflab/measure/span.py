"""Times a sample on a GPU twice, with events and with the host's clock, and checks that both agree.

Events are the device's own clock, and hold no host round trip. But they see one stream, and whoever replaces
``torch.cuda.Event`` tells the time. So a span ends when *all* streams of the device are idle: what others still have to
do when the current one has ended is timed by the host and added. And the host's clock has to agree with the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perflab.errors import ClockError
from perflab.measure import clock
from perflab.units import format_ns

if TYPE_CHECKING:
    import torch

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

EVENT_STEP_NS = 500
"""CUDA reports milliseconds between events, at a resolution of about this."""
_WAITS = 3
"""An idle device is waited for within so many times the time that it took just before."""
_WAIT_NS = 10_000
SLACK = 0.05
SLACK_NS = 200_000
"""By how much the host's reading may exceed that of events: launching the first, and waking up after the last."""
AHEAD = 0.01
AHEAD_NS = 5_000
"""By how much it may fall short: events are within it, and two clocks run almost alike."""

_READINGS_TO_JUDGE = 8
"""Of fewer samples a busy host may have delayed all."""


@dataclass(frozen=True)
class Reading:
    """One span, twice: what is reported of it, and the host's time around it."""

    device_ns: int
    host_ns: int


def timing_events(count: int, stream: Any) -> list[Any]:
    """Events that can be recorded at no cost but recording: PyTorch creates one when it is first recorded."""
    import torch

    new_event: Any = torch.cuda.Event
    events = [new_event(enable_timing=True) for _ in range(count)]
    for event in events:
        event.record(stream)
    return events


def elapsed_ns(start: Any, end: Any) -> int:
    """Nanoseconds between two CUDA events that the device has passed."""
    milliseconds: float = start.elapsed_time(end)
    return round(milliseconds * 1e6)


class DeviceSpan:
    """Times what is launched between ``begin`` and ``end``. Made before the span, for one sample."""

    def __init__(self, device: torch.device, stream: Any) -> None:
        self._device = device
        self._stream = stream
        self._bounds = timing_events(2, stream)
        self._idle_wait_ns = self._began_ns = self._host_ns = 0
        self.others_ns = 0
        """How long other streams were at work when the current one had ended."""

    def begin(self) -> None:
        """Wait until the device is idle, and begin."""
        import torch

        torch.cuda.synchronize(self._device)
        before_ns = clock.read_ns()
        torch.cuda.synchronize(self._device)
        self._began_ns = clock.read_ns()
        self._idle_wait_ns = self._began_ns - before_ns
        self._bounds[0].record(self._stream)

    def end(self) -> None:
        """End on the current stream, then wait for all others."""
        import torch

        self._bounds[1].record(self._stream)
        self._bounds[1].synchronize()
        stream_ended_ns = clock.read_ns()
        torch.cuda.synchronize(self._device)
        ended_ns = clock.read_ns()
        waited_ns = ended_ns - stream_ended_ns
        self.others_ns = waited_ns if waited_ns > _WAIT_NS + _WAITS * self._idle_wait_ns else 0
        self._host_ns = ended_ns - self._began_ns

    def reading(self) -> Reading:
        """The whole span."""
        return Reading(elapsed_ns(*self._bounds) + self.others_ns, self._host_ns)


def check_agreement(readings: Sequence[Reading | None], *, more_to_come: bool = False) -> None:
    """Refuse samples of which events tell another story than the host's clock.

    A busy machine delays the host now and then, in most samples at times, but not in three of four. While there are
    few samples and ``more_to_come``, only what no delay explains is refused: events that last longer than the host's
    time around them. Of few samples that are all there will be, the one that agrees best has to agree.

    Raises:
        ClockError: the two disagree.
    """
    beyond_ns = _ahead_ns if more_to_come and len(readings) < _READINGS_TO_JUDGE else _beyond_slack_ns
    read = sorted((reading for reading in readings if reading is not None), key=beyond_ns)
    if read and beyond_ns(told := read[len(read) // 4 if len(read) >= _READINGS_TO_JUDGE else 0]) > 0:
        raise ClockError(
            f"CUDA events say that a sample lasts {format_ns(told.device_ns)}, and the host's clock "
            f"{format_ns(told.host_ns)} around it",
            "do not patch torch.cuda.Event, its methods or torch.cuda.synchronize while perf() measures",
        )


def _beyond_slack_ns(reading: Reading) -> float:
    """How much further apart the two clocks are than they may be; below zero where they agree."""
    over_ns = reading.host_ns - reading.device_ns
    return max(over_ns - SLACK_NS - SLACK * reading.host_ns, _ahead_ns(reading))


def _ahead_ns(reading: Reading) -> float:
    """How much further than it may the events' time is past the host's."""
    return reading.device_ns - reading.host_ns - AHEAD_NS - AHEAD * reading.host_ns
