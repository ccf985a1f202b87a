"""The likely cause of a difference between ranks and one process, for mistakes of which each leaves its mark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
from torch import nn

from perflab.correctness import Cause, RankStep, in_ranks
from perflab.correctness.one_process import State, _causes, _Job, _train, _Training
from tests.correctness import rank_steps
from tests.correctness.rank_steps import own_weights_step, same_batch_step, step_with_fault

MakeStep = Callable[..., RankStep]
FAULTS: dict[str, tuple[MakeStep, Cause]] = {
    "no average": (partial(step_with_fault, rank_steps.forgotten_average), Cause.SUMMED),
    "averaged twice": (partial(step_with_fault, rank_steps.average_twice), Cause.DIVIDED_TWICE),
    "no exchange": (partial(step_with_fault, rank_steps.nothing_exchanged), Cause.NOT_EXCHANGED),
    "one batch for all": (same_batch_step, Cause.SAME_SHARD),
    "rank 0's gradient": (partial(step_with_fault, rank_steps.first_ranks), Cause.SAME_SHARD),
    "own weights": (own_weights_step, Cause.OWN_WEIGHTS),
    "head left out": (partial(step_with_fault, rank_steps.without_the_head), Cause.LEFT_OUT),
    "in bfloat16": (partial(step_with_fault, rank_steps.in_bfloat16), Cause.NARROW),
    "clipped by own norm": (partial(step_with_fault, rank_steps.clipped_by_own_norm), Cause.WEIGHTED),
}
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


class _Known(_Training):
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
def found() -> dict[str, list[Cause]]:
    """The causes of each fault, from one set of processes for all."""
    make_steps = [make for make, _ in FAULTS.values()]
    ranked = [[_Job((rank,), steps=steps) for steps in (0, 1, None)] for rank in range(2)]
    (ones,) = in_ranks(trained, 1, make_steps, [ALONE], threads=1)
    ranks = in_ranks(trained, 2, make_steps, ranked, threads=1)
    causes = {}
    for name, one, *both in zip(FAULTS, ones, *ranks, strict=True):
        known = _Known(one, both)
        causes[name], _ = _causes(known, [states for (states,) in known.in_ranks(None)], one[ALONE[0]])
    return causes


@pytest.mark.parametrize("name", FAULTS)
def test_the_likely_cause_of_a_difference_is_named(found: dict[str, list[Cause]], name: str) -> None:
    assert found[name] == [FAULTS[name][1]]
