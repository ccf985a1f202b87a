"""Comparison reports, read as a person would read them."""

import math

import pytest
import torch
from syrupy.assertion import SnapshotAssertion

from perflab.correctness import compare, compare_all


def make_case(dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, torch.Tensor]:
    """A reference, and what plain rounding to `dtype` makes of it."""
    reference = torch.randn(1, 2, 32, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return reference, reference.to(dtype)


def test_a_tensor_within_budget_takes_one_line() -> None:
    reference, plain = make_case()
    report = compare("out", plain.clone(), reference, plain)
    assert report.ok
    assert str(report).startswith("out is right, using max ")
    assert "% of its budget" in str(report)
    assert "\n" not in str(report)


def test_a_wrong_element_is_named_with_what_was_got_and_wanted(snapshot: SnapshotAssertion) -> None:
    reference, plain = make_case()
    got = plain.clone()
    got[0, 1, 31, 5] = 100.0
    report = compare("dk", got, reference, plain)
    assert not report.ok
    text = str(report)
    assert text == snapshot
    assert max(map(len, text.splitlines())) <= 80


def test_the_region_shows_a_forgotten_tail() -> None:
    reference, plain = make_case()
    got = plain.clone()
    got[:, :, 28:] = 0
    assert "within [0, 0:2, 28:32, 0:16]" in str(compare("out", got, reference, plain))


def test_a_small_error_everywhere_is_told_from_a_large_one_somewhere() -> None:
    reference, plain = make_case(torch.float32)
    plain[0, 0, 0, 0] += 0.01  # so that no single element is past the budget
    report = compare("out", (reference * 1.001).float(), reference, plain)
    assert not report.ok
    assert report.numbers is not None
    assert "max" not in report.numbers.exceeded
    assert "mean" in report.numbers.exceeded


def test_unwritten_elements_are_called_what_they_are(snapshot: SnapshotAssertion) -> None:
    reference, plain = make_case()
    got = plain.clone()
    got[0, 0, 3] = math.nan
    report = compare("out", got, reference, plain)
    assert not report.ok
    assert str(report) == snapshot


def test_infinities_must_be_where_the_reference_has_them() -> None:
    reference = torch.tensor([-math.inf, 1.0, math.inf], dtype=torch.float64)
    plain = reference.float()
    assert compare("logsumexp", plain.clone(), reference, plain).ok
    for wrong in ([math.inf, 1.0, math.inf], [-1e30, 1.0, math.inf], [-math.inf, 1.0, math.nan]):
        assert not compare("logsumexp", torch.tensor(wrong), reference, plain).ok


def test_a_value_past_the_range_of_the_dtype_is_rightly_infinite() -> None:
    reference = torch.tensor([1e6, 1.0], dtype=torch.float64)
    plain = reference.half()
    assert compare("out", torch.tensor([math.inf, 1.0]).half(), reference, plain).ok
    assert not compare("out", torch.tensor([6e4, 1.0]).half(), reference, plain).ok


@pytest.mark.parametrize(
    ("got", "text"),
    [
        (torch.zeros(2, 3), r"its shape is (2, 3), wanted (2, 4)"),
        (torch.zeros(2, 4, dtype=torch.bfloat16), "its dtype is bfloat16, wanted float32"),
        (torch.zeros(2, 4, device="meta"), "it is on meta, wanted on cpu"),
        (None, "missing: the candidate returned None"),
    ],
    ids=["shape", "dtype", "device", "missing"],
)
def test_what_cannot_be_compared_says_why(got: torch.Tensor | None, text: str) -> None:
    report = compare("dv", got, torch.ones(2, 4).double(), torch.ones(2, 4))
    assert not report.ok
    assert str(report) == f"dv is wrong: {text}"


def test_integers_are_compared_exactly_and_nan_in_a_reference_is_refused() -> None:
    reference = torch.tensor([1.0, math.nan], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"the reference of out is NaN at \[1\]: define what is right there"):
        compare("out", torch.zeros(2), reference, torch.zeros(2))
    reference = torch.tensor([3.0, 4.0], dtype=torch.float64)
    right = torch.tensor([3, 4])
    assert compare("index", right, reference, right).ok
    assert not compare("index", torch.tensor([3, 5]), reference, right).ok


def test_a_report_puts_what_is_wrong_first() -> None:
    reference, plain = make_case()
    report = compare_all(
        {"out": plain.clone(), "dq": torch.zeros_like(plain)},
        {"out": reference, "dq": reference},
        {"out": plain, "dq": plain},
    )
    assert not report.ok
    lines = str(report).splitlines()
    assert lines[0].startswith("dq is wrong")
    assert lines[-1].startswith("out is right")


def test_a_missing_tensor_is_wrong_and_no_gradient_right_where_the_reference_is_zero() -> None:
    reference, plain = make_case()
    assert "dq is wrong: missing" in str(compare_all({}, {"dq": reference}, {"dq": plain}))
    assert compare("dv", None, torch.zeros(2).double(), torch.zeros(2)).ok


def test_cancelled_terms_widen_the_budget_by_their_rounding_only() -> None:
    reference, plain = torch.zeros(4).double(), torch.zeros(4)
    magnitude = torch.full((4,), 100.0, dtype=torch.float64)
    assert not compare("dq", torch.full((4,), 1e-6), reference, plain).ok
    assert compare("dq", torch.full((4,), 1e-6), reference, plain, magnitude=magnitude).ok
    assert not compare("dq", torch.full((4,), 1e-4), reference, plain, magnitude=magnitude).ok
