"""What the profiler adds to the calls that it records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, NamedTuple

from perflab.measure import clock
from perflab.measure.workload import Workload
from perflab.profiles.recording import recorded_calls, recording, run_marked
from perflab.torch_internals.machine import host_events, kineto_results

if TYPE_CHECKING:
    from perflab.profiles.host import Sum

_CALLS = 200
_ROUNDS = 9
_WITHIN = 3.0
"""Factor by which an event in real calls may cost more, or less, than in calls that do nothing."""
_ERRORS = 2.0
"""Standard errors from which on the calls tell what an event costs."""


class Cost(NamedTuple):
    """Time that recording takes."""

    event_ns: float = 0.0
    """Of an event."""
    side_ns: float = 0.0
    """Of a side of a mark around the call or a phase: Python runs on both, before a range begins and after."""

    def of(self, sums: Iterable[Sum]) -> float:
        """What is in the time of these, of all calls together."""
        return sum(self.event_ns * one.events + self.side_ns * one.sides for one in sums)

    def as_seen(self, longer_ns: Sequence[float], calls: Sequence[Iterable[Sum]]) -> Cost:
        """With the cost of an event in these calls, where they tell it: caches are colder there than in a loop.

        ``longer_ns``: by how much each profiled call took longer than the plain one beside it.
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
    """A call that does nothing, in as many phases."""

    def __init__(self, spans: tuple[str, ...]) -> None:
        super().__init__(lambda: None, (), {})
        self.spans = spans

    def run(self, after_phase: Callable[[], None] = lambda: None) -> None:
        for _ in self.spans:
            after_phase()


def cost_of(spans: tuple[str, ...], *, backward: bool) -> Cost:
    """What recording takes on this machine now, of calls that do next to nothing.

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
    """Of one event: calls with the profiler, less calls without."""
    import torch

    tensor = torch.ones(1)
    with torch.inference_mode(False):
        leaf = torch.ones(1, requires_grad=True)

    def forward_and_backward() -> None:
        with torch.inference_mode(False), torch.enable_grad():
            (leaf * leaf).sum().backward()  # type: ignore[no-untyped-call]

    call: Callable[[], object] = forward_and_backward if backward else tensor.detach

    def once() -> float:
        call()  # the first after something else is slower
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
