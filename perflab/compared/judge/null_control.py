"""The null control: measures base against base, and widens intervals by the difference. Pure.

What the machine does to two processes of the same code it may do to the two that are compared. So the control's size
is taken off each slowdown before it counts, and its uncertainty is added to that of the case.

A control is itself a measurement, and never exactly zero. Of its size counts what its own error does not explain: all
of it but the share ``(error / size) ** 2`` (James & Stein 1961, positive part). A control that is well within its
error says that nothing is wrong, and widens nothing; one far outside counts in full.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from perflab.measured.judge.robust import ratio_of
from perflab.measured.judge.trimmed import LEAST_PAIRS, LEAST_SPREAD, Estimate, estimate, half_width, spread_of
from perflab.units import format_change

LEAST_CONTROL = 3
"""Pairs of the base with itself, fewer of which say nothing: one of them may be disturbed."""
ENOUGH_CONTROL = 8
"""Pairs of the base with itself in one case, after which it takes no more if they show nothing: a third process costs a
round half as much again. A control that is off needs them, since its error widens the case's interval."""
MEDIAN_OF_THREE = 0.67
"""Standard deviation of the median of three normal values, in units of theirs."""


@dataclass(frozen=True)
class Control:
    """The log-ratio of the base to itself, and its standard error."""

    size: float = 0.0
    error: float = 0.0

    @property
    def _real(self) -> float:
        """The share of its size that is more than its own error."""
        return max(0.0, 1.0 - (self.error / self.size) ** 2) if self.size else 0.0

    @property
    def allowance(self) -> float:
        """How much of a slowdown may be the machine's."""
        return self._real * abs(self.size)

    @property
    def doubt(self) -> float:
        """Standard error of the allowance."""
        return math.sqrt(self._real) * self.error

    def told(self) -> str:
        """What it says against the case."""
        return f"null control: the base, measured against itself, came out at {format_change(ratio_of(self.size))}"


NO_CONTROL = Control()


def control_of(controls: Mapping[str, Sequence[float]], case: str, spreads: Mapping[str, float]) -> Control:
    """What the control says about a case: by the pairs taken with that case, else by all of the run.

    Of another case's that is noisier than this one it is not the size that counts, but the size in units of that case's
    own spread: what disturbs the machine disturbs each case as far as that case can be disturbed.

    Args:
        controls: log-ratios of the base to itself, by the case in which they were taken.
        case: which one is judged.
        spreads: what the process pairs of each case differ by, as a standard deviation (``spread_of_case``). A few
            controls that agree better do so by luck.
    """
    spread = spreads.get(case, LEAST_SPREAD)
    own = controls.get(case, ())
    pairs = list(own)
    if len(own) < LEAST_CONTROL:
        pairs = [
            log * min(1.0, spread / spreads.get(other, spread)) for other, logs in controls.items() for log in logs
        ]
    if len(pairs) < LEAST_CONTROL:
        return NO_CONTROL
    if len(pairs) >= LEAST_PAIRS:
        seen = estimate(pairs)
        return Control(seen.value, max(seen.error, spread / math.sqrt(len(pairs))))
    return Control(median(pairs), MEDIAN_OF_THREE * max(spread_of(pairs), spread))


def spread_of_case(pairs: Sequence[float]) -> float:
    """What process pairs of a case differ by, as a standard deviation that one outlier at either end does not move."""
    if len(pairs) < LEAST_PAIRS:
        return max(spread_of(pairs), LEAST_SPREAD)
    return max(estimate(pairs).error * math.sqrt(len(pairs)), LEAST_SPREAD)


def wants_more(controls: Mapping[str, Sequence[object]], case: str, control: Control) -> bool:
    """Whether one more pair of the base with itself, taken with this case, would say more about it."""
    return len(controls.get(case, ())) < ENOUGH_CONTROL or control.allowance > 0.0


def widened(found: Estimate, control: Control) -> Estimate:
    """An estimate whose interval leaves room for what the control saw; its value stays what was measured."""
    error = math.hypot(found.error, control.doubt)
    half = half_width(error, found.interval_freedom) + control.allowance
    return replace(found, error=error, allowance=control.allowance, low=found.value - half, high=found.value + half)
