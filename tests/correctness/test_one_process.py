"""Training in many processes held to one: right wrappers pass, and wrong ones are caught and named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from torch import nn

from perflab import PerflabError
from perflab.correctness import Cause, NotOneProcessError, RankStep, in_ranks, same_as_one_process
from perflab.correctness.one_process import State, _causes, _Job, _train, _Training

from . import rank_steps

pytestmark = [pytest.mark.correctness, pytest.mark.usefixtures("warm_ranks")]
MakeStep = Callable[[nn.Module, Sequence[int], int], RankStep]


def faulty(exchange: rank_steps.Exchange) -> MakeStep:
    return partial(rank_steps.step_with_fault, exchange)


def test_two_ranks_that_average_are_one_process_bit_for_bit() -> None:
    assert same_as_one_process(rank_steps.make_model, rank_steps.ddp_step, exact=True).ok


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


def test_one_process_is_no_number_of_ranks() -> None:
    with pytest.raises(PerflabError, match="world_size=1"):
        same_as_one_process(rank_steps.make_model, rank_steps.naive_step, world_size=1)


def test_a_mistake_is_caught_and_named() -> None:
    with pytest.raises(NotOneProcessError) as caught:
        same_as_one_process(rank_steps.make_model, faulty(rank_steps.forgotten_average))
    assert caught.value.causes == (Cause.SUMMED,)
    cause, first, *_ = str(caught.value).splitlines()
    assert cause == f"likely: {Cause.SUMMED.value}"
    assert first.startswith("embedding.weight is wrong")


def test_a_mistake_of_the_first_step_is_shown_by_what_it_did() -> None:
    with pytest.raises(NotOneProcessError) as caught:
        same_as_one_process(rank_steps.make_model, faulty(rank_steps.without_the_head))
    cause, where, *_ = str(caught.value).splitlines()
    assert cause == f"likely: {Cause.LEFT_OUT.value}"
    assert where.startswith("after one step the ranks differ in embedding.weight")


# --- causes, of many mistakes that are made in one set of processes


FAULTS: dict[str, tuple[MakeStep, Cause]] = {
    "no average": (faulty(rank_steps.forgotten_average), Cause.SUMMED),
    "averaged twice": (faulty(rank_steps.average_twice), Cause.DIVIDED_TWICE),
    "no exchange": (faulty(rank_steps.nothing_exchanged), Cause.NOT_EXCHANGED),
    "one batch for all": (rank_steps.same_batch_step, Cause.SAME_SHARD),
    "rank 0's gradient": (faulty(rank_steps.first_ranks), Cause.SAME_SHARD),
    "own weights": (rank_steps.own_weights_step, Cause.OWN_WEIGHTS),
    "head left out": (faulty(rank_steps.without_the_head), Cause.LEFT_OUT),
    "in bfloat16": (faulty(rank_steps.in_bfloat16), Cause.NARROW),
    "clipped by own norm": (faulty(rank_steps.clipped_by_own_norm), Cause.WEIGHTED),
    "own tokens": (partial(rank_steps.unequal_step, by_own_tokens=True), Cause.WEIGHTED),
    "hook fires twice": (faulty(rank_steps.head_twice), Cause.SCALED),
    "stale parameters": (rank_steps.stale_step, Cause.LATER),
}
SHOWN = ("head left out", "clipped by own norm", "own tokens", "hook fires twice")
"""Mistakes of which the first step shows more than the cause."""
STEPS = 3
Trained = dict[_Job, State]
ALONE = [
    _Job(shards, steps=steps) for shards, steps in [((0, 1), None), ((0, 0), None), ((0,), None), ((1,), None)]
] + [_Job(shards, steps=1) for shards in [(0,), (1,), (0, 1)]]


def trained(make_steps: list[MakeStep], jobs: list[list[_Job]]) -> list[Trained]:
    """Do this rank's jobs with each step."""
    mine = jobs[rank_steps.distributed.get_rank()]
    ways = [_Training(rank_steps.make_model, make, 2, STEPS, 0, "gloo", 1.0) for make in make_steps]
    return [{job: _train(way, job) for job in mine} for way in ways]


class Known(_Training):
    """Trainings that have been done, in one process and in each rank."""

    def __init__(self, alone: Trained, ranks: list[Trained]) -> None:
        super().__init__(nn.Identity, rank_steps.naive_step, 2, STEPS, 0, "gloo", 1.0)
        object.__setattr__(self, "known", (alone, ranks))

    def in_one(self, jobs: Sequence[_Job]) -> list[State]:
        return [self.known[0][job] for job in jobs]  # type: ignore[attr-defined]

    def in_ranks(self, *steps: int | None) -> list[list[State]]:
        ranks = enumerate(self.known[1])  # type: ignore[attr-defined]
        return [[states[_Job((rank,), steps=count)] for count in steps] for rank, states in ranks]


@pytest.fixture(scope="module")
def known(warm_ranks: None) -> dict[str, tuple[Known, list[State], State]]:
    """All trainings of each step, those in ranks, and that in one process: from one set of processes for all."""
    make_steps: dict[str, Any] = {name: make for name, (make, _) in FAULTS.items()}
    ranked = [[_Job((rank,), steps=steps) for steps in (0, 1, None)] for rank in range(2)]
    (ones,) = in_ranks(trained, 1, list(make_steps.values()), [ALONE], threads=1)
    both = zip(*in_ranks(trained, 2, list(make_steps.values()), ranked, threads=1), strict=True)
    found = {name: Known(one, list(ranks)) for name, one, ranks in zip(make_steps, ones, both, strict=True)}
    return {
        name: (one, [states for (states,) in one.in_ranks(None)], one.in_one(ALONE[:1])[0])
        for name, one in found.items()
    }


@pytest.mark.parametrize("name", FAULTS)
def test_the_likely_cause_of_a_difference_is_named(
    known: dict[str, tuple[Known, list[State], State]], name: str, snapshot: SnapshotAssertion
) -> None:
    causes, where = _causes(*known[name])
    assert causes == [FAULTS[name][1]]
    assert name not in SHOWN or where == snapshot


def test_unlike_numbers_of_tokens_that_all_ranks_divide_by_are_one_process() -> None:
    assert same_as_one_process(rank_steps.make_model, partial(rank_steps.unequal_step, by_own_tokens=False)).ok
