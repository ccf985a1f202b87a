"""Tells a callable that does no work: it is as fast as an empty one. Such a time is no measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perflab.measure.measurement import stopwatch_for
from perflab.measure.workload import Workload

if TYPE_CHECKING:
    import torch

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

NO_WORK = 1.25
"""A callable no slower than this many empty calls does nothing that could be measured."""
LOOKS_LIKE_NONE = 4.0
"""One slower than this many cannot be one, however fast the core was before."""
_TURNS = 5


def is_as_fast_as_none(workload: Workload, call_ns: float, repetitions: int, device: torch.device) -> bool:
    """Whether a call is no more than an empty one. What may be is timed beside one, since cores change their speed.

    Args:
        workload: what was measured.
        call_ns: what a call of it took.
        repetitions: calls in a sample; a call that is one by itself is too long for an empty one.
        device: where it works.
    """
    if repetitions == 1:
        return False
    stopwatch, empty = stopwatch_for(device), Workload(lambda: None, (), {})
    if call_ns > LOOKS_LIKE_NONE * stopwatch.time(empty, repetitions).total_ns / repetitions:
        return False
    turns = [(stopwatch.time(empty, repetitions), stopwatch.time(workload, repetitions)) for _ in range(_TURNS)]
    return min(work.total_ns for _, work in turns) <= NO_WORK * min(nothing.total_ns for nothing, _ in turns)
