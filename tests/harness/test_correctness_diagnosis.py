"""An error held against known faults: y = x * w, and what is wrong with it."""

from collections.abc import Callable

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from torch import Tensor

from perflab.correctness import Evidence, Hypothesis, find_causes, find_hints, verify
from perflab.correctness.diagnosis import explained_share

X = torch.sin(torch.arange(200, dtype=torch.float64)).reshape(4, 50)
W = torch.cos(torch.arange(50, dtype=torch.float64))
TWICE = Hypothesis("twice", "w is applied twice", lambda e: {"out": e.inputs["x"] * e.inputs["w"] ** 2})
NOTHING = Hypothesis("nothing", "w is not applied", lambda e: {"out": e.inputs["x"]})
ELSEWHERE = Hypothesis("elsewhere", "something else is", lambda e: {})


def evidence(got: Tensor) -> Evidence:
    return Evidence({"x": X, "w": W}, {}, {}, {"out": got}, {"out": X * W}, ("out",))


def test_the_fault_that_explains_the_error_is_named_with_its_share() -> None:
    noise = 1e-3 * torch.randn(X.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (cause,) = find_causes(evidence(X * W**2 + noise), (NOTHING, ELSEWHERE, TWICE))
    assert cause.hypothesis is TWICE
    assert 0.99 < cause.shares["out"] < 1.0


def test_an_error_of_another_kind_has_no_cause() -> None:
    assert find_causes(evidence(X * W + 1.0), (NOTHING, ELSEWHERE, TWICE)) == ()


def test_several_results_take_the_hypothesis_that_explains_most_of_them_and_then_the_next() -> None:
    both = Hypothesis("both", "both", lambda e: {"a": X, "b": W})
    first = Hypothesis("first", "first", lambda e: {"a": X})
    third = Hypothesis("third", "third", lambda e: {"c": X})
    got: dict[str, Tensor | None] = {"a": X, "b": W, "c": X}
    wanted = {name: torch.zeros_like(x) for name, x in got.items() if x is not None}
    causes = find_causes(Evidence({}, {}, {}, got, wanted, ("a", "b", "c")), (first, third, both))
    assert [(cause.hypothesis.name, list(cause.shares)) for cause in causes] == [("both", ["a", "b"]), ("third", ["c"])]


def test_nan_is_explained_by_nan_in_the_same_places_alone() -> None:
    nan = X.clone()
    nan[2] = torch.nan
    assert explained_share(nan, X, nan) == 1.0
    assert explained_share(nan, X, nan.roll(1, 0)) == 0.0


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda x: 2 * x, "every element is 2 times what was wanted, which is two"),
        (lambda x: torch.where(torch.arange(50) >= 32, 0.0, x), "column from 32 on, a multiple of 32: a tile's edge?"),
        (lambda x: torch.where(torch.arange(4)[:, None] == 1, torch.nan, x), "25.0 % of it is NaN"),
        (lambda x: x.bfloat16().float(), "every value is a bfloat16 number"),
        (lambda x: x + 1e-3 * torch.randn(4, 50, generator=torch.Generator().manual_seed(0)), "as of rounding"),
    ],
    ids=["factor", "edge", "nan", "rounded", "noise"],
)
def test_the_shape_of_an_error_is_a_hint(spoil: Callable[[Tensor], Tensor], text: str) -> None:
    hints = find_hints(spoil(X.float()), X, dimensions=("row", "column"), factors={"two": 2.0})
    assert any(text in hint for hint in hints), hints


def test_a_cause_comes_first_in_what_verify_says_and_a_failing_search_hides_nothing(
    snapshot: SnapshotAssertion,
) -> None:
    def make(seed: int) -> dict[str, Tensor]:
        return {"x": (X + seed).float(), "w": W.float()}

    def check(explain: Callable[[Evidence], list[str]]) -> str:
        with pytest.raises(AssertionError) as caught:
            verify(lambda x, w: x, make, reference=lambda x, w: x * w, plain=lambda x, w: x * w, explain=explain)
        return "\n".join(line for line in str(caught.value).splitlines() if not line.startswith(" "))  # no sizes

    assert check(lambda e: [str(cause) for cause in find_causes(e, (NOTHING, TWICE))]) == snapshot
    assert check(lambda e: [str(1 / 0)]) == snapshot
