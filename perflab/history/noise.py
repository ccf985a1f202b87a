"""How times of unchanged code wander from run to run: models of noise, and series seen through them.

A machine may vary at random, may vary so that neighbouring runs resemble each other, or may drift. Nobody knows which
before looking, and a step is easily taken for drift and drift for a step. So a series is held against all of these
models at once: ``MODELS``, in five families. Covariances are in units of the variance that runs have by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LONGEST = 200
"""Points of a series that are looked at together."""


@dataclass(frozen=True)
class NoiseModel:
    """One way in which runs of unchanged code may depend on each other."""

    family: str
    name: str
    covariance: Callable[[Floats], Floats]
    """From the numbers of runs, 0, 1, 2, …, to the covariance of each two of them."""


@dataclass(frozen=True)
class Whitened:
    """What turns series of ``LONGEST`` points or fewer into independent ones, under one model.

    All parts are those of the longest series; those of ``n`` points are their first ``n`` rows and columns, since the
    factor of a covariance has the factors of its leading parts inside.
    """

    factor: Floats
    """Inverse of the covariance's Cholesky factor, lower triangular."""
    level: Floats
    """A constant of 1, whitened."""
    steps: Floats
    """Column ``i``: a step from 0 to 1 at point ``i``, whitened."""
    log_scale: Floats
    """Logarithms of the Cholesky factor's diagonal."""


def _resembling(memory: float, independent: float, runs: Floats) -> Floats:
    """Neighbours correlate by ``memory``, as in an autoregressive process of order 1; a share may be independent."""
    distance = np.abs(runs[:, None] - runs[None, :])
    return np.asarray((1.0 - independent) * memory**distance + independent * np.eye(len(runs)))


def _wave(size: float, length: float, runs: Floats) -> Floats:
    """A smooth curve of standard deviation ``size`` that forgets itself over ``length`` runs."""
    distance = (runs[:, None] - runs[None, :]) / length
    return np.asarray(np.eye(len(runs)) + size**2 * np.exp(-0.5 * distance**2))


def _slope(size: float, runs: Floats) -> Floats:
    """A steady drift, by a standard deviation of ``size`` from run to run."""
    return np.eye(len(runs)) + size**2 * np.outer(runs, runs)


def _walk(size: float, runs: Floats) -> Floats:
    """A random walk with steps of standard deviation ``size``."""
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
"""How likely each family is taken to be, of a series without a step."""
CHANGED = {"independent": 0.57, "resembling": 0.1, "drifting": 0.05, "walking": 0.18, "walking fast": 0.1}
"""The same of a series with one: smooth drift is rarely an excuse for what is abrupt.

Both were found by a search for what finds a new step of 2.5 standard deviations soonest, with no more than 1 % of
unchanged series alarmed in any model of noise, and then rounded. A fast walk has little weight, since it explains any
old step.
"""
SIZED = dict.fromkeys(CHANGED, 1 / len(CHANGED))
"""The same where a step's size is asked for: any family may be the one that makes its interval wide."""


def log_weights(by_family: dict[str, float]) -> Floats:
    """The logarithm of each model's weight; models of one family share its weight."""
    members = [sum(model.family == other.family for other in MODELS) for model in MODELS]
    shares = [by_family[model.family] / count for model, count in zip(MODELS, members, strict=True)]
    return np.asarray(np.log(np.array(shares)))


@cache
def whitened() -> tuple[Whitened, ...]:
    """What whitens a series, by model."""
    runs = np.arange(LONGEST, dtype=np.float64)
    found = []
    for model in MODELS:
        lower = np.linalg.cholesky(model.covariance(runs))
        factor = np.linalg.inv(lower)
        steps = factor @ np.tril(np.ones((LONGEST, LONGEST)))
        found.append(Whitened(factor, factor.sum(axis=1), steps, np.log(np.diag(lower))))
    return tuple(found)
