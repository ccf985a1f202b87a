"""Checks what a case states of its cost, its sizes and its facts, and whether it fits into memory and time.

Each statement is checked at once, so that errors point to the test's line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perflab.base.amounts import positive, refuse_no_count, refuse_uncallable
from perflab.base.data import Parameters, speakable
from perflab.base.errors import UsageError
from perflab.measure.stopping import CALLS_AT_LEAST, ESTIMATE_SLACK
from perflab.results.records import Shortage
from perflab.tables.view import STANDARD
from perflab.units import format_bytes, format_ns

if TYPE_CHECKING:
    import torch

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_SLOW_FLOPS_PER_SECOND = 1e10
"""The assumed rate of a device whose rate was not measured: slower than any core of recent years."""


@dataclass(frozen=True)
class Claim:
    """The arguments of ``perf.requires``."""

    memory_bytes: float | None
    flops: float | None
    seconds: float | None
    setup_calls: float
    setup_seconds: float
    precision: torch.dtype | str

    def expected_s(self, flops_per_second: float | None) -> tuple[float, float]:
        """Return the claimed times of set-up and of one call, in seconds; 0 if the case does not claim any."""
        call_s = self.seconds or 0.0
        if self.seconds is None and self.flops is not None:
            call_s = self.flops / (flops_per_second or _SLOW_FLOPS_PER_SECOND)
        return self.setup_calls * call_s + self.setup_seconds, call_s


def claim_of(precision: torch.dtype | str, **given: Any) -> Claim:
    """Return the checked arguments of ``perf.requires``: an invalid number would affect far more than its own case.

    Raises:
        UsageError: a number is not finite, or not positive; numbers of set-up may be 0, but not negative.
    """
    numbers: dict[str, Any] = {}
    for name, amount in given.items():
        sets_up = name.startswith("setup_")
        wanted = f"give {_WANTED[name]}: {'0 or a positive' if sets_up else 'a positive'} number"
        call = f"perf.requires({name}="
        numbers[name] = positive(call, amount, wanted, or_none=sets_up) if amount is not None or sets_up else None
    return Claim(precision=precision, **numbers)


_WANTED = {
    "memory_bytes": "bytes",
    "flops": "floating-point operations of one call",
    "seconds": "seconds of one call",
    "setup_calls": "calls before the measurement",
    "setup_seconds": "seconds before the measurement",
}


def no_time_left(needed_s: float, total_s: float | None) -> Shortage:
    """Return the shortage of a case that may take ``needed_s`` seconds, in a run whose total budget is spent."""
    return Shortage(of="--perf-total-budget", needed=needed_s, given=total_s or 0.0)


@dataclass(frozen=True)
class Needs:
    """The memory and time that a case claims, and the available amounts; None: not claimed, or unknown."""

    memory_bytes: float | None
    free_bytes: int | None
    call_s: float | None
    budget_s: float
    budget_by: str
    """The source of the budget: the option, or a mark."""
    setup_calls: float = 0.0
    setup_s: float = 0.0
    left_s: float | None = None
    """The seconds that are left of the run's total budget; None: the run has none."""
    total_s: float | None = None
    """The run's total budget in seconds; None: the run has none."""
    calls: int = CALLS_AT_LEAST
    """The least number of calls of the callable."""

    @property
    def no_room(self) -> bool:
        """Whether the case needs more memory than is free."""
        return self.memory_bytes is not None and self.free_bytes is not None and self.memory_bytes > self.free_bytes

    @property
    def no_time(self) -> bool:
        """Whether measuring the case takes more than its budget, with some slack for estimates."""
        return self._measuring_s > ESTIMATE_SLACK * self.budget_s

    @property
    def too_late(self) -> bool:
        """Whether the case takes more time than the run has left."""
        return self.left_s is not None and self._least_s > self.left_s

    @property
    def is_only_late(self) -> bool:
        """Whether the only obstacle is that the run's time is over: the case claims no time, and its memory is free."""
        return self.too_late and not self._least_s and not self.no_room

    @property
    def can_be_predicted(self) -> bool:
        """Whether a prediction can replace the measurement of a case that does not fit.

        False if only the run's time is lacking, or if the case has a set-up, which would really run.
        """
        is_over = self.left_s is not None and self.left_s <= 0
        return (self.no_room or self.no_time) and not (self.setup_calls or self.setup_s or is_over)

    @property
    def _measuring_s(self) -> float:
        return self.calls * self.call_s if self.call_s is not None else 0.0

    @property
    def _least_s(self) -> float:
        return self.setup_calls * (self.call_s or 0.0) + self.setup_s + self._measuring_s

    def short_of(self) -> list[Shortage]:
        """Return the resources that are insufficient, as numbers."""
        found = []
        if self.no_time:
            found.append(Shortage(of=self.budget_by, needed=self._measuring_s, given=self.budget_s))
        elif self.too_late:
            found.append(no_time_left(max(self._least_s, self.budget_s), self.total_s))
        if self.no_room and self.memory_bytes is not None and self.free_bytes is not None:
            found.append(Shortage(of="memory", needed=self.memory_bytes, given=self.free_bytes))
        return found

    def unmet(self) -> str | None:
        """Return what is insufficient, such as ``needs 29.1 s of 10 s, 57.3 GiB of 19.8 GiB``; None if nothing is."""
        needs = []  # only insufficient resources are reasons
        if self.no_time:
            needs.append(f"{format_ns(self._measuring_s * 1e9)} of {format_ns(self.budget_s * 1e9)}")
        elif self.left_s is not None and self.too_late:
            needs.append(f"{format_ns(self._least_s * 1e9)} of {format_ns(max(0.0, self.left_s) * 1e9)} left")
        if self.no_room and self.memory_bytes is not None and self.free_bytes is not None:
            needs.append(f"{format_bytes(int(self.memory_bytes))} of {format_bytes(self.free_bytes)}")
        return f"needs {', '.join(needs)}" if needs else None


@dataclass(frozen=True)
class Exploration:
    """The arguments of ``perf.fits``."""

    build: Callable[..., Any]
    sizes: dict[str, int]
    remedies: dict[str, dict[str, Any]]


def exploration_of(
    build: Callable[..., Any], sizes: Mapping[str, int], remedies: Mapping[str, Mapping[str, Any]]
) -> Exploration:
    """Return the checked arguments of ``perf.fits``.

    Raises:
        UsageError: ``build`` cannot be called, there are no sizes, a size is not a positive int, or a remedy is not a
            mapping.
    """
    remedy = "pass a function that makes the callable for given sizes: perf.fits(build, sizes={...})"
    refuse_uncallable("perf.fits()", build, remedy)
    for name, size in sizes.items():
        refuse_no_count(f"perf.fits(sizes={{{name!r}: {size!r}}})", size, "give each size as an int, 1 or more")
    if not sizes:
        raise UsageError("perf.fits() without sizes", "name at least one: sizes={'batch_size': 4}")
    for name, changes in remedies.items():
        if not isinstance(changes, Mapping):
            raise UsageError(
                f"perf.fits(remedies={{{name!r}: {changes!r}}})",
                "give further arguments of build by name: remedies={'bf16': {'precision': 'bf16'}}",
            )
    return Exploration(build, dict(sizes), {name: dict(what) for name, what in remedies.items()})


_BITS = 64
"""The largest number of bits of an integer in a results file, sign included."""


def checked_facts(given: Mapping[str, Any]) -> Parameters:
    """Return the facts as plain data. NaN and infinities become text, as in parameters, since JSON cannot hold them.

    Raises:
        UsageError: a name is not an identifier, or is the name of a standard column; a value is not plain data.
    """
    return {_checked_name(name, value): _plain(name, value) for name, value in given.items()}


def _checked_name(name: str, value: Any) -> str:
    if name in STANDARD:
        raise UsageError(
            f"perf.note({name}={value!r}): tables of studies have a column {name!r} already",
            f"call the fact something else, such as noted_{name}",
        )
    if not name.isidentifier():
        raise UsageError(
            f"perf.note(**{{{name!r}: {value!r}}}): {name!r} cannot be a column's name",
            "name facts as Python names variables: setup_s, loss",
        )
    return name


def _plain(name: str, value: Any) -> str | int | float | bool | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return speakable(str(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, int):
        if int(value).bit_length() >= _BITS:
            raise UsageError(f"perf.note({name}=...): an int of more than {_BITS - 1} bits", "note it as a float")
        return int(value)
    raise UsageError(
        f"perf.note({name}=...) got {type(value).__name__!r}",
        "note a str, an int, a float, a bool or None; of a tensor of one element its .item()",
    )
