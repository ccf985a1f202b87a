"""Models of noise: how times of unchanged code vary from run to run, and how each model whitens a series.

A machine may vary at random, may vary so that neighbouring runs resemble each other, or may drift. Which of these
applies is unknown in advance, and a step is easily mistaken for drift and drift for a step. So a series is compared
with all models at once: ``MODELS``, in five families. Covariances are in units of the variance of a single run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

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
