"""TEMPORARY: stands where the calibrated statistics will. Finds one step in a series by a t test of its logarithms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median


@dataclass(frozen=True)
class Change:
    """A change of level in a series."""

    before: int
    """Index of the last point that surely has the old level."""
    after: int
    """Index of the first point that surely has the new level."""
    at: int
    """Most likely first point of the new level."""
    ratio: float
    low: float
    high: float
    p: float
    back_to: int | None


def find_changes(series: Sequence[Sequence[float]]) -> list[list[Change]]:
    """The changes of each series, oldest first."""
    return [_one([math.log(value) for value in values]) for values in series]


def _one(logs: list[float]) -> list[Change]:
    found: list[Change] = []
    _split(logs, 0, len(logs), found)
    found.sort(key=lambda change: change.at)
    if len(found) == 2 and abs(math.log(found[0].ratio * found[1].ratio)) < 0.01:
        found[1] = Change(**{**vars(found[1]), "back_to": 0})
    return found


def _split(logs: list[float], start: int, end: int, found: list[Change]) -> None:
    if end - start < 8:
        return
    steps = [abs(logs[at] - logs[at - 1]) for at in range(start + 1, end)]
    noise = max(1.4826 * median(steps) / math.sqrt(2), 1e-4)
    best, where = 0.0, start
    for at in range(start + 3, end - 2):
        step = fmean(logs[at:end]) - fmean(logs[start:at])
        z = abs(step) / (noise * math.sqrt(1 / (at - start) + 1 / (end - at)))
        if z > best:
            best, where = z, at
    p = min(1.0, 2 * (end - start) * (1 - NormalDist().cdf(best)))
    if p > 0.001:
        return
    step = fmean(logs[where:end]) - fmean(logs[start:where])
    error = 2 * noise * math.sqrt(1 / (where - start) + 1 / (end - where))
    found.append(
        Change(where - 1, where, where, math.exp(step), math.exp(step - error), math.exp(step + error), p, None)
    )
    _split(logs, start, where, found)
    _split(logs, where, end, found)


def find_exact_changes(values: Sequence[float]) -> list[Change]:
    """Every change of an exact quantity."""
    found: list[Change] = []
    levels = [values[0]] if values else []
    for at in range(1, len(values)):
        if values[at] == values[at - 1]:
            continue
        ratio = values[at] / values[at - 1] if values[at - 1] else math.inf
        back = next((index for index, level in enumerate(levels) if level == values[at]), None)
        levels.append(values[at])
        found.append(Change(at - 1, at, at, ratio, ratio, ratio, 0.0, back))
    return found
