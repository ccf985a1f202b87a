"""The error budget, held to its definition on numbers small enough to check by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from perflab.correctness import Budget, Errors, derive_budget, measure_errors, rounding_band


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_four_metrics_are_what_they_say() -> None:
    reference = torch.tensor([[3.0, 4.0], [0.0, 5.0]], dtype=torch.float64)
    errors = measure_errors(reference + torch.tensor([[0.0, 0.1], [0.3, 0.4]]).double(), reference)
    assert errors.max == pytest.approx(0.4)
    assert errors.mean == pytest.approx(0.2)
    assert errors.relative_norm == pytest.approx(math.hypot(0.1, 0.3, 0.4) / math.hypot(3, 4, 5))
    assert errors.worst_row == pytest.approx(0.5 / 5.0)


def test_a_row_of_nearly_nothing_is_measured_against_the_other_rows() -> None:
    reference = torch.tensor([[1e-12, 0.0], [3.0, 4.0]], dtype=torch.float64)
    errors = measure_errors(reference + torch.tensor([[0.1, 0.0], [0.0, 0.0]]), reference)
    assert errors.worst_row == pytest.approx(0.1 / math.sqrt(25 / 2))


def test_the_worst_row_shows_what_the_other_metrics_miss() -> None:
    """A last row that is all zero, where values shrink like those of causal attention."""
    rows = torch.arange(1, 257, dtype=torch.float64)[:, None]
    reference = torch.randn(256, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / rows.sqrt()
    plain = reference.to(torch.bfloat16)
    got = plain.clone()
    got[-1] = 0
    exceeded = derive_budget(plain, reference, torch.bfloat16).exceeded_by(measure_errors(got, reference))
    assert "worst_row" in exceeded
    blunt = derive_budget(plain, reference, torch.bfloat16, multiple=20.0)
    assert blunt.exceeded_by(measure_errors(got, reference)) == ("worst_row",)


def test_the_limit_is_a_multiple_of_plains_error_and_the_band_for_each_metric() -> None:
    budget = Budget(plain=Errors(1.0, 2.0, 3.0, 4.0), band=Errors(0.1, 0.2, 0.3, 0.4), multiple=2.0)
    assert budget.limit == Errors(2.1, 4.2, 6.3, 8.4)
    budget = Budget(plain=Errors(1.0, 1.0, 1.0, 1.0), band=Errors(0.0, 0.0, 0.0, 0.0), multiple=1.0)
    assert budget.exceeded_by(Errors(1.0, 1.0, 1.0, 1.0)) == ()
    assert budget.exceeded_by(Errors(1.1, 1.0, 1.0, 1.0)) == ("max",)
    assert budget.exceeded_by(Errors(0.0, 1.1, 1.1, 0.0)) == ("mean", "relative_norm")
    assert budget.exceeded_by(Errors(0.0, 0.0, 0.0, math.nan)) == ("worst_row",)


def test_the_band_is_half_an_ulp_of_the_result_and_one_of_the_sums_behind_it() -> None:
    reference = doubles(-8.0, 2.0)
    half_ulp = torch.finfo(torch.bfloat16).eps / 2
    sums = torch.finfo(torch.float32).eps
    band = rounding_band(reference, torch.bfloat16)
    assert band.max == pytest.approx(8.0 * (half_ulp + sums))
    assert band.mean == pytest.approx(5.0 * (half_ulp + sums))
    assert band.relative_norm == pytest.approx(half_ulp + sums)
    cancelled = rounding_band(doubles(0.0, 0.0), torch.bfloat16, magnitude=doubles(1000.0, 0.0))
    assert cancelled.max == pytest.approx(1000.0 * sums)


def test_integers_have_no_band_and_the_largest_draw_of_plain_counts() -> None:
    assert rounding_band(doubles(7.0, 9.0), torch.int64) == Errors(0.0, 0.0, 0.0, 0.0)
    reference = doubles(1.0, 2.0)
    budget = derive_budget(reference, reference, torch.float64, other_draws=[Errors(0.5, 0.1, 0.2, 0.3)])
    assert budget.plain == Errors(0.5, 0.1, 0.2, 0.3)


def test_what_is_not_finite_empty_or_a_scalar_has_errors_too() -> None:
    reference = doubles(1.0, -math.inf, 2.0)
    assert measure_errors(doubles(1.5, 7.0, math.nan), reference).max == pytest.approx(0.5)
    assert measure_errors(doubles(math.nan, math.nan, math.nan), reference) == Errors(0.0, 0.0, 0.0, 0.0)
    assert measure_errors(torch.empty(0, 4), torch.empty(0, 4).double()) == Errors(0.0, 0.0, 0.0, 0.0)
    assert measure_errors(torch.tensor(1.5), torch.tensor(1.0).double()) == Errors(0.5, 0.5, 0.5, 0.5)


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
)
def test_rounding_the_reference_itself_is_always_within_budget(values: list[float], dtype: torch.dtype) -> None:
    """Even where plain is exact. Values whose rounding is subnormal are below any floating band."""
    reference = doubles(*values)
    reference[reference.abs() < 1e-30] = 0.0
    budget = derive_budget(reference, reference, dtype)
    assert budget.exceeded_by(measure_errors(reference.to(dtype), reference)) == ()


@given(st.integers(0, 1000), st.floats(0.01, 100.0))
def test_the_verdict_does_not_depend_on_the_scale(seed: int, factor: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    reference = torch.randn(4, 8, generator=generator, dtype=torch.float64)
    noise = torch.randn(4, 8, generator=generator, dtype=torch.float64) * 1e-6
    one = measure_errors(reference + noise, reference)
    other = measure_errors((reference + noise) * factor, reference * factor)
    assert other.relative_norm == pytest.approx(one.relative_norm, rel=1e-6)
    assert other.worst_row == pytest.approx(one.worst_row, rel=1e-6)
    assert other.max == pytest.approx(one.max * factor, rel=1e-6)
