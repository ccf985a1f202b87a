"""What ``perf.requires`` and ``perf.fits`` say of a case, checked; whether it fits into memory and time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perflab.amounts import positive
from perflab.errors import UsageError
from perflab.measure.limits import CALLS_AT_LEAST, ESTIMATE_SLACK
from perflab.records import Shortage
from perflab.units import format_bytes, format_ns

if TYPE_CHECKING:
    import torch

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_SLOW_FLOPS_PER_SECOND = 1e10
"""Of a device whose rate was not measured: no core of these years is slower."""


@dataclass(frozen=True)
class Claim:
    """What ``perf.requires`` was given."""

    memory_bytes: float | None
    flops: float | None
    seconds: float | None
    setup_calls: float
    setup_seconds: float
    precision: torch.dtype | str

    def expected_s(self, flops_per_second: float | None) -> tuple[float, float]:
        """What set-up takes, and a call, in seconds; 0 where the case does not say."""
        call_s = self.seconds or 0.0
        if self.seconds is None and self.flops is not None:
            call_s = self.flops / (flops_per_second or _SLOW_FLOPS_PER_SECOND)
        return self.setup_calls * call_s + self.setup_seconds, call_s


def claim_of(precision: torch.dtype | str, **given: Any) -> Claim:
    """What ``perf.requires`` was given, checked: a number that is none would skip or spoil far more than its case.

    Raises:
        UsageError: a number is not positive, or of set-up negative, or not finite.
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
    """Of a case that may take so long, in a run whose time is over."""
    return Shortage(of="--perf-total-budget", needed=needed_s, given=total_s or 0.0)


@dataclass(frozen=True)
class Needs:
    """What a case says that it needs, beside what there is. None: it does not say, or nobody knows."""

    memory_bytes: float | None
    free_bytes: int | None
    call_s: float | None
    setup_calls: float
    setup_s: float
    budget_s: float
    budget_by: str
    """What sets it: the option, or a mark."""
    left_s: float | None
    """Of the run's total budget."""
    total_s: float | None
    """That budget."""
    calls: int = CALLS_AT_LEAST
    """How often the callable is called, at least."""

    @property
    def no_room(self) -> bool:
        """More memory than is free."""
        return self.memory_bytes is not None and self.free_bytes is not None and self.memory_bytes > self.free_bytes

    @property
    def no_time(self) -> bool:
        """More time than a case is given."""
        return self._measuring_s > ESTIMATE_SLACK * self.budget_s

    @property
    def too_late(self) -> bool:
        """More time than the run has left."""
        return self.left_s is not None and self._least_s > self.left_s

    @property
    def is_only_late(self) -> bool:
        """Whether nothing but the end of the run's time is in the way."""
        return self.too_late and not self._least_s and not self.no_room

    @property
    def sets_up(self) -> bool:
        """Whether it makes something of its own runs before it measures."""
        return bool(self.setup_calls or self.setup_s)

    @property
    def can_be_predicted(self) -> bool:
        """Whether a prediction says what measuring would: not where it lacks the run's time alone, or runs first."""
        is_over = self.left_s is not None and self.left_s <= 0
        return (self.no_room or self.no_time) and not (self.sets_up or is_over)

    @property
    def _measuring_s(self) -> float:
        return self.calls * self.call_s if self.call_s is not None else 0.0

    @property
    def _least_s(self) -> float:
        return self.setup_calls * (self.call_s or 0.0) + self.setup_s + self._measuring_s

    def short_of(self) -> list[Shortage]:
        """The same as numbers: what there is too little of."""
        found = []
        if self.no_time:
            found.append(Shortage(of=self.budget_by, needed=self._measuring_s, given=self.budget_s))
        elif self.too_late:
            found.append(no_time_left(max(self._least_s, self.budget_s), self.total_s))
        if self.no_room and self.memory_bytes is not None and self.free_bytes is not None:
            found.append(Shortage(of="memory", needed=self.memory_bytes, given=self.free_bytes))
        return found

    def unmet(self) -> str | None:
        """What is missing, such as ``needs 29.1 s of 10 s, 57.3 GiB of 19.8 GiB``; None if nothing is."""
        needs = []  # what there is enough of is no reason
        if self.no_time:
            needs.append(f"{format_ns(self._measuring_s * 1e9)} of {format_ns(self.budget_s * 1e9)}")
        elif self.left_s is not None and self.too_late:
            needs.append(f"{format_ns(self._least_s * 1e9)} of {format_ns(max(0.0, self.left_s) * 1e9)} left")
        if self.no_room and self.memory_bytes is not None and self.free_bytes is not None:
            needs.append(f"{format_bytes(int(self.memory_bytes))} of {format_bytes(self.free_bytes)}")
        return f"needs {', '.join(needs)}" if needs else None


@dataclass(frozen=True)
class Exploration:
    """What ``perf.fits`` was given."""

    build: Callable[..., Any]
    sizes: dict[str, int]
    remedies: dict[str, dict[str, Any]]


def exploration_of(
    build: Callable[..., Any], sizes: Mapping[str, int], remedies: Mapping[str, Mapping[str, Any]]
) -> Exploration:
    """What ``perf.fits`` was given, checked.

    Raises:
        UsageError: ``build`` cannot be called, a size is no positive int, or a remedy no mapping.
    """
    if not callable(build):
        raise UsageError(
            f"perf.fits() got {type(build).__name__!r}, which cannot be called",
            "pass a function that makes the callable for given sizes: perf.fits(build, sizes={...})",
        )
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(f"perf.fits(sizes={{{name!r}: {size!r}}})", "give each size as an int, 1 or more")
    if not sizes:
        raise UsageError("perf.fits() without sizes", "name at least one: sizes={'batch_size': 4}")
    for name, changes in remedies.items():
        if not isinstance(changes, Mapping):
            raise UsageError(
                f"perf.fits(remedies={{{name!r}: {changes!r}}})",
                "give further arguments of build by name: remedies={'bf16': {'precision': 'bf16'}}",
            )
    return Exploration(build, dict(sizes), {name: dict(what) for name, what in remedies.items()})
