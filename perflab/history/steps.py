"""Computes the evidence for a step at each place of a series, whatever its noise: Bayesian model comparison. Pure.

A machine's times may vary at random, may vary so that neighbouring runs resemble each other, or may drift. Which of
these applies is unknown in advance, and a step is easily mistaken for drift and drift for a step. So a series is
compared with all models of noise at once: ``MODELS``, in five families, with covariances in units of the variance of a
single run, and the way in which each whitens a series.

For each model of noise, the likelihood of a series is computed without a step, and with a step at each
place. The level, the size of the step and the scale of the noise are integrated out. With flat priors for the level and
the logarithm of the scale, and a normal prior for the step, the integrals have a closed form (Zellner, *An Introduction
to Bayesian Inference in Econometrics*, 1971, ch. 3). The score is the logarithm of the ratio of the two likelihoods,
each summed over models and places by their weights. A step in autocorrelated noise scores low, because the noise
explains it; the series itself shows how strong its autocorrelation is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from math import lgamma

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LONGEST = 200
"""The most points of a series that are analysed together."""


@dataclass(frozen=True)
class NoiseModel:
    """One way in which runs of unchanged code may depend on each other."""

    family: str
    name: str
    covariance: Callable[[Floats], Floats]
    """Function from the numbers of runs, 0, 1, 2, …, to the covariance of each pair of runs."""


@dataclass(frozen=True)
class Whitened:
    """The matrices that whiten series of ``LONGEST`` points or fewer under one model: the points become independent.

    All matrices have the size of the longest series. A series of ``n`` points uses their first ``n`` rows and columns,
    since the leading part of a Cholesky factor is the factor of the covariance's leading part.
    """

    factor: Floats
    """Inverse of the covariance's Cholesky factor, lower triangular."""
    level: Floats
    """A constant series of 1, whitened."""
    steps: Floats
    """Column ``i``: a step from 0 to 1 at point ``i``, whitened."""
    log_scale: Floats
    """Logarithms of the Cholesky factor's diagonal."""


def _resembling(memory: float, independent: float, runs: Floats) -> Floats:
    """Return the covariance of runs whose neighbours correlate by ``memory``: an autoregressive process of order 1.

    ``independent`` is the share of the variance that is independent from run to run.
    """
    distance = np.abs(runs[:, None] - runs[None, :])
    return np.asarray((1.0 - independent) * memory**distance + independent * np.eye(len(runs)))


def _wave(size: float, length: float, runs: Floats) -> Floats:
    """Return the covariance of noise on a smooth curve of standard deviation ``size`` and length ``length`` in runs."""
    distance = (runs[:, None] - runs[None, :]) / length
    return np.asarray(np.eye(len(runs)) + size**2 * np.exp(-0.5 * distance**2))


def _slope(size: float, runs: Floats) -> Floats:
    """Return the covariance of noise on a steady drift, whose step per run has a standard deviation of ``size``."""
    return np.eye(len(runs)) + size**2 * np.outer(runs, runs)


def _walk(size: float, runs: Floats) -> Floats:
    """Return the covariance of noise on a random walk with steps of standard deviation ``size``."""
    return np.eye(len(runs)) + size**2 * np.minimum(runs[:, None], runs[None, :])


MODELS = (
    NoiseModel("independent", "runs do not resemble each other", partial(_slope, 0.0)),
    NoiseModel("resembling", "neighbours correlate by 0.3", partial(_resembling, 0.3, 0.0)),
    NoiseModel("resembling", "neighbours correlate by 0.6", partial(_resembling, 0.6, 0.0)),
    NoiseModel("resembling", "neighbours correlate by 0.8", partial(_resembling, 0.8, 0.0)),
    NoiseModel("resembling", "half of the variance correlates by 0.9", partial(_resembling, 0.9, 0.5)),
    NoiseModel("drifting", "a slow wave", partial(_wave, 3.0, 40.0)),
    NoiseModel("drifting", "a slope", partial(_slope, 0.06)),
    NoiseModel("drifting", "a steep slope", partial(_slope, 0.18)),
    NoiseModel("walking", "a random walk", partial(_walk, 0.1)),
    NoiseModel("walking fast", "a fast random walk", partial(_walk, 0.3)),
)
UNCHANGED = {"independent": 0.44, "resembling": 0.22, "drifting": 0.11, "walking": 0.21, "walking fast": 0.02}
"""The prior probability of each family in a series without a step."""
CHANGED = {"independent": 0.57, "resembling": 0.1, "drifting": 0.05, "walking": 0.18, "walking fast": 0.1}
"""The prior probability of each family in a series with a step: smooth drift rarely explains an abrupt change.

``UNCHANGED`` and ``CHANGED`` were found by a search for the weights that find a new step of 2.5 standard deviations
soonest, with alarms in at most 1 % of unchanged series under any model of noise, and were then rounded. A fast walk has
little weight, since it explains any old step.
"""
SIZED = dict.fromkeys(CHANGED, 1 / len(CHANGED))
"""The equal weight of each family for estimating a step's size: any family may be what makes the interval wide."""


def log_weights(by_family: dict[str, float]) -> Floats:
    """Return the logarithm of each model's weight; the models of one family share the family's weight."""
    members = [sum(model.family == other.family for other in MODELS) for model in MODELS]
    shares = [by_family[model.family] / count for model, count in zip(MODELS, members, strict=True)]
    return np.asarray(np.log(np.array(shares)))


@cache
def whitened() -> tuple[Whitened, ...]:
    """Return the whitening matrices of each model, in the order of ``MODELS``."""
    runs = np.arange(LONGEST, dtype=np.float64)
    found = []
    for model in MODELS:
        lower = np.linalg.cholesky(model.covariance(runs))
        factor = np.linalg.inv(lower)
        steps = factor @ np.tril(np.ones((LONGEST, LONGEST)))
        found.append(Whitened(factor, factor.sum(axis=1), steps, np.log(np.diag(lower))))
    return tuple(found)


LAST = 3
"""The fewest points before a step, and from a step to the end: two outliers in a row are no step."""
BETWEEN = 5
"""The fewest points of a level between two other levels."""
STEP_SD = 3.0
"""Standard deviation of the prior of a step's size, in units of the noise."""
AGE = 1.0
FALLING = 1.4
"""A step ``a`` points from the end weighs ``(a + AGE) ** -FALLING``, so that steps are found while they are new."""
_WINDOW = 9
_CLIP_SD = 2.7
_MAD_TO_SD = 1.4826 * 1.1
"""Standard deviation of normal noise per median distance from a running median of nine points."""
_SMALLEST_SD = 1e-4
"""The least standard deviation of a time's logarithm: differences below 0.01 % are taken for resolution."""


def clipped(series: Floats) -> Floats:
    """Return the series (``m`` x ``n``) with single outliers pulled towards their neighbours' median.

    Four outliers among nine neighbours are pulled. Five are a level, as are three in a row at either end.
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
            if is_level.any():
                middle[is_level, end] = np.median(series[is_level, end], axis=1, keepdims=True)
    return middle + np.clip(series - middle, -limit, limit)


def evidence(series: Floats) -> tuple[Floats, Floats]:
    """Compute the evidence for a step in each series (``m`` x ``n``, logarithms; ``n`` is 8 to ``LONGEST``).

    Returns scores (``m``): the log ratio of the likelihoods with a step and without a step; and places (``m`` x ``n``):
    the probability that the step begins at each point, if there is a step.
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
    """Return the probability that a step near ``place`` begins at each point of one series.

    Each point counts only by the side of the middle between both levels that it is on, so that the probabilities also
    hold for a case with two modes or with outliers.
    """
    n = len(series)
    middle = (np.median(series[:place]) + np.median(series[place:])) / 2
    above = [0, *np.cumsum(series > middle).tolist()]
    logs = [_log_share(above[at], at) + _log_share(above[n] - above[at], n - at) for at in range(1, n)]
    likely = np.exp(np.array([-np.inf, *logs]) - max(logs))
    return np.asarray(likely / likely.sum())


def _log_share(above: int, many: int) -> float:
    """Return the log likelihood of ``above`` of ``many`` points above a middle, under Jeffreys' prior of the share."""
    return lgamma(above + 0.5) + lgamma(many - above + 0.5) - lgamma(many + 1)


def size(series: Floats, place: int) -> tuple[float, float]:
    """Return the size of the step at one place of one series (``n``, logarithms), and the size's standard deviation.

    The prior of the size is flat here, since the prior of ``evidence`` would pull the size towards zero. Each level's
    outliers are pulled towards that level, however few points the level has.
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
    """Return the stretch of each series (``m`` x ``n``, logarithms) that differs most from the rest, as a triple.

    The triple is the stretch's distance in standard errors as if runs were independent, its first point, and the point
    after its last one. A stretch has ``BETWEEN`` points or more, at least ``BETWEEN`` before and ``LAST`` behind it.
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
    """``m`` x places: projections of the whitened series on the whitened step, without the level in either of them."""
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
    """Return the series with mean 0 and standard deviation 1, and the least variance of each series in that unit."""
    y = y - y.mean(axis=1, keepdims=True)
    unit = np.maximum(y.std(axis=1, keepdims=True), _SMALLEST_SD)
    return y / unit, (_SMALLEST_SD / unit[:, 0]) ** 2


def _log_sum(logs: Floats, axis: int) -> Floats:
    most = logs.max(axis=axis, keepdims=True)
    total: Floats = np.squeeze(most, axis) + np.log(np.exp(logs - most).sum(axis=axis))
    return total
