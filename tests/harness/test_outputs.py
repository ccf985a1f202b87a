"""What calls leave behind, compared: a wrong gradient is seen, and so is a result that timed calls alone have."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from perflab.base.errors import ResultsError
from perflab.measure.calls.outputs import Comparing, distance, outputs_of
from perflab.measure.calls.workload import Workload
from perflab.results.measurement import Results


def made(call: Callable[..., Any], width: int = 8) -> Workload:
    """A call on inputs that nobody seeded."""
    torch.manual_seed(0)
    model, x = torch.nn.Linear(width, width), torch.randn(4, width)
    return Workload(call, (model, x), {})


def backward(scale: float = 1.0) -> Callable[..., Any]:
    def step(model: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().sum()
        (loss * scale).backward()
        return loss.detach()

    return step


def between(base: Callable[..., Any], head: Callable[..., Any]) -> dict[str, float]:
    before, now = outputs_of(made(base)), outputs_of(made(head))
    return {what: distance(before[what], now[what]) for what in before}


def test_a_wrong_gradient_is_seen_beside_a_right_result() -> None:
    found = between(backward(), backward(scale=2.0))
    assert found.pop("gradients") == pytest.approx(0.5)
    assert set(found.values()) == {0.0}
    assert set(between(backward(), backward()).values()) == {0.0}


def test_random_numbers_within_the_call_are_the_same_in_each_process() -> None:
    def drop(model: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(model(x), 0.5)

    assert between(drop, drop)["the returned value"] == 0.0


@pytest.mark.parametrize(
    ("head", "distance"),
    [
        (lambda model, x: model(x) * (1 + 1e-6), pytest.approx(1e-6, rel=0.5)),
        (lambda model, x: model(x).T, math.inf),
        (lambda model, x: model(x).double(), math.inf),
        (lambda model, x: (model(x), model(x)), math.inf),
        (lambda model, x: model(x) * math.nan, math.inf),
        (lambda model, x: model(x).flip(0), pytest.approx(1.0, rel=0.9)),
    ],
    ids=["rounding", "shape", "type", "one more", "NaN", "order"],
)
def test_how_far_results_are_apart_is_told(head: Callable[..., Any], distance: object) -> None:
    assert between(lambda model, x: model(x), head)["the returned value"] == distance


class Mute(torch.Tensor):
    """Wraps a tensor, and handles no operator."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} is not handled")


def test_what_cannot_be_summed_up_or_is_no_tensor_is_compared_as_far_as_it_goes() -> None:
    assert between(lambda model, x: x.to_sparse(), lambda model, x: x.to_sparse())["the returned value"] == 0.0
    twice = between(lambda model, x: x.to_sparse(), lambda model, x: 2 * x.to_sparse())
    assert 0.1 < twice["the returned value"] < 1.0
    assert between(lambda model, x: Mute(x), lambda model, x: Mute(x))["the returned value"] == 0.0
    assert between(lambda *_: 2.0, lambda *_: 1.0)["the returned value"] == 0.5
    endless = between(lambda *_: {"a": [torch.full((), math.inf)]}, lambda *_: {"a": [torch.full((), math.inf)]})
    assert set(endless.values()) == {0.0}


def concluded(call: Callable[[bool], torch.Tensor], calls: int) -> tuple[Results | None, ResultsError | None]:
    """Measure a call that learns whether it is timed: warm-up, samples of so many calls, then an untimed call."""
    is_timed = True
    workload = Workload(lambda: call(is_timed), (), {})
    comparing = Comparing(workload)

    def sample(*, warm: bool) -> None:
        nonlocal is_timed
        is_timed = True
        wrapped = comparing.wrapped(workload, calls, warm=warm)
        for _ in range(calls):
            wrapped.run()
        comparing.note(wrapped, warm=warm)
        is_timed = False

    sample(warm=False)
    for _ in range(6):
        sample(warm=True)
    return comparing.concluded(comparing.left(workload.run()), lambda: sample(warm=True))


@pytest.mark.parametrize("period", [2, 3, 4])
@pytest.mark.parametrize("calls", [1, 2, 3, 4, 6])
def test_results_that_come_in_turns_are_not_comparable_and_accuse_nobody(period: int, calls: int) -> None:
    for phase in range(period):
        made = [phase]

        def in_turns(_is_timed: bool, made: list[int] = made) -> torch.Tensor:
            made[0] += 1
            return torch.full((8,), float(made[0] % period))

        known, error = concluded(in_turns, calls)
        assert error is None
        assert known in (Results.SAME, Results.NOT_COMPARABLE)


def test_a_call_that_returns_something_else_while_it_is_timed_is_an_error() -> None:
    known, error = concluded(lambda is_timed: torch.zeros(8) if is_timed else torch.ones(8), 2)
    assert known is None
    assert isinstance(error, ResultsError)
    assert concluded(lambda _: torch.ones(8), 2) == (Results.SAME, None)
