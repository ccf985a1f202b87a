"""Finds what the scores of ``perflab.history`` are worth: those that 0.8 % and 0.08 % of unchanged series pass.

    python -m tests.studies.change_thresholds [SERIES]

prints the table of ``perflab/history/change_points.py``. For each length the worst noise counts. What is left of 1 %
is for levels that come and go, which are searched for besides.
"""

from __future__ import annotations

import sys

import numpy as np

from perflab.history.change_points import SHORTEST
from perflab.history.steps import evidence
from tests.harness.made_series import NOISE

POINTS = (SHORTEST, 9, 10, 12, 15, 20, 25, 30, 40, 50, 60, 75, 100, 150, 200)
NOISE_SD = 0.02


def main(series: int) -> None:
    for points in POINTS:
        found = {}
        for name, make in NOISE.items():
            rng = np.random.default_rng([points, *name.encode()])
            scores = [
                evidence(NOISE_SD * make(rng, min(1_000, series - done), points))[0] for done in range(0, series, 1_000)
            ]
            found[name] = np.quantile(np.concatenate(scores), (0.992, 0.9992))
        worst = [max(found[name][level] for name in NOISE) for level in (0, 1)]
        print(f"    {points}: ({worst[0]:.2f}, {worst[1]:.2f}),", flush=True)
        for name, (hundredth, thousandth) in found.items():
            print(f"{points:6} {name:26} {hundredth:6.2f} {thousandth:6.2f}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30_000)
