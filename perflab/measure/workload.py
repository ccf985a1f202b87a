"""What is measured: a callable, or the phases of a training step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


class Workload:
    """A call that can be repeated. Each call's result is dropped before the next one begins.

    Keeping it would hold a training step's whole graph alive while the next step runs, and double the memory.
    """

    phases: tuple[str, ...] = ()
    spans: tuple[str, ...] = ()
    """The phase of each span of one call, in the order in which their ends are marked."""

    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._roots: tuple[Any, ...] = (call, args, kwargs)
        self._call = call
        self._args = args
        self._kwargs = kwargs

    @property
    def roots(self) -> tuple[Any, ...]:
        """What the callable has in its hands before it runs."""
        return self._roots

    def make_ready(self, calls: int) -> int:
        """Make what the next calls need, before they are timed, counted or recorded; most need nothing.

        Made ready for no call, a workload lets go what it has made: what comes to be before a recording and goes within
        it is unknown to PyTorch's profiler, which says so.

        Returns:
            How long that took, in nanoseconds.
        """
        return 0

    def most_calls(self, budget_ns: float) -> float:
        """How many calls can be made ready at once, as far as is known by now."""
        return math.inf

    def without_work(self) -> Workload:
        """A workload whose calls are like these, and do nothing."""
        return Workload(lambda: None, (), {})

    def run(self, after_phase: Callable[[], None] = lambda: None) -> Any:
        """Do the work once and return its result."""
        return self._call(*self._args, **self._kwargs)

    def replace_calls(self, call: Callable[..., Any]) -> None:
        """From now on call this instead, even in a loop that is under way."""
        self._call = call


class Step(Workload):
    """A training step: ``result = forward()``, then ``backward(result)``, then ``optimizer()``.

    ``backward`` and ``optimizer`` may be left out. The first two run ``micro_batches`` times in turn, the optimizer
    once. The step's result is what the last ``forward`` returned.
    """

    def __init__(
        self,
        forward: Callable[[], Any],
        backward: Callable[[Any], Any] | None = None,
        optimizer: Callable[[], Any] | None = None,
        micro_batches: int = 1,
    ) -> None:
        super().__init__(forward, (), {})
        self._roots = (forward, backward, optimizer)
        self._backward = backward
        self._optimizer = optimizer
        self._micro_batches = micro_batches
        passes = ("forward", "backward") if backward is not None else ("forward",)
        update = ("optimizer",) if optimizer is not None else ()
        self.phases = (*passes, *update)
        self.spans = (*(passes * micro_batches), *update)

    def replace_calls(self, call: Callable[..., Any]) -> None:
        """From now on each phase calls this instead."""
        super().replace_calls(call)
        self._backward = self._optimizer = call

    def run(self, after_phase: Callable[[], None] = lambda: None) -> Any:
        """Run the phases in order, calling ``after_phase`` at the end of each span."""
        result = None
        for _ in range(self._micro_batches):
            result = None  # the graph of the one before must not be alive beside the next
            result = self._call()
            after_phase()
            if self._backward is not None:
                self._backward(result)
                after_phase()
        if self._optimizer is not None:
            self._optimizer()
            after_phase()
        return result
