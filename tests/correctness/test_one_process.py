"""Training in many processes held to one: right wrappers pass, and wrong ones are caught and named."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from torch import nn

from perflab import PerflabError
from perflab.correctness import Cause, NotOneProcessError, RankStep, same_as_one_process

from . import rank_steps

pytestmark = [pytest.mark.correctness, pytest.mark.usefixtures("warm_ranks")]
MakeStep = Callable[[nn.Module, Sequence[int], int], RankStep]
faulty = partial(partial, rank_steps.step_with_fault)


@pytest.mark.parametrize("make_step", [rank_steps.naive_step, rank_steps.ddp_step])
def test_two_ranks_that_average_are_one_process_bit_for_bit(make_step: MakeStep) -> None:
    report = same_as_one_process(rank_steps.make_model, make_step, exact=True)
    assert report.ok


def test_sharded_training_is_one_process_within_its_rounding() -> None:
    report = same_as_one_process(rank_steps.make_model, rank_steps.sharded_step)
    names = {tensor.name for tensor in report.tensors}
    assert {"blocks.1.feed_forward.down.weight", "blocks.1.feed_forward.down.weight exp_avg"} <= names


def test_three_ranks_of_a_model_with_floating_inputs_are_one_process_within_its_rounding() -> None:
    report = same_as_one_process(rank_steps.make_regression, rank_steps.regression_step, world_size=3)
    assert "0.weight momentum_buffer" in {tensor.name for tensor in report.tensors}


def test_a_step_that_fixes_a_dtype_is_told_to_ask_for_the_same_bits() -> None:
    with pytest.raises(PerflabError, match=r"float32 alone\n.*torch.float64.*exact=True needs none"):
        same_as_one_process(rank_steps.make_regression, rank_steps.float32_step)


@pytest.mark.parametrize(
    ("make_step", "cause", "said"),
    [
        (faulty(rank_steps.forgotten_average), Cause.SUMMED, "embedding.weight is wrong"),
        (faulty(rank_steps.without_the_head), Cause.LEFT_OUT, "after one step the ranks differ in embedding.weight"),
        (
            partial(rank_steps.unequal_step, by_own_tokens=True),
            Cause.WEIGHTED,
            "after one step the gradient is 1.25, 0.833 times those of the ranks, not 1, 1",
        ),
        (faulty(rank_steps.clipped_by_own_norm), Cause.WEIGHTED, "times those of the ranks"),
        (
            faulty(rank_steps.head_twice),
            Cause.SCALED,
            "after one step the gradient is 2 times that of embedding.weight",
        ),
        (rank_steps.stale_step, Cause.LATER, "embedding.weight is wrong"),
    ],
    ids=["forgotten average", "head left out", "own tokens", "own norm", "hook fires twice", "stale parameters"],
)
def test_a_mistake_is_caught_and_named(make_step: MakeStep, cause: Cause, said: str) -> None:
    with pytest.raises(NotOneProcessError, match=f"^likely: {re.escape(cause.value)}") as caught:
        same_as_one_process(rank_steps.make_model, make_step)
    assert caught.value.causes == (cause,)
    assert said in str(caught.value)


def test_unlike_numbers_of_tokens_that_all_ranks_divide_by_are_one_process() -> None:
    assert same_as_one_process(rank_steps.make_model, partial(rank_steps.unequal_step, by_own_tokens=False)).ok


def test_one_process_is_no_number_of_ranks() -> None:
    with pytest.raises(PerflabError, match="world_size=1"):
        same_as_one_process(rank_steps.make_model, rank_steps.naive_step, world_size=1)
