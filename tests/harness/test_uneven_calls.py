"""Costs that are not in every call, on simulated samples: found, and never claimed of unchanged code, however busy."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from itertools import count

import pytest

from perflab.judging.interleave import BLOCKS, TurnTime, reading, turn_time
from perflab.judging.paired import (
    PairedCase,
    PairedPolicy,
    Stage,
    TakenPair,
    case_of,
    controls_of,
    latency_findings,
    stage,
)
from perflab.results.records import Verdict

MS = 1_000_000
SAMPLES = 4
POLICY = PairedPolicy()


class Process:
    """A process whose calls take a millisecond, and more in one of so many; the machine delays some samples."""

    def __init__(
        self, draw: random.Random, every: int = 1, more: float = 0.0, delayed: float = 0.0, by_chance: bool = False
    ) -> None:
        self._draw, self._delayed = draw, delayed
        self._speed = math.exp(draw.gauss(0.0, 0.005))
        cost = more * every
        start = draw.randrange(every)
        self._calls: Iterator[float] = (
            1.0 + cost * (draw.random() * every < 1.0 if by_chance else number % every == 0) for number in count(start)
        )

    def _sample_ns(self) -> int:
        ns = next(self._calls) * self._speed * MS * math.exp(abs(self._draw.gauss(0.0, 0.02)))
        return round(ns + (self._draw.expovariate(1.0 / (4 * MS)) if self._draw.random() < self._delayed else 0))

    def turn(self) -> TurnTime:
        for _ in range(self._draw.randint(1, 2)):
            self._sample_ns()
        return turn_time([self._sample_ns() for _ in range(SAMPLES)], [], repetitions=1)

    def turns(self) -> list[TurnTime]:
        return [self.turn() for _ in range(2 * BLOCKS)]


def compared(
    draw: random.Random,
    every: int = 1,
    more: float = 0.0,
    delayed: float = 0.0,
    by_chance: bool = False,
    before: tuple[int, float] = (1, 0.0),
) -> Verdict:
    """The verdict on one case, taken to its end. ``before``: ``every`` and ``more`` of the base."""
    case, taken = PairedCase(), list[TakenPair]()
    controls: dict[str, list] = {"": []}

    def standing() -> Stage:
        return stage(case, POLICY, 1, controls_of({"": case}, controls)[""])

    while (stands := standing()) in (Stage.UNSCREENED, Stage.OPEN):
        head = Process(draw, every, more, delayed, by_chance)
        base, twin = (Process(draw, *before, delayed=delayed).turns() for _ in range(2))
        late = stands is Stage.OPEN
        found = reading(head.turns(), base)
        assert found is not None
        taken.append(TakenPair(found, late))
        case = case_of(taken, POLICY)
        if late and (control := reading(twin, base)) is not None:
            controls[""].append(control)
    return latency_findings({"": case}, controls, POLICY)[""].verdict


def verdicts(
    every: int = 1, more: float = 0.0, delayed: float = 0.0, cases: int = 60, by_chance: bool = False
) -> Counter[Verdict]:
    draw = random.Random(20261123)
    return Counter(compared(draw, every, more, delayed, by_chance) for _ in range(cases))


@pytest.mark.parametrize("every", [2, 4, 7, 10])
def test_five_percent_of_the_mean_in_every_so_many_th_call_has_regressed_in_nine_of_ten(every: int) -> None:
    found = verdicts(every, 0.05, cases=30)
    assert found[Verdict.REGRESSED] >= 0.9 * found.total()


@pytest.mark.parametrize("by_chance", [False, True])
def test_a_cost_in_one_percent_of_the_calls_is_ok_in_at_most_one_of_ten(by_chance: bool) -> None:
    found = verdicts(100, 0.05, cases=60, by_chance=by_chance)
    assert found[Verdict.OK] + found[Verdict.IMPROVED] <= 0.1 * found.total()


@pytest.mark.parametrize("delayed", [0.0, 0.02, 0.2])
def test_unchanged_code_beside_other_work_is_inconclusive_in_one_of_twenty_at_most_and_never_slower(
    delayed: float,
) -> None:
    found = verdicts(delayed=delayed, cases=100)
    assert found[Verdict.REGRESSED] == found[Verdict.IMPROVED] == 0
    assert found[Verdict.INCONCLUSIVE] <= 0.05 * found.total()


def test_a_rare_cost_that_comes_twice_as_often_has_regressed() -> None:
    draw = random.Random(20261124)
    found = Counter(compared(draw, every=20, more=0.6, before=(40, 0.3)) for _ in range(10))
    assert found[Verdict.REGRESSED] >= 9


def test_a_rare_cost_that_was_taken_away_is_no_slowdown_and_twice_the_mean_is_found_beside_other_work() -> None:
    draw = random.Random(20261123)
    assert compared(draw, every=4, more=1.0, delayed=0.2) is Verdict.REGRESSED
    assert compared(draw, every=4, more=-0.2) is not Verdict.REGRESSED
