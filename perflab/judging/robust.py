"""Compares two small groups of replicates so that one outlier does not decide. Plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import median

from perflab.results.records import Change

# Makes the median absolute deviation of n normal values estimate their standard deviation without bias:
# 1.4826 is the factor for large n, the table corrects small ones (Croux & Rousseeuw 1992, "Time-efficient
# algorithms for two highly robust estimators of scale", table of b_n).
_MAD_TO_STD = 1.4826
_SMALL_SAMPLE = {2: 1.196, 3: 1.495, 4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}

_LARGEST_LOG = math.log(1e30)
"""The largest absolute log-ratio of an interval's end: a larger one bounds nothing, and results files reject it."""


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
