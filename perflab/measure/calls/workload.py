"""Workloads to measure: a callable, or phases of any names, such as those of a training step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


class Outputs(NamedTuple):
    """The steps of one call of a generation that produced tokens, in order."""

    at_ns: tuple[int, ...]
    """Time of each step by the host's clock, in nanoseconds from the beginning of the call."""
    tokens: tuple[int, ...]
    """Number of tokens that each sequence got in each step."""
    batch: int = 1
    """Number of sequences in the call."""


class Workload:
    """A call that can be repeated. Each call's result is dropped before the next one begins.

    A kept result would hold a training step's whole graph alive while the next step runs, and double the memory.
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
        """The objects that the callable holds before it runs: itself, and its arguments."""
        return self._roots

    def make_ready(self, calls: int) -> int:
        """Make what the next calls need, before they are timed, counted or recorded; most workloads need nothing.

        With 0 calls, a workload lets go what it has made: PyTorch's profiler does not know a block that was made before
        a recording and is freed within the recording, and says so.

        Returns:
            The time that this took, in nanoseconds.
        """
        return 0

    def most_calls(self, budget_ns: float) -> float:
        """Return how many calls can be made ready at once, as far as is known by now."""
        return math.inf

    def without_work(self) -> Workload:
        """Return a workload whose calls are made like these, and do nothing."""
        return Workload(lambda: None, (), {})

    def run(self, after_phase: Callable[[], None] = lambda: None) -> Any:
        """Do the work once and return its result."""
        return self._call(*self._args, **self._kwargs)

    def outputs(self) -> Outputs | None:
        """Return when the last call produced tokens; None for a workload that generates none."""
        return None

    def replace_calls(self, call: Callable[..., Any]) -> None:
        """Call ``call`` instead from now on, even in a loop that is under way."""
        self._call = call


class Wrapped(Workload):
    """A workload that wraps another one, to do something around its calls."""

    def __init__(self, inner: Workload) -> None:
        self.phases, self.spans = inner.phases, inner.spans
        self.inner = inner

    @property
    def roots(self) -> tuple[Any, ...]:
        """The objects that the callable holds before it runs: itself, and its arguments."""
        return self.inner.roots

    def make_ready(self, calls: int) -> int:
        """Make what the next calls need; return the time that this took, in nanoseconds."""
        return self.inner.make_ready(calls)

    def most_calls(self, budget_ns: float) -> float:
        """Return how many calls can be made ready at once."""
        return self.inner.most_calls(budget_ns)

    def without_work(self) -> Workload:
        """Return a workload whose calls are made like these, and do nothing."""
        return self.inner.without_work()

    def outputs(self) -> Outputs | None:
        """Return when the last call produced tokens; None for a workload that generates none."""
        return self.inner.outputs()

    def replace_calls(self, call: Callable[..., Any]) -> None:
        """Call ``call`` instead from now on."""
        self.inner.replace_calls(call)


Mark = Callable[[], None]
"""Function that is called at the end of each span."""


class Phased(Workload):
    """A call that has phases. ``course`` makes the call: it receives the callables and the mark of a span's end.

    A phase may have several spans: the phase's time is their sum.
    """

    def __init__(
        self, calls: Sequence[Callable[..., Any]], spans: Sequence[str], course: Callable[[list[Any], Mark], Any]
    ) -> None:
        super().__init__(calls[0], (), {})
        self._roots = tuple(calls)
        self._calls = list(calls)
        self._course = course
        self.spans = tuple(spans)
        self.phases = tuple(dict.fromkeys(spans))

    def replace_calls(self, call: Callable[..., Any]) -> None:
        """Call ``call`` instead in each phase from now on."""
        self._calls[:] = [call] * len(self._calls)

    def run(self, after_phase: Mark = lambda: None) -> Any:
        """Run the phases in order, calling ``after_phase`` at the end of each span."""
        return self._course(self._calls, after_phase)


class Step(Phased):
    """A training step: ``result = forward()``, then ``backward(result)``, then ``optimizer()``.

    ``backward`` and ``optimizer`` may be left out. ``forward`` and ``backward`` run ``micro_batches`` times in turn,
    the optimizer once. The step's result is what the last ``forward`` returned.
    """

    def __init__(
        self,
        forward: Callable[[], Any],
        backward: Callable[[Any], Any] | None = None,
        optimizer: Callable[[], Any] | None = None,
        micro_batches: int = 1,
    ) -> None:
        passes = ["forward"] if backward is None else ["forward", "backward"]
        update = [] if optimizer is None else ["optimizer"]

        def stepped(calls: list[Any], after_phase: Mark) -> Any:
            result = None
            for _ in range(micro_batches):
                result = None  # the previous graph must not be alive beside the next
                result = calls[0]()
                after_phase()
                if backward is not None:
                    calls[1](result)
                    after_phase()
            if optimizer is not None:
                calls[-1]()
                after_phase()
            return result

        calls = [call for call in (forward, backward, optimizer) if call is not None]
        super().__init__(calls, [*(passes * micro_batches), *update], stepped)


def chain(phases: Mapping[str, Callable[..., Any]]) -> Phased:
    """Return a workload of phases of any names, each called with the result of the phase before.

    The result of a call is the last phase's result.
    """
    return Phased([*phases.values()], [*phases], _chained)


def phases_of(given: Mapping[str, Any]) -> Phased:
    """Return the workload for the arguments of ``perf.step``, or else for those of ``perf.phases``."""
    return Step(**given) if "forward" in given and given.keys() <= _OF_A_STEP else chain(given)


_OF_A_STEP = {"forward", "backward", "optimizer", "micro_batches"}


def _chained(calls: list[Any], after_phase: Mark) -> Any:
    results = [calls[0]()]
    after_phase()
    for number in range(1, len(calls)):
        results.append(calls[number](results.pop()))  # only the phase itself holds its argument
        after_phase()
    return results.pop()
