"""What the profiler adds with each event that it records."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from perflab.measure import clock
from perflab.profiles.recording import recording
from perflab.torch_internals.machine import host_events, kineto_results

_CALLS = 200
_ROUNDS = 9


def event_cost_ns(*, backward: bool) -> float:
    """Time that recording one event takes on this machine now: of calls that do next to nothing, with and without it.

    Args:
        backward: whether the calls run a backward too, whose nodes take longer to record than plain operators.
    """
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
