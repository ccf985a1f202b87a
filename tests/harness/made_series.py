"""Series of unchanged code, in the ways in which machines vary. Pure; deviations in units of the noise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Make = Callable[[np.random.Generator, int, int], Floats]
"""From a generator, a number of series and of points to series x points."""


def white(rng: np.random.Generator, series: int, points: int) -> Floats:
    return rng.standard_normal((series, points))


def resembling(memory: float) -> Make:
    """An autoregressive process of order 1 with standard deviation 1."""

    def make(rng: np.random.Generator, series: int, points: int) -> Floats:
        made = rng.standard_normal((series, points))
        for point in range(1, points):
            made[:, point] = memory * made[:, point - 1] + np.sqrt(1 - memory**2) * made[:, point]
        return made

    return make


def heavy(rng: np.random.Generator, series: int, points: int) -> Floats:
    """Student's t with three degrees of freedom, scaled to standard deviation 1."""
    return rng.standard_t(3, (series, points)) / np.sqrt(3)


def outliers(rng: np.random.Generator, series: int, points: int) -> Floats:
    """White, and one run in twenty slower by ten standard deviations."""
    return white(rng, series, points) + 10.0 * (rng.random((series, points)) < 0.05)


def drifting(rng: np.random.Generator, series: int, points: int) -> Floats:
    """White, on a machine that becomes slower or faster steadily, by up to a tenth of a standard deviation a run."""
    slope = rng.uniform(-0.1, 0.1, (series, 1))
    return white(rng, series, points) + slope * np.arange(points)


def wandering(step: float) -> Make:
    """White, on a machine whose speed is a random walk."""

    def make(rng: np.random.Generator, series: int, points: int) -> Floats:
        walk = np.cumsum(step * rng.standard_normal((series, points)), axis=1)
        return white(rng, series, points) + walk

    return make


def waving(rng: np.random.Generator, series: int, points: int) -> Floats:
    """White, on a machine that follows the seasons: a sine of 100 to 200 runs, of up to 1.5 standard deviations."""
    length, size = rng.uniform(100, 200, (series, 1)), rng.uniform(0.5, 1.5, (series, 1))
    start = rng.uniform(0, 2 * np.pi, (series, 1))
    return white(rng, series, points) + size * np.sin(2 * np.pi * np.arange(points) / length + start)


NOISE: dict[str, Make] = {
    "white": white,
    "autocorrelated (φ = 0.3)": resembling(0.3),
    "autocorrelated (φ = 0.6)": resembling(0.6),
    "heavy-tailed": heavy,
    "outliers": outliers,
    "drifting machine": drifting,
    "wandering machine": wandering(0.1),
}
"""What a method is held to: at most 1 % of series of each alarmed."""
HARDER: dict[str, Make] = {
    "autocorrelated (φ = 0.8)": resembling(0.8),
    "waving machine": waving,
    "fast wandering machine": wandering(0.2),
}
"""What nobody promises anything of; told all the same."""
