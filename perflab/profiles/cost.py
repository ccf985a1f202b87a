"""Measures the time that the profiler adds to the calls it records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, NamedTuple

from perflab.internals.of_torch.machine import host_events, kineto_results
from perflab.measure.calls.workload import Workload
from perflab.measure.clocks import clock
from perflab.profiles.recording import recorded_calls, recording, run_marked

if TYPE_CHECKING:
    from perflab.profiles.divided import Sum

_CALLS = 200
_ROUNDS = 9
_WITHIN = 3.0
"""The greatest factor by which an event's cost in real calls may exceed, or fall below, the cost in calls that do
nothing."""
_ERRORS = 2.0
"""How many standard errors an event's cost in real calls must differ from the cost in calls that do nothing, to be
used instead."""


class Cost(NamedTuple):
    """The time that recording takes, in nanoseconds."""

    event_ns: float = 0.0
    """Time to record one event."""
    side_ns: float = 0.0
    """Time of one side of a mark around the call or a phase: Python runs on both sides of the moment at which a
    range begins or ends."""

    def of(self, sums: Iterable[Sum]) -> float:
        """Return the recording time in nanoseconds that these sums, of all calls together, contain."""
        return sum(self.event_ns * one.events + self.side_ns * one.sides for one in sums)

    def as_seen(self, longer_ns: Sequence[float], calls: Sequence[Iterable[Sum]]) -> Cost:
        """Return the cost with the cost of an event as seen in these calls, if it differs significantly from this one.

        Caches are colder in real calls than in a loop that does nothing.

        ``longer_ns`` is by how much each profiled call took longer than the plain call beside it; ``calls`` has the
        sums of each profiled call.
        """
        counted = [list(call) for call in calls]
        events = [sum(one.events for one in call) for call in counted]
        if self.event_ns <= 0 or len(counted) < 2 or not all(events):
            return self
        marks = Cost(side_ns=self.side_ns)
        seen = [
            (longer - marks.of(call)) / count for longer, call, count in zip(longer_ns, counted, events, strict=True)
        ]
        if abs(fmean(seen) - self.event_ns) <= _ERRORS * stdev(seen) / math.sqrt(len(seen)):
            return self
        return self._replace(event_ns=min(max(fmean(seen), self.event_ns / _WITHIN), self.event_ns * _WITHIN))


FREE = Cost()


class _Empty(Workload):
    """A workload whose calls do nothing, with the given phases."""

    def __init__(self, spans: tuple[str, ...]) -> None:
        super().__init__(lambda: None, (), {})
        self.spans = spans

    def run(self, after_phase: Callable[[], None] = lambda: None) -> None:
        for _ in self.spans:
            after_phase()


def cost_of(spans: tuple[str, ...], *, backward: bool) -> Cost:
    """Measure the cost of recording on this machine now, in calls that do next to nothing.

    Args:
        spans: the phase of each span of a call.
        backward: whether the calls run a backward too, whose nodes take longer to record than plain operators.
    """
    empty = _Empty(spans)
    with recording("cpu") as profiler:
        for _ in range(_CALLS):
            run_marked(empty)
    marked_ns = median(one.root.total_ns for one in recorded_calls(profiler, _CALLS))
    return Cost(_event_ns(backward=backward), marked_ns / (2 + 4 * len(spans)))


def _event_ns(*, backward: bool) -> float:
    """Measure the cost of one event in nanoseconds: the time of calls with the profiler minus that without."""
    import torch

    tensor = torch.ones(1)
    with torch.inference_mode(False):
        leaf = torch.ones(1, requires_grad=True)

    def forward_and_backward() -> None:
        with torch.inference_mode(False), torch.enable_grad():
            (leaf * leaf).sum().backward()  # type: ignore[no-untyped-call]

    call: Callable[[], object] = forward_and_backward if backward else tensor.detach

    def once() -> float:
        call()  # the first call after other work is slower
        start_ns = clock.read_ns()
        for _ in range(_CALLS):
            call()
        return (clock.read_ns() - start_ns) / _CALLS

    once()
    plain, profiled, events = [], [], 0.0
    for _ in range(_ROUNDS):
        plain.append(once())
        with recording("cpu") as profiler:
            profiled.append(once())
        events = len(host_events(kineto_results(profiler))) / (_CALLS + 1)
    return max(0.0, (median(profiled) - median(plain)) / max(1.0, events))
