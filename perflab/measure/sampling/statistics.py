"""Medians and other quantiles, with intervals for few samples. Plain Python; never trims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import median

CONFIDENCE = 0.95
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
