"""Comparing few replicates with few: what one disturbed replicate does, and how often the interval is right."""

from __future__ import annotations

import math
import random
from statistics import stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perflab.judging.statistics import compare, robust_spread, student_t_quantile

groups = st.lists(st.floats(min_value=1.0, max_value=1e12), min_size=1, max_size=8)
quiet_groups = st.integers(3, 5).flatmap(lambda n: st.lists(st.floats(0.99, 1.01), min_size=n, max_size=n))
NOISE = 0.003


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


def coverage(before: int, now: int, trials: int = 4000) -> float:
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
    assert coverage(before, now) >= share


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


def test_replicates_that_agree_by_luck_are_not_believed_beyond_their_own_noise() -> None:
    ratio = compare([100.0, 100.0, 100.0], [106.0, 106.0, 106.0], noise=0.02)
    assert ratio.low < 1.05 < 1.06 < ratio.high


def test_one_replicate_against_one_is_hardly_known() -> None:
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


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.706), (4, 2.776), (15, 2.131), (16, 2.120), (20, 2.086)])
def test_students_t_has_its_textbook_quantiles(freedom: int, quantile: float) -> None:
    assert student_t_quantile(0.975, freedom) == pytest.approx(quantile, abs=5e-4)


def test_the_interval_of_ten_replicates_a_side_uses_the_quantile_of_their_number() -> None:
    # 17 degrees of freedom: 2.110, and not the 1.960 of many.
    groups = [100.0 * math.exp(0.01 * step) for step in range(10)]
    found = compare(groups, groups, noise=0.0)
    spread = robust_spread([math.log(value) for value in groups])
    assert math.log(found.high) == pytest.approx(2.1098 * spread * math.sqrt(math.pi / 2 * 0.2), rel=1e-4)


def test_students_t_falls_with_more_degrees_of_freedom() -> None:
    quantiles = [student_t_quantile(0.975, freedom) for freedom in range(1, 100)]
    assert quantiles == sorted(quantiles, reverse=True)
