"""The order of turns and their log-ratios; costs that are not in every call are found, where there are any."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator
from itertools import count
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perflab.judging.interleave import (
    BLOCKS,
    LONG_NS,
    MOST_SAMPLES,
    Pace,
    Shape,
    TurnTime,
    places,
    reading,
    shape_of,
    together,
    turn_time,
)
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


@given(
    st.lists(st.sampled_from(["head", "base", "twin"]), min_size=2, unique=True),
    st.integers(1, 9),
    st.lists(st.integers(0, 7), max_size=3, unique=True),
    st.integers(),
)
def test_each_block_is_an_order_and_its_reverse_on_one_core(
    sides: list[str], blocks: int, cores: list[int], seed: int
) -> None:
    found = list(places(sides, blocks, cores, random.Random(seed)))
    for block in range(blocks):
        turns = [place for place in found if place.block == block]
        order = [place.side for place in turns]
        assert order == order[::-1]
        assert sorted(order[: len(sides)]) == sorted(sides)
        assert {place.core for place in turns} == ({cores[block % len(cores)]} if cores else {None})
    assert len(found) == 2 * len(sides) * blocks


def test_either_side_begins() -> None:
    draw = random.Random(0)
    assert 30 < [next(places(["head", "base"], 1, [], draw)).side for _ in range(100)].count("head") < 70


def test_the_shape_of_turns_follows_the_pace_of_both_sides() -> None:
    shape = shape_of([Pace(10, 1 * MS), Pace(10, 1 * MS)], 100 * MS, least_blocks=2, hands_back=False)
    assert shape == Shape(repetitions=10, samples=4, rewarm=True, blocks=4)
    assert shape_of([Pace(1, 0.0)], MS, least_blocks=1, hands_back=False).samples == MOST_SAMPLES
    assert shape_of([Pace(1, MS)], 1e12, least_blocks=1, hands_back=False).blocks == BLOCKS
    shape = shape_of([Pace(100, 1 * MS), Pace(1, 2 * MS)], 10_000 * MS, least_blocks=1, hands_back=False)
    assert (shape.repetitions, shape.samples) == (100, 1)
    assert shape.blocks == 10_000 // (4 * 200)
    paces = [Pace(1, LONG_NS), Pace(1, LONG_NS)]
    assert shape_of(paces, MS, least_blocks=2, hands_back=False) == Shape(1, 1, rewarm=False, blocks=2)
    assert shape_of(paces, MS, least_blocks=1, hands_back=True) == Shape(1, 1, rewarm=True, blocks=1)


def steady(*calls_ns: float) -> list[TurnTime]:
    """Turns in which all calls take as long."""
    return [TurnTime(ns, ns) for ns in calls_ns]


def log_ratio(new: list[TurnTime], old: list[TurnTime]) -> float:
    found = reading(new, old)
    return found.log


def test_a_pair_is_the_median_of_its_blocks_and_one_ruined_turn_does_not_move_it() -> None:
    old, new = steady(*[100.0] * 10), steady(*[110.0] * 10)
    found = reading(new, old)
    assert (found.log, found.excess) == (pytest.approx(math.log(1.1)), pytest.approx(0.0))
    assert (found.error, found.excess_error) == (0.0, pytest.approx(0.0))
    assert log_ratio([*steady(990.0), *new[1:]], old) == pytest.approx(math.log(1.1))


def test_blocks_cancel_an_even_slowdown_and_where_they_disagree_a_pair_is_uncertain() -> None:
    # A B B A in four moments, each a hundredth slower than the one before.
    assert log_ratio(steady(1.00, 1.03), steady(1.01, 1.02)) == pytest.approx(0.0, abs=1e-3)
    old = steady(*[100.0] * 8)
    found = reading(steady(90.0, 90.0, 110.0, 110.0, 130.0, 130.0, 70.0, 70.0), old)
    assert found.error > 0.1
    assert reading(steady(100.0), old) is None
    assert reading([], old) is None


def test_a_cost_in_some_calls_is_in_the_means_alone_and_a_slow_block_weighs_as_much_as_any() -> None:
    # Every second call takes 3 ms instead of 1; all of the last block is ten times as long on both sides.
    old, new = steady(1.0, 1.0, 1.0, 1.0, 10.0, 10.0), [TurnTime(1.0, 2.0)] * 4 + [TurnTime(10.0, 20.0)] * 2
    found = reading(new, old)
    assert (found.log, found.error) == (0.0, 0.0)
    assert found.excess == pytest.approx(math.log(2.0))
    assert found.excess_error == pytest.approx(0.0, abs=1e-9)
    uneven = reading([TurnTime(1.0, 1.5), TurnTime(1.0, 1.5), *steady(1.0, 1.0)], steady(1.0, 1.0, 1.0, 1.0))
    assert uneven.excess_error > 0.1, "it was in one block of two"
    assert uneven.excess_of_all == pytest.approx(math.log(1.25))
    alone = reading([TurnTime(1.0, 2.0)] * 2, steady(1.0, 1.0))
    assert math.isinf(alone.excess_error), "one block tells nothing about another"


def test_what_falls_on_few_blocks_is_in_the_mean_of_all_calls_alone() -> None:
    old, slow = [TurnTime(1.0, 1.1, calls=8)] * 40, [TurnTime(1.0, 1.2, calls=8)] * 40
    found = reading([*slow[:36], *[TurnTime(1.0, 9.0, calls=8)] * 4], old)
    assert found.excess == pytest.approx(math.log(1.2 / 1.1))
    assert found.excess_of_all > 0.5
    assert found.one_sided


@pytest.mark.parametrize(("calls", "every"), [(1, 4), (2, 7), (3, 10), (8, 10)])
def test_a_cost_in_every_so_many_th_call_is_in_the_middle_of_the_blocks(calls: int, every: int) -> None:
    of_call = itertools.cycle([1.0] * (every - 1) + [1.0 + 0.05 * every])
    new = [TurnTime(1.0, fmean(next(of_call) for _ in range(calls)), calls) for _ in range(2 * 20 * every)]
    found = reading(new, [TurnTime(1.0, 1.0, calls)] * len(new))
    assert found.excess == pytest.approx(0.05, abs=0.012)


def test_what_other_work_took_of_a_call_is_no_part_of_its_time() -> None:
    assert turn_time([1000, 9000], [0, 8000], repetitions=10) == TurnTime(100.0, 100.0, 20)
    assert turn_time([9000], [8500], repetitions=10) == TurnTime(50.0, 50.0, 10)
    assert turn_time([1000, 9000], [], repetitions=10) == TurnTime(100.0, 500.0, 20)


def test_two_processes_of_a_side_count_as_one_with_as_many_turns_as_both_have() -> None:
    assert together([[TurnTime(1.0, 1.0), TurnTime(1.0, 1.0)], [TurnTime(4.0, 5.0)]]) == [TurnTime(2.0, 3.0)]
    assert together([]) == []


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
