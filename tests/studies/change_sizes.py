"""How right the sizes and places of found steps are, and which early ones are found: for docs/change-points.md.

    python -m tests.studies.change_sizes [SERIES]

A cell has the share of series in which the step was found, of these the shares whose intervals hold size and place,
and the median size with its interval.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perflab.history.change_points import Change, find_changes
from tests.harness.made_series import NOISE, Floats

NEAR = 3
"""A change no further from the step is the step."""
RATIOS = (1.1, 1.5, 2, 5, 10, 20, 40, 60)


@dataclass(frozen=True)
class Step:
    """Series that take another level once."""

    ratio: float
    before: int
    after: int
    sd: float = 0.01
    noise: str = "white"

    def found(self, many: int) -> list[Change]:
        """The step as it was found, in each series in which it was."""
        seed = [round(1000 * self.ratio), self.before, self.after, round(1000 * self.sd), *self.noise.encode()]
        logs = self.sd * NOISE[self.noise](np.random.default_rng(seed), many, self.before + self.after)
        logs[:, self.before :] += np.log(self.ratio)
        near = (
            [one for one in ones if abs(one.at - self.before) <= NEAR] for ones in find_changes(np.exp(logs).tolist())
        )
        return [min(ones, key=lambda one: one.p) for ones in near if ones]

    def cell(self, many: int) -> str:
        found = self.found(many)
        if len(found) < 0.01 * many:
            return "0%"
        placed = np.mean([holds_place(one, self.before) for one in found])
        sized = [one for one in found if one.low is not None]
        if len(sized) < 0.5 * len(found):
            return f"{len(found) / many:.0%}, too few, {placed:.0%}"
        held = np.mean([holds_size(one, self.ratio) for one in sized])
        middle, low, high = (np.median([getattr(one, end) for one in sized]) - 1 for end in ("ratio", "low", "high"))
        return f"{len(found) / many:.0%}, {held:.0%}, {placed:.0%}, {middle:+.1%} ({low:+.1%}…{high:+.1%})"


def bimodal(slow: float, shares: Sequence[float], many: int) -> Floats:
    """Series of a case with two modes, of which the slower one takes another share after 40 of 60 runs."""
    rng = np.random.default_rng([round(100 * one) for one in (slow, *shares)])
    share = np.repeat(shares, [40, 20])
    is_slow = rng.random((many, len(share))) < share
    return np.asarray(np.exp(0.01 * rng.standard_normal(is_slow.shape)) * np.where(is_slow, slow, 1.0))


def holds_size(change: Change, ratio: float) -> bool:
    return change.low is not None and change.high is not None and change.low <= ratio <= change.high


def holds_place(change: Change, place: int) -> bool:
    return change.before < place <= change.after


def print_row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def main(many: int) -> None:
    for ratio, sd, before in ((1.1, 0.01, 50), (1.1, 0.01, 20), (1.05, 0.02, 50)):
        for noise in NOISE:
            cells = [Step(ratio, before, after, sd, noise).cell(many) for after in (1, 2, 3, 4, 5, 10)]
            print_row(f"{ratio - 1:+.0%} after {before} runs, {noise}, {sd:.1%}", *cells)
    for before, sd in ((30, 0.01), (7, 0.005)):
        for ratio in RATIOS:
            print_row(f"×{ratio:g} after {before} runs", *(Step(ratio, before, n, sd).cell(many) for n in range(3, 11)))
    for noise in NOISE:
        print_row(f"×10, {noise}", *(Step(10, before, 20 - before, 0.01, noise).cell(many) for before in (3, 4, 5, 6)))
    for slow in (1.1, 1.3):
        for shares in ((0.1, 0.9), (0.2, 0.8), (0.3, 0.7), (0.0, 0.5), (0.2, 0.6), (0.0, 0.8)):
            found = [ones[0] for ones in find_changes(bimodal(slow, shares, many).tolist()) if len(ones) == 1]
            held = np.mean([holds_place(one, 40) for one in found])
            wide = np.median([one.after - one.before for one in found])
            said = (f"{len(found) / many:.0%}", f"{held:.0%}", f"{wide:g}")
            print_row(f"×{slow:g}, {shares[0]:.0%} -> {shares[1]:.0%}", *said)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
