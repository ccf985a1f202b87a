"""Medians with intervals for few samples. Plain Python; never trims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, median

CONFIDENCE = 0.95
UNKNOWN_SPREAD = 0.25
"""Of one sample: more than nearly all cases are seen to have, so that nothing is concluded from it too easily."""


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Distribution-free confidence interval of the median, from order statistics.

    The number of samples below the true median is Binomial(n, 1/2), whatever the distribution, so a pair of
    order statistics covers it with a known probability (Conover, Practical Nonparametric Statistics, 3.2).
    With fewer than six samples no pair reaches 95 %; the whole range is returned then.
    """
    ordered = sorted(values)
    n = len(ordered)
    tail = (1.0 - confidence) / 2.0
    if n > 200:  # normal approximation of the binomial; a rank wider, so that it never covers less than asked
        width = NormalDist().inv_cdf(1.0 - tail) * math.sqrt(n)
        rank = max(0, math.floor((n - width) / 2.0) - 1)
        return ordered[rank], ordered[n - 1 - rank]
    rank, below = 0, 1.0 / 2.0**n
    while below + math.comb(n, rank + 1) / 2.0**n <= tail:
        rank += 1
        below += math.comb(n, rank) / 2.0**n
    return ordered[rank], ordered[n - 1 - rank]


def relative_half_width(values: Sequence[float]) -> float:
    """Half the width of the median's interval as a share of the median; 0 for a median of 0.

    A single value says nothing about its own spread; UNKNOWN_SPREAD is assumed for it.
    """
    if len(values) == 1:
        return UNKNOWN_SPREAD
    middle = median(values)
    low, high = median_interval(values)
    return (high - low) / 2.0 / middle if middle else 0.0
