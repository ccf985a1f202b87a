"""Do the rows of a profile add up to the timer? ``python -m tests.correctness.profile_sums [MODEL...]``.

Profiles a training step of each model, with written-out and fused attention, in fp32 and bf16, ten times each, and
writes how far the rows and the timer are apart: the median of the runs, and the largest. It fails if a median is above
3 %. Run it on a quiet machine.
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
WITHIN = 0.03
"""Share of the timer by which rows and timer may differ at the median."""


def unexplained(model: str, attention: str, precision: str) -> list[float]:
    """What rows and timer differ by, as a share of the timer, run by run."""
    setup = Setup(model, 4, 128, CPU, TrainingConfig(precision=precision), {"attention": attention})
    step = Step(**phases_of(setup.training_step()))
    for _ in range(WARM_UP):
        step.run()
    plan = ProfilePlan(BUDGET_NS)
    found = [take_profile(step, CPU, stopwatch_for(CPU), plan, lambda _what: None) for _ in range(RUNS)]
    return [one.unexplained_ns / one.timer_ns for one in found]


def main(models: list[str]) -> int:
    """Write the table; 1 if a median is off by more than ``WITHIN``."""
    status = 0
    print("| model | attention | precision | median | largest |\n| --- | --- | --- | --- | --- |")
    keep_freed_memory()  # as any measurement does
    for model in models or ["tiny", "small"]:
        for attention in ("naive", "sdpa"):
            for precision in ("fp32", "bf16"):
                off = unexplained(model, attention, precision)
                largest = max(off, key=abs)
                status |= abs(median(off)) > WITHIN
                print(f"| {model} | {attention} | {precision} | {median(off):+.1%} | {largest:+.1%} |", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
