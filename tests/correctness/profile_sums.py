"""Do the rows of a profile add up to the timer? ``python -m tests.correctness.profile_sums [MODEL...]``.

Profiles a training step of each model, with written-out and fused attention, in fp32 and bf16, ten times each, and
writes how far the rows and the timer are apart: the median of the runs, and the largest. Run it on a quiet machine.
"""

from __future__ import annotations

import sys
from statistics import median

import torch

from perflab.lab.train import TrainingConfig
from perflab.measure.allocator import keep_freed_memory
from perflab.measure.measurement import stopwatch_for
from perflab.measure.workload import Step
from perflab.profiles.take import ProfilePlan, take_profile
from tests.perf.setup import Setup, phases_of

CPU = torch.device("cpu")
RUNS = 10
WARM_UP = 3
BUDGET_NS = 3e9


def unexplained(model: str, attention: str, precision: str) -> list[float]:
    """What rows and timer differ by, as a share of the timer, run by run."""
    setup = Setup(model, 4, 128, CPU, TrainingConfig(precision=precision), {"attention": attention})
    step = Step(**phases_of(setup.training_step()))
    for _ in range(WARM_UP):
        step.run()
    plan = ProfilePlan(BUDGET_NS)
    found = [take_profile(step, CPU, stopwatch_for(CPU), plan, lambda _what: None) for _ in range(RUNS)]
    return [one.unexplained_ns / one.timer_ns for one in found]


def main(models: list[str]) -> None:
    """Write the table."""
    print("| model | attention | precision | median | largest |\n| --- | --- | --- | --- | --- |")
    keep_freed_memory()  # as any measurement does
    for model in models or ["tiny", "small"]:
        for attention in ("naive", "sdpa"):
            for precision in ("fp32", "bf16"):
                off = unexplained(model, attention, precision)
                largest = max(off, key=abs)
                print(f"| {model} | {attention} | {precision} | {median(off):+.1%} | {largest:+.1%} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
