"""Medians, quantiles, ratios and trimmed means with intervals, for few values. Pure.

- Quantiles have distribution-free intervals. No value is trimmed.
- ``compare`` compares two small groups of replicates by their medians, so that one outlier does not decide.
- ``estimate`` gives a trimmed mean of log-ratios an interval that one outlier at either end cannot ruin (Tukey &
  McLaughlin 1963; also Yuen 1974). About one pair of processes in a hundred is off by a tenth on a shared machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from statistics import fmean, median

from perflab.results.records import Change

# Makes the median absolute deviation of n normal values estimate their standard deviation without bias:
# 1.4826 is the factor for large n, the table corrects small ones (Croux & Rousseeuw 1992, "Time-efficient
# algorithms for two highly robust estimators of scale", table of b_n).
_MAD_TO_STD = 1.4826
_SMALL_SAMPLE = {2: 1.196, 3: 1.495, 4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}

_LARGEST_LOG = math.log(1e30)
"""The largest absolute log-ratio of an interval's end: a larger one bounds nothing, and results files reject it."""
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
UNKNOWN_SPREAD = 0.25
"""Spread assumed for a single sample: larger than in nearly all cases, so that nothing is concluded too easily."""
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
"""Quantiles that are reported, by name."""


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the ordered values lies, interpolated linearly as in NumPy."""
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    rest = position - below
    return ordered[below] + rest * (ordered[below + 1] - ordered[below]) if rest else ordered[below]


def quantile_interval(
    ordered: Sequence[float], share: float, confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """Distribution-free confidence interval of a quantile, from order statistics.

    The number of samples below the true quantile is Binomial(n, share), whatever the distribution, so a pair of
    order statistics covers it with a known probability (Conover, Practical Nonparametric Statistics, 3.2).

    Returns:
        None if no pair of so few samples covers the quantile: at 95 %, the median needs 6 samples, the ninth decile 36,
        and the last percentile 368.
    """
    ranks = _ranks(len(ordered), share, (1.0 - confidence) / 2.0)
    return (ordered[ranks[0]], ordered[ranks[1]]) if ranks is not None else None


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Distribution-free confidence interval of the median; the whole range of the samples if there are too few."""
    ordered = sorted(values)
    return quantile_interval(ordered, 0.5, confidence) or (ordered[0], ordered[-1])


@cache
def _ranks(many: int, share: float, tail: float) -> tuple[int, int] | None:
    """Return the innermost two ranks, from 0 on, of ``many`` ordered samples that bound a quantile.

    The quantile lies beyond each of them with a probability of at most ``tail``. None if there are no such ranks.
    """

    def likelihood(below: int) -> float:
        """Return the probability that exactly ``below`` samples lie below the quantile."""
        above = many - below
        ways = math.lgamma(many + 1) - math.lgamma(below + 1) - math.lgamma(above + 1)
        return math.exp(ways + below * math.log(share) + above * math.log(1.0 - share))

    reach = math.ceil(10.0 * math.sqrt(many * share * (1.0 - share))) + 10  # the tails beyond add up to less than 1e-15
    lowest, highest = max(0, math.floor(many * share) - reach), min(many, math.ceil(many * share) + reach)
    low, beyond = lowest, likelihood(lowest)
    while beyond <= tail:
        low += 1
        beyond += likelihood(low)
    high, beyond = highest, likelihood(highest)
    while beyond <= tail:
        high -= 1
        beyond += likelihood(high)
    return (low - 1, high) if low > 0 and high < many else None


def relative_half_width(values: Sequence[float]) -> float:
    """Half the width of the median's interval as a share of the median; 0 for a median of 0.

    A single value says nothing about its own spread; UNKNOWN_SPREAD is assumed for it.
    """
    if len(values) == 1:
        return UNKNOWN_SPREAD
    middle = median(values)
    low, high = median_interval(values)
    return (high - low) / 2.0 / middle if middle else 0.0


def robust_spread(values: Sequence[float]) -> float:
    """Return the standard deviation, estimated from the median absolute deviation; 0 for fewer than two values."""
    n = len(values)
    if n < 2:
        return 0.0
    middle = median(values)
    deviation = median(abs(value - middle) for value in values)
    return _MAD_TO_STD * _SMALL_SAMPLE.get(n, n / (n - 0.8)) * deviation


def compare(before: Sequence[float], now: Sequence[float], noise: float) -> Change:
    """Return the ratio of two groups of positive numbers by their medians, with a 95 % interval of its logarithm.

    The groups' locations are medians and their spread is pooled from the deviations of both, so one disturbed
    replicate moves neither far. ``noise`` is the relative uncertainty of a single replicate, known from its own
    samples; the spread between replicates is never taken to be smaller. Without an upper bound, ``high`` is infinite.
    """
    known = [[math.log(value) for value in group] for group in (before, now) if len(group) > 1]
    weights = [len(group) - 1 for group in known]
    pooled = math.sqrt(
        sum(weight * robust_spread(group) ** 2 for weight, group in zip(weights, known, strict=True))
        / max(1, sum(weights))
    )
    spread = max(pooled, noise)
    # The median of n normal values spreads pi/2 as much as their mean, for all but the smallest n.
    factor = sum((math.pi / 2 if len(group) > 2 else 1.0) / len(group) for group in (before, now))
    # A median deviation is less efficient than a standard deviation: one degree of freedom fewer brings
    # the interval's coverage to its nominal rate for two to five replicates a side (simulated in the tests).
    half = student_t_quantile(0.975, max(1, sum(weights) - 1)) * spread * math.sqrt(factor)
    old, new = _middle(before), _middle(now)
    ratio = new / old
    return Change(before=old, now=new, ratio=ratio, low=ratio * ratio_of(-half), high=ratio * ratio_of(half))


def ratio_of(log_ratio: float) -> float:
    """Return the ratio of a log-ratio; infinity or zero if the log-ratio is so large that it bounds nothing."""
    if abs(log_ratio) >= _LARGEST_LOG:
        return math.inf if log_ratio > 0 else 0.0
    return math.exp(log_ratio)


def _middle(values: Sequence[float]) -> float:
    """Return the median on a logarithmic scale: the geometric mean of the two middle values, if there are two."""
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return low if low == high else math.sqrt(low * high)


def student_t_tail(t: float, freedom: int) -> float:
    """Return P(T > t) of Student's t, for whole degrees of freedom (Abramowitz & Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    if freedom == 1:
        return 0.5 - angle / math.pi
    odd = freedom % 2 == 1
    term = total = cosine if odd else 1.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    within = 2.0 / math.pi * (angle + sine * total) if odd else sine * total
    return (1.0 - within) / 2.0


@lru_cache(maxsize=4096)  # simulations call it with few distinct arguments
def student_t_quantile(probability: float, freedom: int) -> float:
    """Return the t with P(T <= t) = ``probability``, for probabilities above a half, of Student's t."""
    low, high = 0.0, 1.0
    while student_t_tail(high, freedom) > 1.0 - probability:
        high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if student_t_tail(middle, freedom) > 1.0 - probability else (low, middle)
    return high


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
