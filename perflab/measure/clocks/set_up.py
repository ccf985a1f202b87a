"""Workloads whose arguments are made anew before each call: for callables that change or use up their arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from perflab.base.errors import UsageError
from perflab.devices.cpu import resident_bytes
from perflab.devices.kinds import backend_of
from perflab.measure.calls.workload import Workload
from perflab.measure.clocks import clock
from perflab.measure.machine.devices import available_bytes

if TYPE_CHECKING:
    import torch

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

SHARE_OF_MEMORY = 0.25
"""Share of the free memory that the arguments of a sample may take: in turns, two sides hold arguments at once."""
SHARE_OF_TIME = 0.05
"""Share of the budget that setting up one sample may take, so that the budget allows a score of samples."""
_WHAT_TO_RETURN = (
    "return the call's arguments: a tuple of positional ones, such as (x,), a dict of keyword arguments, both as "
    "((x,), {'scale': 2}), or None for none"
)

_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Both(NamedTuple):
    """An explicit pair of positional and keyword arguments, which has one meaning for every callable."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class SetUpWorkload(Workload):
    """A call whose arguments ``setup`` makes. Arguments are kept until the next calls are made ready.

    So neither making arguments nor letting them go is timed. ``args`` and ``kwargs`` are arguments of every call; if
    there are any, ``setup`` returns None, and only changes what they refer to.
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
        """Let earlier arguments go, make those of ``calls`` calls, and return how long that took in nanoseconds.

        ``roots`` then has the arguments of the last call.

        Raises:
            UsageError: ``setup`` returned something that is no arguments.
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
        """Return how many calls a sample may have, by the memory and set-up time of the last calls; at least 1.

        These calls were made ready last, and have run by now. Warm-up asks again for a few times as many calls each
        time, so memory and time that a call takes only once count for less and less.
        """
        most = super().most_calls(budget_ns)
        if self._of_a_call_ns > 0:
            most = SHARE_OF_TIME * budget_ns / self._of_a_call_ns
        for where, level_bytes in _levels_bytes(self._device).items():
            free_bytes, taken_bytes = available_bytes(where), level_bytes - self._before_bytes.get(where, level_bytes)
            if taken_bytes > 0 and free_bytes is not None:
                # The memory taken is no longer free, but the next calls may have it.
                most = min(most, len(self._made) * SHARE_OF_MEMORY * (free_bytes + taken_bytes) / taken_bytes)
        return max(1.0, most)

    def without_work(self) -> Workload:
        """Return a workload of this kind whose set-up makes nothing and whose function does nothing."""
        return SetUpWorkload(lambda *_args, **_kwargs: None, (), {}, lambda: None, self._device)

    def run(self, after_phase: Callable[[], None] = lambda: None) -> Any:
        """Call once, with arguments that were made ready; with new arguments if there are none left."""
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
    """Return a workload that calls ``call`` with the same arguments each time, or with those that ``setup`` makes.

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
    """Return the positional and keyword arguments in ``made``, which a set-up returned and which is not None.

    Two values, of which the first is a tuple or list and the second a dict with names, may be two positional arguments,
    or positional and keyword arguments as pytest-benchmark's ``setup`` returns them. The callable's signature decides;
    without a signature, they are positional and keyword arguments.

    Raises:
        UsageError: ``made`` has none of the allowed forms, or the signature takes both readings.
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
    """Whether a callable takes these arguments; None if it has no signature, as many callables in C."""
    try:
        inspect.signature(call).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:
        return None
    return True


def _levels_bytes(device: torch.device) -> dict[torch.device, int]:
    """Return the bytes that this process has of the host's memory and of the device's, by device."""
    import torch

    resident = resident_bytes()
    levels = {} if resident is None else {torch.device("cpu"): resident}
    backend = backend_of(device)
    taken = None if backend.is_host else backend.allocated_bytes()
    return levels | ({device: taken} if taken is not None else {})
