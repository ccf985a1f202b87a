"""How much speaks for a step at each place of a series, whatever its noise: Bayesian model comparison. Pure.

For each model of noise (``noise.py``), a series' likelihood without a step and with one at each place, level, size and
scale of the noise integrated out. With flat priors for the level and the logarithm of the scale, and a normal one for
the step, the integrals are closed (Zellner, *An Introduction to Bayesian Inference in Econometrics*, 1971, ch. 3). The
score is the logarithm of the ratio of both, summed over models and places by their weights. A step among noise that
resembles itself scores low, because the noise explains it, and the series itself says how much it resembles itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lgamma

import numpy as np
from numpy.typing import NDArray

from perflab.history.noise import CHANGED, SIZED, UNCHANGED, Floats, log_weights, whitened

LAST = 3
"""Points before the first step that is looked for, and from the last one to the end: two outliers in a row are none."""
BETWEEN = 5
"""Points of a level between two others."""
STEP_SD = 3.0
"""Standard deviation of the sizes of steps that are expected, in units of the noise."""
AGE = 1.0
FALLING = 1.4
"""A step ``a`` points from the end weighs ``(a + AGE) ** -FALLING``: it is to be found while it is new."""
_WINDOW = 9
_CLIP_SD = 2.7
_MAD_TO_SD = 1.4826 * 1.1
"""From the median distance to a running median of nine points to the standard deviation of normal noise."""
_SMALLEST_SD = 1e-4
"""Of the logarithm of a time: what is below 0.01 % is taken for resolution."""


def clipped(series: Floats) -> Floats:
    """Series (``m`` x ``n``) whose single outliers are pulled towards their neighbours' median.

    Four outliers among nine neighbours are pulled, five are a level; so are three in a row at either end.
    """
    width = min(_WINDOW, series.shape[1])
    windows = np.lib.stride_tricks.sliding_window_view(series, width, axis=1)
    places = np.clip(np.arange(series.shape[1]) - width // 2, 0, windows.shape[1] - 1)
    middle = np.median(windows, axis=2)[:, places]
    distance = series - middle
    limit = _CLIP_SD * _MAD_TO_SD * np.median(np.abs(distance), axis=1, keepdims=True)
    beyond = np.sign(distance) * (np.abs(distance) > limit)
    for many in (LAST + 1, LAST):
        for end in (slice(None, many), slice(-many, None)):
            is_level = np.abs(beyond[:, end].sum(axis=1)) == many
            middle[is_level, end] = np.median(series[is_level, end], axis=1, keepdims=True)
    return middle + np.clip(series - middle, -limit, limit)


def evidence(series: Floats) -> tuple[Floats, Floats]:
    """What speaks for a step in each series (``m`` x ``n``, logarithms; ``n`` is 8 to ``LONGEST``).

    Returns scores (``m``): the log ratio of the likelihoods, with a step and without; and places (``m`` x ``n``): how
    likely a step begins at each point, if there is one.
    """
    m, n = series.shape
    y, smallest = _standardized(clipped(series))
    places = np.arange(1, n)
    weights = (n - places + AGE) ** -FALLING
    counted = slice(LAST - 1, n - LAST)
    log_places = np.log(weights / weights[counted].sum())
    without, having = np.empty((m, len(whitened()))), np.empty((m, len(whitened()), len(places)))
    for k, model in enumerate(whitened()):
        fit = _fit(y, smallest, k, places)
        scale = -model.log_scale[:n].sum() - 0.5 * np.log(fit.level_sq)
        without[:, k] = scale - 0.5 * (n - 1) * np.log(fit.residual)
        gain = fit.along**2 * (STEP_SD**2 / (1.0 + STEP_SD**2 * fit.length_sq))
        having[:, k] = (
            scale
            - 0.5 * np.log1p(STEP_SD**2 * fit.length_sq)
            - 0.5 * (n - 1) * np.log(fit.residual[:, None] - gain)
            + log_places
        )
    by_place = _log_sum(having + log_weights(CHANGED)[:, None], axis=1)
    with_step = _log_sum(by_place[:, counted], axis=1)
    found = np.zeros((m, n))
    found[:, places] = np.exp(by_place - _log_sum(by_place, axis=1)[:, None])
    return with_step - _log_sum(without + log_weights(UNCHANGED), axis=1), found


def sides(series: Floats, place: int) -> Floats:
    """How likely a step near ``place`` begins at each point of one series, from the side of its middle that each is on.

    That says as much of a case with two modes, or with outliers, as of any other.
    """
    n = len(series)
    middle = (np.median(series[:place]) + np.median(series[place:])) / 2
    above = [0, *np.cumsum(series > middle).tolist()]
    logs = [_log_share(above[at], at) + _log_share(above[n] - above[at], n - at) for at in range(1, n)]
    likely = np.exp(np.array([-np.inf, *logs]) - max(logs))
    return np.asarray(likely / likely.sum())


def _log_share(above: int, many: int) -> float:
    """Log likelihood of so many points above a middle, whatever their share: Jeffreys' prior integrated out."""
    return lgamma(above + 0.5) + lgamma(many - above + 0.5) - lgamma(many + 1)


def size(series: Floats, place: int) -> tuple[float, float]:
    """Size of the step at one place of one series (``n``, logarithms), and its standard deviation.

    No size is expected here: what speaks for a step must not pull its size towards nothing. Each level's outliers are
    pulled towards that level, however few points it has.
    """
    distance = np.median(series[place:][:_WINDOW]) - np.median(series[:place][-_WINDOW:])
    step = distance * (np.arange(len(series)) >= place)
    y, smallest = _standardized(clipped((series - step)[None, :]) + step)
    n = y.shape[1]
    weights, means, variances = [], [], []
    for k, model in enumerate(whitened()):
        fit = _fit(y, smallest, k, np.array([place]))
        mean = fit.along[0, 0] / fit.length_sq[0]
        rest = fit.residual[0] - fit.along[0, 0] * mean
        scale = -model.log_scale[:n].sum() - 0.5 * np.log(fit.level_sq)
        weights.append(scale - 0.5 * np.log(fit.length_sq[0]) - 0.5 * (n - 2) * np.log(rest))
        means.append(mean)
        variances.append(rest / (n - 4) / fit.length_sq[0])
    share = np.array(weights) + log_weights(SIZED)
    share = np.exp(share - share.max())
    share /= share.sum()
    mean = float(share @ np.array(means))
    variance = float(share @ (np.array(variances) + (np.array(means) - mean) ** 2))
    unit = np.sqrt(_SMALLEST_SD**2 / smallest[0])
    return mean * float(unit), float(np.sqrt(variance) * unit)


def clearest_stretches(series: Floats) -> list[tuple[float, int, int]]:
    """The stretch of each series (``m`` x ``n``, logarithms) that differs most from the rest, were runs independent.

    Returns its distance in standard errors, its first point, and the point after its last one. It has ``BETWEEN``
    points or more, as many before it, and ``LAST`` behind it.
    """
    y = _standardized(clipped(series))[0]
    m, n = y.shape
    sums = np.concatenate([np.zeros((m, 1)), np.cumsum(y, axis=1)], axis=1)
    rows = np.arange(m)
    best, first, last = np.zeros(m), np.zeros(m, dtype=int), np.zeros(m, dtype=int)
    length = BETWEEN
    while length <= n - BETWEEN - LAST:
        of_stretch = sums[:, BETWEEN + length : n - LAST + 1] - sums[:, BETWEEN : n - LAST + 1 - length]
        place = np.abs(of_stretch).argmax(axis=1)
        explained = of_stretch[rows, place] ** 2 / (length * (1.0 - length / n) * n)
        better = explained > best
        best = np.where(better, explained, best)
        first = np.where(better, BETWEEN + place, first)
        last = np.where(better, BETWEEN + place + length, last)
        length = max(length + 1, int(length * 1.15))
    best = np.minimum(best, 1.0 - 1e-9)
    z = np.sqrt((n - 2) * best / (1.0 - best))
    return list(zip(z.tolist(), first.tolist(), last.tolist(), strict=True))


@dataclass(frozen=True)
class _Fit:
    level_sq: float
    residual: Floats
    along: Floats
    """``m`` x places: the whitened series along the step, the level taken out of both."""
    length_sq: Floats


def _fit(y: Floats, smallest: Floats, model: int, places: NDArray[np.intp]) -> _Fit:
    n = y.shape[1]
    whole = whitened()[model]
    level, steps = whole.level[:n], whole.steps[:n, places]
    seen = y @ whole.factor[:n, :n].T
    level_sq, along_level = float(level @ level), seen @ level
    residual = (seen**2).sum(axis=1) - along_level**2 / level_sq
    of_level = level @ steps / level_sq
    along = seen @ steps - np.outer(along_level, of_level)
    return _Fit(level_sq, residual + n * smallest, along, (steps**2).sum(axis=0) - of_level**2 * level_sq)


def _standardized(y: Floats) -> tuple[Floats, Floats]:
    """Series of mean 0 and standard deviation 1, and the smallest variance of each in that unit."""
    y = y - y.mean(axis=1, keepdims=True)
    unit = np.maximum(y.std(axis=1, keepdims=True), _SMALLEST_SD)
    return y / unit, (_SMALLEST_SD / unit[:, 0]) ** 2


def _log_sum(logs: Floats, axis: int) -> Floats:
    most = logs.max(axis=axis, keepdims=True)
    total: Floats = np.squeeze(most, axis) + np.log(np.exp(logs - most).sum(axis=axis))
    return total
