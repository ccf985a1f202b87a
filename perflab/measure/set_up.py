"""A call whose arguments are made anew before each: of callables that change, grow or use up what they are given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from perflab.errors import UsageError
from perflab.measure import clock
from perflab.measure.devices import available_bytes, resident_bytes
from perflab.measure.workload import Workload

if TYPE_CHECKING:
    import torch

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

SHARE_OF_MEMORY = 0.25
"""Of the memory that is free, what the arguments of a sample may take: in turns, two sides hold theirs at once."""
SHARE_OF_TIME = 0.05
"""Of the budget, what setting up one sample may take, so that it allows a score of samples."""
_WHAT_TO_RETURN = (
    "return the call's arguments: a tuple of positional ones, such as (x,), a dict of keyword arguments, both as "
    "((x,), {'scale': 2}), or None for none"
)

_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Both(NamedTuple):
    """Positional and keyword arguments, which are nothing else, whatever the callable takes."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class SetUpWorkload(Workload):
    """A call whose arguments ``setup`` makes. What was made for a call is kept until the next calls are made ready.

    So neither making arguments nor letting them go is timed. ``args`` and ``kwargs`` are those of every call; with
    them ``setup`` returns None, and only changes what they refer to.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        setup: Callable[[], Any],
        device: torch.device,
    ) -> None:
        super().__init__(call, args, kwargs)
        self._setup, self._device = setup, device
        self._made: list[_Arguments] = []
        self._upcoming: Iterator[_Arguments] = iter(())
        self._of_a_call_ns = 0.0
        self._before_bytes = _levels_bytes(device)

    def make_ready(self, calls: int) -> int:
        """Make the arguments of so many calls; what was made before is let go first. ``roots`` has those of the last.

        Raises:
            UsageError: ``setup`` returned what are no arguments.
            Exception: whatever ``setup`` raises.
        """
        self._made, self._upcoming = [], iter(())
        self._roots = (self._roots[0], self._args, self._kwargs)
        began_ns = clock.read_ns()
        self._made = [self._arguments() for _ in range(calls)]
        took_ns = clock.read_ns() - began_ns
        if self._made:
            self._of_a_call_ns = took_ns / calls
            self._upcoming = iter(self._made)
            self._roots = (self._roots[0], *self._made[-1])
        return took_ns

    def most_calls(self, budget_ns: float) -> float:
        """By what the calls made ready last, by now called, took of memory, and of time to set up; 1 at least.

        Each answer is for a few times as many calls, as warm-up asks for them: what a call takes once counts for less
        and less.
        """
        most = super().most_calls(budget_ns)
        if self._of_a_call_ns > 0:
            most = SHARE_OF_TIME * budget_ns / self._of_a_call_ns
        for where, level_bytes in _levels_bytes(self._device).items():
            free_bytes, taken_bytes = available_bytes(where), level_bytes - self._before_bytes.get(where, level_bytes)
            if taken_bytes > 0 and free_bytes is not None:
                # What is taken is free no more, and the next calls may have it.
                most = min(most, len(self._made) * SHARE_OF_MEMORY * (free_bytes + taken_bytes) / taken_bytes)
        return max(1.0, most)

    def without_work(self) -> Workload:
        """The same set-up before calls of a function that takes anything and does nothing."""
        return SetUpWorkload(lambda *_args, **_kwargs: None, (), {}, lambda: None, self._device)

    def run(self, after_phase: Callable[[], None] = lambda: None) -> Any:
        """Call once, with arguments that were made ready; with new ones if there are none left."""
        made = next(self._upcoming, None)
        if made is None:
            self.make_ready(1)
            made = next(self._upcoming)
        args, kwargs = made
        return self._call(*args, **kwargs)

    def _arguments(self) -> _Arguments:
        made = self._setup()
        if made is None:
            return self._args, self._kwargs
        if self._args or self._kwargs:
            raise UsageError(
                f"perf(..., setup=...) was given arguments, and setup returned {type(made).__name__} too",
                "leave the arguments out, or let setup return None",
            )
        return arguments_in(made, self._roots[0])


def workload_of(
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    setup: Callable[[], Any] | None,
    device: torch.device,
) -> Workload:
    """A call of the same arguments each time, or of what ``setup`` makes for it.

    Raises:
        UsageError: ``setup`` cannot be called.
    """
    if setup is None:
        return Workload(call, args, kwargs)
    if not callable(setup):
        raise UsageError(
            f"perf(..., setup=) got {type(setup).__name__!r}, which cannot be called",
            "pass the function that makes the arguments: perf(fn, setup=make), not perf(fn, setup=make())",
        )
    return SetUpWorkload(call, args, kwargs, setup, device)


def arguments_in(made: Any, call: Callable[..., Any]) -> _Arguments:
    """The arguments that a set-up returned, which is not None.

    Two values, of which the first is a tuple and the second a dict with names, may be two positional arguments, or
    positional and keyword arguments as pytest-benchmark's ``setup`` returns them. The signature decides; where there is
    none, they are the latter.

    Raises:
        UsageError: it is none of what it may be, or the signature takes both.
    """
    kind = type(made)
    if kind is Both:
        return tuple(made.args), dict(made.kwargs)
    if kind is dict and all(type(name) is str for name in made):
        return (), made
    if kind is not tuple:
        raise UsageError(f"setup of perf(..., setup=...) returned {kind.__name__}", _WHAT_TO_RETURN)
    if len(made) != 2 or type(made[0]) not in (tuple, list) or type(made[1]) is not dict:
        return made, {}
    args, kwargs = tuple(made[0]), made[1]
    both = all(type(name) is str for name in kwargs) and _takes(call, args, kwargs) is not False
    if both and _takes(call, made, {}):
        raise UsageError(
            "setup of perf(..., setup=...) returned a pair that may be (args, kwargs) or two positional arguments, "
            "and the callable takes either",
            "return a dict of keyword arguments, or measure a function that takes named arguments",
        )
    return (args, kwargs) if both else (made, {})


def _takes(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
    """Whether a call takes these arguments; None of one without a signature, as many in C are."""
    try:
        inspect.signature(call).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:
        return None
    return True


def _levels_bytes(device: torch.device) -> dict[torch.device, int]:
    """What this process has of the host's memory, and of the device's."""
    import torch

    resident = resident_bytes()
    levels = {} if resident is None else {torch.device("cpu"): resident}
    return levels | ({device: torch.cuda.memory_allocated(device)} if device.type == "cuda" else {})
