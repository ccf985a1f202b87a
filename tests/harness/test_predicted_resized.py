"""The peak at sizes that nobody traced: held to traces of these sizes, and to hand-made outlines."""

from __future__ import annotations

import pytest
import torch

from perflab.predicted.memory.account import account_of
from perflab.predicted.memory.sizes import Interpolated, Outline, outline_of
from tests.harness.traced import exact, traced_as_is, work


def attended(size: int) -> Outline:
    """Of a call that has a square of its size for a while, and something long after it."""

    def call() -> torch.Tensor:
        scores = x @ x.t()
        weights = scores.softmax(-1)
        del scores
        mixed = weights @ x
        del weights
        return torch.cat([mixed] * 40)

    x = torch.zeros(size, 16)
    return outline_of(traced_as_is(work(call, x)))


def test_an_outline_has_the_peak_of_its_trace() -> None:
    x = torch.zeros(100, 16)
    trace = traced_as_is(work(lambda: (x + 1.0).exp().sum(), x))
    assert exact(trace).peak_bytes == 3 * 6400
    assert outline_of(trace).peak_bytes() == account_of(trace).peak_bytes == 3 * 6656  # in blocks of 512 bytes


@pytest.mark.parametrize("size", [1, 5, 64, 333, 1001])
def test_the_peak_of_any_size_is_reckoned_from_three(size: int) -> None:
    reckoned = Interpolated({known: attended(known) for known in (8, 24, 32)})
    assert reckoned.holds
    assert reckoned.peak_bytes(size) == attended(size).peak_bytes()


def test_the_worst_moment_may_be_another_at_another_size() -> None:
    reckoned = Interpolated({known: attended(known) for known in (8, 16, 24)})
    few, many = reckoned.peak_bytes(16), reckoned.peak_bytes(1600)
    assert few == 16 * 16 * 4 * (1 + 1 + 40)  # the input, what was mixed, and that forty times over
    assert many == 2 * 1600**2 * 4 + 1600 * 16 * 4  # the input and two squares


def test_what_is_linear_is_reckoned_from_two_and_what_is_not_is_not() -> None:
    line, bow = ({size: Outline((512, 512 * size**degree), (0, 1)) for size in (2, 4)} for degree in (1, 2))
    assert Interpolated(line).peak_bytes(1000) == 512 * 1001
    assert Interpolated(bow).peak_bytes(1000) != 512 * (1 + 1000**2)
    bow[6] = Outline((512, 512 * 36), (0, 1))
    assert Interpolated(bow).peak_bytes(1000) == 512 * (1 + 1000**2)


def test_calls_that_do_other_things_at_other_sizes_are_not_to_be_interpolated() -> None:
    assert Interpolated({1: Outline((1, 2), (0, 1)), 2: Outline((1, 2), (0, 1))}).holds
    assert not Interpolated({1: Outline((1, 2), (0, 1)), 2: Outline((1, 2), (0, ~0, 1))}).holds
    assert not Interpolated({1: Outline((1, 2), (0, 1)), 2: Outline((1, 2, 3), (0, 1, 2))}).holds


def test_a_size_that_would_be_negative_is_none() -> None:
    assert Interpolated({4: Outline((512, 5120), (0, 1)), 6: Outline((512, 15360), (0, 1))}).peak_bytes(1) == 512
