"""A trimmed mean of log-ratios with an interval that one outlier at either end cannot ruin. Pure.

The interval is Tukey & McLaughlin's (1963; also Yuen 1974). About one pair of processes in a hundred is off by a tenth
on a shared machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

from perflab.judging.robust import student_t_quantile, student_t_tail

TRIMMED = 0.1
"""Share of the pairs to trim at each end; at least one pair is trimmed."""
CONFIDENCE = 0.95
LEAST_SPREAD = 0.004
"""The smallest credible spread of log-ratios. Fresh processes of the same code differ by about as much; pairs that
agree better do so by luck."""
LEAST_PAIRS = 5
"""Fewer pairs have no interval: one at each end is trimmed, and two degrees of freedom must be left."""
_RANGE = {2: 1.128, 3: 1.693, 4: 2.059}
"""Number of normal values -> their expected range, in standard deviations."""


@dataclass(frozen=True)
class Estimate:
    """An estimated log-ratio with its 95 % interval."""

    value: float
    low: float
    high: float
    error: float
    """Standard error of ``value``."""
    freedom: int
    """Degrees of freedom of ``error``."""
    interval_freedom: int
    """Degrees of freedom of the interval: one fewer where its coverage needs it."""
    lowest: float
    """The lowest log-ratio that was not trimmed."""
    allowance: float = 0.0
    """The part of ``value`` that the machine may cause: the size of the null control."""

    def chance_of(self, bound: float) -> float:
        """One-sided p-value: how likely an estimate this high is if the true value is ``bound`` or lower.

        Pairs that disagree on the sign are no evidence, whatever their mean: code that runs at one of several speeds
        gives such pairs.
        """
        if self.lowest <= 0.0:
            return 1.0
        return student_t_tail((self.value - self.allowance - bound) / self.error, self.freedom)


def estimate(log_ratios: Sequence[float]) -> Estimate:
    """Return the trimmed mean of at least LEAST_PAIRS log-ratios, with a 95 % interval."""
    return _estimate(tuple(log_ratios))


@lru_cache(maxsize=4096)  # of a case's pairs it is asked for the stage, the spread, and each other case's control
def _estimate(log_ratios: tuple[float, ...]) -> Estimate:
    ordered = sorted(log_ratios)
    n = len(ordered)
    trimmed = max(1, math.floor(TRIMMED * n))
    kept = ordered[trimmed : n - trimmed]
    winsorized = [kept[0]] * trimmed + kept + [kept[-1]] * trimmed
    middle = fmean(winsorized)
    variance = sum((value - middle) ** 2 for value in winsorized) / (n - 1)
    own, least = math.sqrt(variance), LEAST_SPREAD * len(kept) / n
    error = max(own, least) * math.sqrt(n) / len(kept)
    value, freedom = fmean(kept), len(kept) - 1
    # In samples this small the winsorized variance is itself too low at times, unless it was raised already: one degree
    # of freedom fewer brings the interval's coverage to its nominal rate (simulated in the tests).
    interval_freedom = freedom - (own > least)
    half = half_width(error, interval_freedom)
    return Estimate(value, value - half, value + half, error, freedom, interval_freedom, kept[0])


def half_width(error: float, freedom: int) -> float:
    """Return half of the width of the 95 % interval of an estimate with this standard error."""
    return student_t_quantile(1.0 - (1.0 - CONFIDENCE) / 2.0, freedom) * error


def spread_of(few: Sequence[float]) -> float:
    """Estimate the standard deviation of two to four values from their range; 0 for fewer."""
    return (max(few) - min(few)) / _RANGE[min(len(few), max(_RANGE))] if len(few) > 1 else 0.0
