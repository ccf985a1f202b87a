"""The chance that a series of unchanged code reaches a score, found by simulation. Pure.

The scores of ``steps.py`` are ratios of likelihoods under assumed priors, so theory does not give their chances. For
each length of a series, ``SCORES`` has the scores that 0.8 % and 0.08 % of unchanged series exceed: the highest of
seven kinds of noise (independent, neighbours that correlate by 0.3 and by 0.6, heavy-tailed, with outliers, drifting,
wandering), 30,000 series each. These scores are taken for 1 % and 0.1 %: the difference is left for the separate search
for levels that come and go. ``python -m tests.studies.change_thresholds`` computes the table anew.
"""

from __future__ import annotations

import numpy as np

from perflab.history.noise import Floats

SCORES = {
    8: (3.49, 5.07),
    9: (3.56, 5.16),
    10: (3.54, 5.61),
    12: (3.54, 5.46),
    15: (3.57, 5.88),
    20: (3.42, 5.37),
    25: (3.25, 5.30),
    30: (2.97, 4.92),
    40: (2.41, 4.32),
    50: (2.02, 5.36),
    60: (2.05, 4.95),
    75: (2.08, 4.80),
    100: (2.33, 5.10),
    150: (2.44, 6.15),
    200: (2.47, 7.15),
}
"""The scores that 1 % and 0.1 % of unchanged series exceed, by the number of points of a series."""


def chance(score: Floats, points: int) -> Floats:
    """Return the chance of so high a score in an unchanged series of ``points`` points; at most 1.

    The logarithm of the chance falls in proportion to the score. Between lengths, scores are interpolated over the
    logarithm of the length. The chance is best known near 1 %; far below 1 % it is extrapolated.
    """
    lengths = np.log(list(SCORES))
    hundredth, thousandth = (
        np.interp(np.log(points), lengths, scores) for scores in zip(*SCORES.values(), strict=True)
    )
    return np.asarray(np.minimum(1.0, 0.01 * 10 ** ((hundredth - score) / (thousandth - hundredth))))
