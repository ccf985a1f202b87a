"""Other tools' published methods on given series. Runs in an environment of its own, which has them and numpy.

    python change_others.py SERIES.npz > changes.json

The file has arrays (series x points) by name; the answer has, by name and method, the change points of each series.
Methods are called as their tools do, with their defaults: Apache Otava's E-divisive means with t-tests (windows of
50, p = 0.001, and 0.01 beside it), asv's piecewise constant fit with what its report calls a regression (from 5 %).
"""

import json
import sys

import numpy as np
from asv.step_detect import detect_regressions, detect_steps
from otava.analysis import compute_change_points


def otava(values, p):
    return [int(change.index) for change in compute_change_points(values, window_len=50, max_pvalue=p)[0]]


def asv(values):
    _, _, found = detect_regressions(detect_steps(values), threshold=0.05, min_size=2)
    return [int(after) for _, after, _, _ in found or () if after is not None]


METHODS = {
    "Otava, p = 0.001": lambda values: otava(values, 0.001),
    "Otava, p = 0.01": lambda values: otava(values, 0.01),
    "asv": asv,
}


def main(path):
    with np.load(path) as arrays:
        found = {
            name: {title: [method(one) for one in series.tolist()] for title, method in METHODS.items()}
            for name, series in arrays.items()
        }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
