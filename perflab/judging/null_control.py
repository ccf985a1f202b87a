"""The null control: measures base against base, and widens intervals by the difference. Pure functions.

A disturbance that makes two processes of the same code differ may also affect the two processes that are compared. So
the control's size is subtracted from each slowdown before the slowdown counts, and the control's uncertainty is added
to that of the case.

A control is itself a measurement, and never exactly zero. Only the part of its size that its own error does not explain
counts: all of the size except the share ``(error / size) ** 2`` (James & Stein 1961, positive part). A control that is
well within its error widens no interval; a control far outside its error counts in full.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from perflab.judging.statistics import LEAST_PAIRS, LEAST_SPREAD, Estimate, estimate, half_width, ratio_of, spread_of
from perflab.units import format_change

LEAST_CONTROL = 3
"""The least number of pairs of the base with itself that are evidence: one of fewer pairs may be disturbed."""
ENOUGH_CONTROL = 8
"""The number of pairs of the base with itself after which a case takes no more, unless these pairs show a difference:
a third process makes a round cost half as much again. A control that shows a difference needs more pairs, since its
error widens the case's interval."""
MEDIAN_OF_THREE = 0.67
"""The standard deviation of the median of three normal values, divided by the standard deviation of the values."""


@dataclass(frozen=True)
class Control:
    """The log-ratio of the base to itself, and the standard error of that log-ratio."""

    size: float = 0.0
    error: float = 0.0

    @property
    def _real(self) -> float:
        """The fraction of the control's size that its own error does not explain, from 0 to 1."""
        return max(0.0, 1.0 - (self.error / self.size) ** 2) if self.size else 0.0

    @property
    def allowance(self) -> float:
        """The part of a slowdown that the machine may have caused, as a log-ratio; never negative."""
        return self._real * abs(self.size)

    @property
    def doubt(self) -> float:
        """The standard error of the allowance."""
        return math.sqrt(self._real) * self.error

    def told(self) -> str:
        """Return the sentence that gives the control as the reason for a verdict."""
        return f"null control: the base, measured against itself, came out at {format_change(ratio_of(self.size))}"


NO_CONTROL = Control()


def control_of(controls: Mapping[str, Sequence[float]], case: str, spreads: Mapping[str, float]) -> Control:
    """Return the control for a case: from the pairs taken with that case, or, if these are few, from all of the run.

    The log-ratios of another case that is noisier than this one are scaled down by the ratio of the two cases' spreads,
    because a disturbance of the machine affects each case in proportion to the case's own sensitivity.

    Args:
        controls: log-ratios of the base to itself, by the case in which they were taken.
        case: the case that is judged.
        spreads: the standard deviation of the process pairs of each case (``spread_of_case``). It is a lower limit for
            the spread of the controls: a few controls that agree better do so by luck.
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
    """Return the standard deviation of a case's process pairs, robust against one outlier at either end."""
    if len(pairs) < LEAST_PAIRS:
        return max(spread_of(pairs), LEAST_SPREAD)
    return max(estimate(pairs).error * math.sqrt(len(pairs)), LEAST_SPREAD)


def wants_more(controls: Mapping[str, Sequence[object]], case: str, control: Control) -> bool:
    """Whether one more pair of the base with itself, taken with this case, would improve the case's control."""
    return len(controls.get(case, ())) < ENOUGH_CONTROL or control.allowance > 0.0


def widened(found: Estimate, control: Control) -> Estimate:
    """Return the estimate with its interval widened by the control's allowance and error; its value is unchanged."""
    error = math.hypot(found.error, control.doubt)
    half = half_width(error, found.interval_freedom) + control.allowance
    return replace(found, error=error, allowance=control.allowance, low=found.value - half, high=found.value + half)
