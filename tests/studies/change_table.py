"""How often change points are found in unchanged series, and how soon in changed ones: for docs/change-points.md.

    python -m tests.studies.change_table [--series N] [--others PYTHON]

``PYTHON`` is an interpreter that has apache-otava, asv and numpy, whose methods then see the same series.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from perflab.history.change_points import find_changes
from perflab.history.judging import FALSE_DISCOVERIES, MOST_P
from tests.harness.made_series import HARDER, NOISE, Floats

POINTS = 50
"""Of an unchanged series, and before a step."""
NOISE_SD = (0.005, 0.02, 0.05)
STEPS = (0.02, 0.05, 0.10)
LOOKS = (1, 2, 3, 4, 5, 8, 12, 20)
"""Runs since the step after which each series is looked at."""
MANY = (1, 10, 100, 1_000)
NEAR = 5
"""A change found no further from the step is the step."""
Changes = dict[str, list[list[int]]]
"""By method, the change points of each series."""


def unchanged(noise: str, sd: float, series: int) -> Floats:
    rng = np.random.default_rng([1, round(sd * 1000), *noise.encode()])
    return np.exp(sd * {**NOISE, **HARDER}[noise](rng, series, POINTS))


def changed(noise: str, sd: float, step: float, series: int) -> Floats:
    rng = np.random.default_rng([2, round(sd * 1000), round(step * 1000), *noise.encode()])
    logs = sd * {**NOISE, **HARDER}[noise](rng, series, POINTS + LOOKS[-1])
    logs[:, POINTS:] += np.log1p(step)
    return np.exp(logs)


def ours(series: Floats) -> list[list[int]]:
    return [[change.at for change in changes] for changes in find_changes(series.tolist())]


def with_others(python: str | None, arrays: dict[str, Floats], few: int) -> dict[str, Changes]:
    """Each method's change points of each array; others see the first ``few`` series of it."""
    found: dict[str, Changes] = {name: {"perflab": ours(series)} for name, series in arrays.items()}
    if python is not None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "series.npz"
            np.savez(path, **{name: series[:few] for name, series in arrays.items()})
            other = Path(__file__).with_name("change_others.py")
            run = subprocess.run([python, str(other), str(path)], check=True, capture_output=True, text=True)
        for name, by_method in json.loads(run.stdout).items():
            found[name].update(by_method)
    return found


def share(flags: Sequence[bool]) -> str:
    return f"{sum(flags) / len(flags):.1%}"


def false_alarms(python: str | None, series: int, few: int) -> list[str]:
    rows = []
    for noise in (*NOISE, *HARDER):
        arrays = {f"{sd:.1%}": unchanged(noise, sd, series) for sd in NOISE_SD}
        found = with_others(python, arrays, few)
        methods = list(next(iter(found.values())))
        cells = [" / ".join(share([bool(one) for one in found[sd][method]]) for sd in arrays) for method in methods]
        if not rows:
            rows += [f"| noise | {' | '.join(methods)} |", "|---|" + "--:|" * len(methods)]
        rows.append(f"| {noise} | {' | '.join(cells)} |")
    return rows


def delays(python: str | None, series: int, few: int) -> list[str]:
    rows: list[str] = []
    for noise in NOISE:
        for sd in NOISE_SD:
            for step in STEPS:
                whole = changed(noise, sd, step, series)
                found = with_others(python, {str(look): whole[:, : POINTS + look] for look in LOOKS}, few)
                methods = list(found["1"])
                if not rows:
                    rows += [f"| noise | step | {' | '.join(methods)} |", "|---|--:|" + "--:|" * len(methods)]
                cells = [delay([found[str(look)][method] for look in LOOKS]) for method in methods]
                rows.append(f"| {noise}, {sd:.1%} | {step:.0%} | {' | '.join(cells)} |")
    return rows


def among_many(series: int) -> list[str]:
    """How soon one changed case is an alarm among unchanged ones: by Benjamini and Hochberg's limit for the first."""
    rows = [
        "| noise, step of 5 % | " + " | ".join(f"1 of {many:,}" for many in MANY) + " |",
        "|---|" + "--:|" * len(MANY),
    ]
    for noise in NOISE:
        whole = changed(noise, 0.02, 0.05, series)
        found = [find_changes(whole[:, : POINTS + look].tolist()) for look in LOOKS]
        cells = []
        for many in MANY:
            limit = min(MOST_P, FALSE_DISCOVERIES / many)
            cells.append(delay([[[one.at for one in ones if one.p <= limit] for ones in by_look] for by_look in found]))
        rows.append(f"| {noise}, 2.0% | {' | '.join(cells)} |")
    return rows


def delay(changes: Sequence[list[list[int]]]) -> str:
    """The share of series in which the step was found within 5 runs and 20, and after how many in half of all."""
    soonest = [LOOKS[-1] + 1] * len(changes[0])
    for look, by_series in reversed(list(zip(LOOKS, changes, strict=True))):
        for number, found in enumerate(by_series):
            if any(abs(at - POINTS) <= NEAR for at in found):
                soonest[number] = look
    half = int(np.median(soonest))
    within = [share([one <= runs for one in soonest]) for runs in (5, LOOKS[-1])]
    return f"{within[0]}, {within[1]}, {half if half <= LOOKS[-1] else '–'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=2_000, help="series of each kind (default: 2000)")
    parser.add_argument("--few", type=int, default=200, help="of which other tools see (default: 200)")
    parser.add_argument("--others", metavar="PYTHON", help="an interpreter that has apache-otava, asv and numpy")
    given = parser.parse_args()
    print("\n".join(false_alarms(given.others, given.series, given.few)), flush=True)
    print()
    print("\n".join(delays(given.others, given.series // 4, given.few // 4)), flush=True)
    print()
    print("\n".join(among_many(given.series // 4)))


if __name__ == "__main__":
    main()
