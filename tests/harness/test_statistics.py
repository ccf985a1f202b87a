"""The median's interval, held to its definition: how often it covers the median, computed exactly."""

from __future__ import annotations

import math
import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perflab.judging.statistics import median_interval, quantile, quantile_interval, relative_half_width

finite = st.floats(min_value=1e-3, max_value=1e15)


def coverage(n: int, confidence: float = 0.95) -> float:
    """Exact chance that the interval of n samples of any continuous distribution covers its median.

    Samples fall below the median like fair coins. The interval from the i-th to the j-th smallest (from 1) misses
    unless at least i and at most j - 1 of them do.
    """
    low, high = median_interval(range(1, n + 1), confidence)
    covered = sum(math.comb(n, below) for below in range(int(low), int(high)))
    return float(covered / 2**n)


@pytest.mark.parametrize("n", range(6, 61))
def test_the_interval_is_the_narrowest_symmetric_one_that_covers_the_median_as_often_as_it_says(n: int) -> None:
    assert coverage(n) >= 0.95
    low, high = median_interval(range(1, n + 1))
    narrower = sum(math.comb(n, below) for below in range(int(low) + 1, int(high) - 1)) / 2**n
    assert narrower < 0.95


def test_many_samples_are_covered_nearly_as_often_as_it_says() -> None:
    assert min(coverage(n) for n in range(201, 1001)) >= 0.94


@pytest.mark.parametrize("n", [30, 300])
def test_another_confidence_gives_another_interval(n: int) -> None:
    assert 0.79 <= coverage(n, 0.8) < coverage(n, 0.95) < coverage(n, 0.99)
    assert coverage(n, 0.99) >= 0.985


@given(st.lists(finite, min_size=1, max_size=5))
def test_fewer_than_six_samples_give_their_whole_range(values: list[float]) -> None:
    assert median_interval(values) == (min(values), max(values))


@given(st.lists(finite, min_size=1, max_size=250).flatmap(lambda v: st.tuples(st.just(v), st.permutations(v))))
def test_the_order_of_samples_does_not_matter(pair: tuple[list[float], list[float]]) -> None:
    values, shuffled = pair
    assert median_interval(values) == median_interval(shuffled)
    assert relative_half_width(values) == relative_half_width(shuffled)


@given(st.lists(finite, min_size=1, max_size=300))
def test_the_interval_holds_the_median_and_lies_within_the_samples(values: list[float]) -> None:
    low, high = median_interval(values)
    assert min(values) <= low <= median(values) <= high <= max(values)


@given(st.lists(st.integers(1, 10**9), min_size=12, max_size=60), st.integers(1, 1000))
def test_the_relative_width_does_not_depend_on_the_unit_of_time(values: list[int], scale: int) -> None:
    assert relative_half_width([scale * v for v in values]) == pytest.approx(relative_half_width(values))


def test_one_wild_sample_does_not_widen_the_interval_of_many() -> None:
    quiet = [100 + n % 5 for n in range(40)]
    assert median_interval([*quiet, 10**9]) == median_interval([*quiet, 105])


def test_samples_that_agree_have_no_width_and_a_clock_that_stood_still_divides_by_nothing() -> None:
    assert relative_half_width([7, 7, 7]) == relative_half_width([0, 0, 0, 0]) == 0.0


@pytest.mark.parametrize(("share", "least"), [(0.5, 6), (0.9, 36), (0.99, 368)])
def test_a_quantile_has_an_interval_from_so_many_values_on(share: float, least: int) -> None:
    assert quantile_interval(range(least - 1), share) is None
    found = quantile_interval(range(least), share)
    assert found is not None
    assert found[0] <= quantile(range(least), share) <= found[1]


@pytest.mark.parametrize(("many", "share"), [(40, 0.9), (60, 0.5), (400, 0.99)])
def test_a_quantile_s_interval_covers_it_as_often_as_it_says(many: int, share: float) -> None:
    draw = random.Random(7)
    covered = 0
    for _ in range(2000):
        found = quantile_interval(sorted(draw.random() for _ in range(many)), share)
        assert found is not None
        covered += found[0] <= share <= found[1]
    assert covered / 2000 >= 0.95 - 0.012


def test_quantiles_lie_on_a_line_between_neighbours() -> None:
    assert [quantile([0.0, 10.0, 20.0], share) for share in (0.0, 0.25, 0.5, 0.9, 1.0)] == [0.0, 5.0, 10.0, 18.0, 20.0]
