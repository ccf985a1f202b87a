"""What the profiler adds with each event that it records."""

from __future__ import annotations

from statistics import median

from perflab.measure import clock
from perflab.profiles.recording import recording
from perflab.torch_internals.machine import host_events, kineto_results

_CALLS = 500
_ROUNDS = 9


def event_cost_ns() -> float:
    """Time that recording one operator takes on this machine now: of calls that do nothing, with and without it."""
    import torch

    tensor = torch.empty(1)

    def once() -> float:
        start_ns = clock.read_ns()
        for _ in range(_CALLS):
            tensor.detach()
        return (clock.read_ns() - start_ns) / _CALLS

    once()
    plain, profiled = [], []
    for _ in range(_ROUNDS):
        plain.append(once())
        with recording("cpu") as profiler:
            profiled.append(once())
    events = len(host_events(kineto_results(profiler))) / _CALLS  # one or two a call: inference mode has one less
    return max(0.0, (median(profiled) - median(plain)) / max(1.0, events))
