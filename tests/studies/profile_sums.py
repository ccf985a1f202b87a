"""Do the rows of a profile add up to the timer? ``python -m tests.studies.profile_sums [MODEL...]``.

Profiles a forward alone (in inference mode) and a training step of each model, with written-out and fused attention, in
fp32 and bf16, ten times each, and writes how far the rows and the timer are apart: the median of the runs, and the
largest; and the share of matrix products. It fails if a median is above 3 %, or if the FLOPs of the rows are not those
of the closed form. Run it on a quiet machine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product
from statistics import median

import torch

from perflab.lab.models.memory import Mode
from perflab.lab.train import PRECISIONS, TrainingConfig
from perflab.measure.calls.workload import Step, Workload
from perflab.measure.machine.devices import keep_freed_memory
from perflab.measurement.measurement import stopwatch_for
from perflab.profiles.take import ProfilePlan, take_profile
from perflab.results.profile import Profile
from tests.perf.setup import Setup, phases_of

CPU = torch.device("cpu")
RUNS = 10
WARM_UP = 3
BUDGET_NS = 3e9
WITHIN = 0.03
"""Share of the timer by which rows and timer may differ at the median."""


MODELS = ("tiny", "small")
WORK: tuple[Mode, ...] = ("forward", "train_step")


def workload_of(setup: Setup, mode: Mode) -> Workload:
    """A forward without a graph, or a whole training step; warm."""
    if mode == "forward":
        model, tokens, precision = setup.model(), setup.tokens(), PRECISIONS[setup.training.precision]

        def forward() -> torch.Tensor:
            with torch.inference_mode(), precision.applied(setup.device.type):
                logits: torch.Tensor = model(tokens)
            return logits

        workload = Workload(forward, (), {})
    else:
        workload = Step(**phases_of(setup.training_step()))
    for _ in range(WARM_UP):
        workload.run()
    return workload


def profiles_of(setup: Setup, mode: Mode, runs: int, budget_ns: float) -> list[Profile]:
    """The same work, so often."""
    workload, plan = workload_of(setup, mode), ProfilePlan(budget_ns)
    return [take_profile(workload, CPU, stopwatch_for(CPU), plan, lambda _what: None) for _ in range(runs)]


def closed_form(setup: Setup, mode: Mode) -> int:
    """FLOPs of one call. The backward of fused attention computes the scores once more than that of written-out."""
    config = setup.config
    scores = 2 * setup.batch_size * setup.context_length**2 * config.num_layers * config.num_heads * config.head_dim
    recomputed = mode == "train_step" and setup.changes["attention"] == "sdpa"
    return setup.cost(mode).flops + scores * recomputed


def cells(found: Sequence[Profile], flops: int) -> tuple[list[str], bool]:
    """What the table says of some profiles of one work, and whether they are as they should be.

    Args:
        found: the profiles.
        flops: of the work, by the closed form.
    """
    off = [one.unexplained_ns / one.timer_ns for one in found]
    products = [
        sum(row.time_ns for row in one.rows if row.category.startswith("products")) / one.explained_ns for one in found
    ]
    counted = {sum(row.flops for row in one.rows) for one in found}
    said = "as computed" if counted == {flops} else f"{sorted(counted)} and not {flops}"
    is_right = abs(median(off)) <= WITHIN and counted == {flops}
    return [f"{median(off):+.1%}", f"{max(off, key=abs):+.1%}", f"{median(products):.0%}", said], is_right


def main(models: list[str]) -> int:
    """Write the table; 1 if a median is off by more than ``WITHIN``, or FLOPs are not those of the closed form."""
    wrong = 0
    print("| model | work | attention | precision | median | largest | products | FLOPs |\n|" + " --- |" * 8)
    keep_freed_memory()  # as any measurement does
    for model, mode, attention, precision in product(models or MODELS, WORK, ("naive", "sdpa"), ("fp32", "bf16")):
        setup = Setup(model, 4, 128, CPU, TrainingConfig(precision=precision), {"attention": attention})
        told, is_right = cells(profiles_of(setup, mode, RUNS, BUDGET_NS), closed_form(setup, mode))
        wrong += not is_right
        print(f"| {' | '.join([model, mode, attention, precision, *told])} |", flush=True)
    print(f"{wrong} are wrong" if wrong else "all add up")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
