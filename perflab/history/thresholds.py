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
    8: (3.44, 5.69),
    9: (3.56, 5.53),
    10: (3.48, 5.66),
    12: (3.40, 5.32),
    15: (3.35, 5.36),
    20: (3.13, 5.04),
    25: (2.93, 4.86),
    30: (2.58, 4.62),
    40: (1.99, 3.89),
    50: (1.62, 4.05),
    60: (1.69, 4.55),
    75: (1.86, 4.62),
    100: (2.26, 4.97),
    150: (2.48, 5.84),
    200: (2.52, 6.72),
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
