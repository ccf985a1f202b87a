"""How often a series of unchanged code scores so high by itself, found by simulation. Pure.

The scores of ``steps.py`` are ratios of likelihoods under priors that nobody knows, so no theory says what they are
worth. For each length of a series, ``SCORES`` has those that 0.9 % and 0.09 % of unchanged series pass: the highest of
seven ways in which machines vary (independent, resembling neighbours by 0.3 and 0.6, heavy-tailed, with outliers,
drifting, wandering), 30,000 series each. They are taken for 1 % and 0.1 %: the rest is for levels that come and go, a
search of its own. ``python -m tests.harness.change_thresholds`` computes the table anew.
"""

from __future__ import annotations

import numpy as np

from perflab.history.noise import Floats

SCORES = {
    8: (3.42, 5.54),
    9: (3.76, 5.87),
    10: (3.58, 5.86),
    12: (3.56, 5.62),
    15: (3.47, 5.67),
    20: (3.18, 5.08),
    25: (3.07, 5.13),
    30: (2.69, 4.75),
    40: (2.08, 3.99),
    50: (1.65, 4.82),
    60: (1.80, 5.33),
    75: (2.02, 6.43),
    100: (2.53, 6.26),
    150: (2.84, 6.70),
    200: (2.93, 8.89),
}
"""By points of a series."""


def chance(score: Floats, points: int) -> Floats:
    """The chance of so high a score in an unchanged series of so many points; at most 1.

    Its logarithm falls in proportion to the score; between lengths, scores are interpolated over the logarithm of the
    length. It is best known near 1 %; far below it is extrapolated.
    """
    lengths = np.log(list(SCORES))
    hundredth, thousandth = (
        np.interp(np.log(points), lengths, scores) for scores in zip(*SCORES.values(), strict=True)
    )
    return np.asarray(np.minimum(1.0, 0.01 * 10 ** ((hundredth - score) / (thousandth - hundredth))))
