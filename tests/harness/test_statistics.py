"""Intervals of few values: how often they hold the truth, what one disturbed value does, and what no unit changes."""

from __future__ import annotations

import math
import random
from statistics import median, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perflab.judging.statistics import (
    compare,
    median_interval,
    quantile,
    quantile_interval,
    relative_half_width,
    robust_spread,
    student_t_quantile,
)

finite = st.floats(min_value=1e-3, max_value=1e15)
groups = st.lists(st.floats(min_value=1.0, max_value=1e12), min_size=1, max_size=8)
quiet_groups = st.integers(3, 5).flatmap(lambda n: st.lists(st.floats(0.99, 1.01), min_size=n, max_size=n))
NOISE = 0.003


def coverage(n: int, confidence: float = 0.95) -> float:
    """Exact chance that the interval of n samples of any continuous distribution covers its median.

    Samples fall below the median like fair coins. The interval from the i-th to the j-th smallest (from 1) misses
    unless at least i and at most j - 1 of them do.
    """
    low, high = median_interval(range(1, n + 1), confidence)
    covered = sum(math.comb(n, below) for below in range(int(low), int(high)))
    return float(covered / 2**n)


def test_the_interval_is_the_narrowest_symmetric_one_that_covers_the_median_as_often_as_it_says() -> None:
    for n in range(6, 61):
        assert coverage(n) >= 0.95, n
        low, high = median_interval(range(1, n + 1))
        narrower = sum(math.comb(n, below) for below in range(int(low) + 1, int(high) - 1)) / 2**n
        assert narrower < 0.95, n


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


@given(quiet_groups, quiet_groups, st.data())
def test_one_disturbed_replicate_moves_the_ratio_no_further_than_the_quiet_ones_differ(
    before: list[float], now: list[float], data: st.DataObject
) -> None:
    disturbed = list(now)
    disturbed[data.draw(st.integers(0, len(now) - 1))] = data.draw(st.sampled_from([1e-3, 0.5, 1.5, 10.0, 1e6]))
    assert compare(before, disturbed, NOISE).ratio == pytest.approx(compare(before, now, NOISE).ratio, rel=0.021)


@given(quiet_groups, quiet_groups, st.sampled_from([0.5, 1.5, 10.0, 1e6]))
def test_one_disturbed_replicate_does_not_widen_the_interval_without_bound(
    before: list[float], now: list[float], disturbance: float
) -> None:
    ratio = compare(before, [*now[:-1], disturbance], NOISE)
    assert ratio.high / ratio.low < 1.5


@pytest.mark.parametrize("size", [3, 4, 5, 8])
def test_a_disturbed_replicate_does_not_hide_a_slowdown(size: int) -> None:
    before = [100.0 + n for n in range(size)]
    now = [1.3 * value for value in before]
    assert compare([*before[:-1], 500.0], now, NOISE).low > 1.05
    assert compare(before, [*now[:-1], 5.0], NOISE).low > 1.05


@given(groups, groups, st.floats(0.0, 1e9))
def test_any_readings_have_an_interval_about_their_ratio(before: list[float], now: list[float], noise: float) -> None:
    ratio = compare(before, now, noise)
    assert 0.0 <= ratio.low <= ratio.ratio <= ratio.high


def test_an_interval_past_every_float_has_no_end() -> None:
    ratio = compare([1.0], [480.0], noise=120.0)
    assert (ratio.low, ratio.ratio, ratio.high) == (0.0, 480.0, math.inf)


def coverage_of_ratios(before: int, now: int, trials: int = 4000) -> float:
    """How often the interval holds the true ratio, for lognormal replicates; seeded, so always the same."""
    draw = random.Random(20251120)
    covered = 0
    for _ in range(trials):
        old = [math.exp(draw.gauss(0.0, 0.02)) for _ in range(before)]
        ratio = compare(old, [1.2 * math.exp(draw.gauss(0.0, 0.02)) for _ in range(now)], noise=0.0)
        covered += ratio.low <= 1.2 <= ratio.high
    return covered / trials


@pytest.mark.parametrize(
    ("before", "now", "share"),
    [
        *((before, now, 0.91) for before, now in ((3, 3), (1, 3), (3, 1))),
        *((before, now, 0.92) for before, now in ((2, 2), (2, 3), (3, 4), (4, 4), (5, 5), (10, 10))),
    ],
)
def test_groups_of_any_size_cover_the_true_ratio_about_as_often_as_they_say(
    before: int, now: int, share: float
) -> None:
    assert coverage_of_ratios(before, now) >= share


@given(groups, st.floats(0.0, 0.5))
def test_identical_groups_give_the_ratio_one_within_the_interval(values: list[float], noise: float) -> None:
    ratio = compare(values, values, noise)
    assert ratio.ratio == pytest.approx(1.0)
    assert ratio.low <= ratio.ratio <= ratio.high


@given(groups, groups)
def test_turning_the_comparison_round_inverts_it(before: list[float], now: list[float]) -> None:
    there, back = compare(before, now, NOISE), compare(now, before, NOISE)
    assert there.ratio == pytest.approx(1.0 / back.ratio)
    assert there.low == pytest.approx(1.0 / back.high)


@given(groups, groups, st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(before: list[float], now: list[float], scale: float) -> None:
    plain = compare(before, now, NOISE)
    scaled = compare([scale * v for v in before], [scale * v for v in now], NOISE)
    assert (scaled.ratio, scaled.low, scaled.high) == pytest.approx((plain.ratio, plain.low, plain.high))


def test_few_replicates_are_not_believed_beyond_their_own_noise() -> None:
    ratio = compare([100.0, 100.0, 100.0], [106.0, 106.0, 106.0], noise=0.02)
    assert ratio.low < 1.05 < 1.06 < ratio.high
    ratio = compare([100.0], [130.0], noise=0.01)
    assert ratio.low < 1.10
    assert ratio.high > 1.50


def test_the_ratio_is_that_of_the_numbers_beside_it_for_every_odd_size() -> None:
    ratio = compare([100.0, 101.0, 250.0], [130.0, 131.0, 129.0], NOISE)
    assert (ratio.before, ratio.now) == (101.0, 130.0)
    assert ratio.ratio == pytest.approx(130.0 / 101.0)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 8, 9, 10, 30])
def test_the_robust_spread_of_normal_values_is_their_standard_deviation_on_average(n: int) -> None:
    draw = random.Random(n)
    spreads = [robust_spread([draw.gauss(0.0, 1.0) for _ in range(n)]) for _ in range(8000)]
    assert sum(spreads) / len(spreads) == pytest.approx(1.0, abs=0.04)


def test_the_robust_spread_of_one_value_is_zero_and_hears_no_single_outlier() -> None:
    assert robust_spread([5.0]) == 0.0
    values = [10.0, 10.1, 9.9, 10.05, 9.95]
    assert robust_spread([*values, 1000.0]) < 3.0 * stdev(values)


def test_the_interval_of_ten_replicates_a_side_uses_the_quantile_of_their_number() -> None:
    # 17 degrees of freedom: 2.110, and not the 1.960 of many.
    groups = [100.0 * math.exp(0.01 * step) for step in range(10)]
    found = compare(groups, groups, noise=0.0)
    spread = robust_spread([math.log(value) for value in groups])
    assert math.log(found.high) == pytest.approx(2.1098 * spread * math.sqrt(math.pi / 2 * 0.2), rel=1e-4)


def test_students_t_falls_with_more_degrees_of_freedom() -> None:
    quantiles = [student_t_quantile(0.975, freedom) for freedom in range(1, 100)]
    assert quantiles == sorted(quantiles, reverse=True)
