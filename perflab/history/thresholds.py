"""How often a series of unchanged code scores so high by itself, found by simulation. Pure.

The scores of ``steps.py`` are ratios of likelihoods under priors that nobody knows, so no theory says what they are
worth. For each length of a series, ``SCORES`` has those that 0.8 % and 0.08 % of unchanged series pass: the highest of
seven ways in which machines vary (independent, resembling neighbours by 0.3 and 0.6, heavy-tailed, with outliers,
drifting, wandering), 30,000 series each. They are taken for 1 % and 0.1 %: the rest is for levels that come and go, a
search of its own. ``python -m tests.harness.change_thresholds`` computes the table anew.
"""

from __future__ import annotations

import numpy as np

from perflab.history.noise import Floats

SCORES = {
    8: (3.57, 5.83),
    9: (3.72, 5.60),
    10: (3.57, 5.78),
    12: (3.56, 5.56),
    15: (3.52, 5.65),
    20: (3.39, 5.23),
    25: (3.23, 5.11),
    30: (2.94, 4.90),
    40: (2.42, 4.31),
    50: (2.03, 4.36),
    60: (2.04, 4.77),
    75: (2.09, 4.51),
    100: (2.33, 4.69),
    150: (2.44, 5.57),
    200: (2.44, 6.60),
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
