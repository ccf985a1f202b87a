"""Predicted timelines of the lab's model held against those that PyTorch's own recorder writes of the same calls.

Without fused attention they are equal event by event, sums of gradients in place included. A kernel of attention takes
its workspaces, seeds and offsets within one operator, whose inside a trace does not see: there the blocks come in
another order, or two of them as one, and the tests say exactly how far that is off.

The peak is the same to the byte in all of them, and so is what it is made of: the recording knows parameters, gradients
and optimizer state by pointer, as the prediction does. What cuBLAS keeps for itself no recording tells.
"""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path

import pytest
import torch

from perflab.measure.memory.histories import record_call
from perflab.predicted.cuda.kernels import ON_CUDA
from perflab.predicted.memory.snapshot import write_snapshot
from perflab.predicted.prediction import traced
from perflab.snapshots.analysis import Part, alive_at, levels, module_of, parts_by, peak_moment
from perflab.snapshots.model import Block, Snapshot
from perflab.snapshots.reading import read_snapshots
from tests.correctness.predicted import on_a_gpu, setup_of, work, workload_of
from tests.perf.setup import Setup

from .active import needs_nocuda

pytestmark = needs_nocuda
LAYERS = 2
"""Of the tiny model."""
CALLS_BEFORE = 3
CASES = pytest.mark.parametrize(
    ("precision", "attention"), [("fp32", "naive"), ("fp32", "sdpa"), ("bf16", "naive"), ("bf16", "sdpa")]
)


def timelines(mode: str, precision: str, attention: str, folder: Path) -> tuple[Snapshot, Snapshot]:
    """The predicted one of a call, and the recorded one."""

    def setup() -> Setup:
        return setup_of("tiny", 2, 64, device="cuda", training={"precision": precision}, attention=attention)

    with on_a_gpu(torch.cuda.get_device_capability()):
        trace = traced(work(mode, setup()), ON_CUDA).trace
    workload = workload_of(mode, setup())
    for _ in range(CALLS_BEFORE):
        workload.run()
    gc.collect()
    recorded = record_call(workload, folder / "recorded", torch.device("cuda", torch.cuda.current_device()))
    (ours,) = read_snapshots(write_snapshot(trace, folder / "predicted", time_of=lambda op: 1.0))
    (theirs,) = read_snapshots(recorded.path)
    return ours, theirs


def events(snapshot: Snapshot) -> list[int]:
    """The size of each block as it comes, and below zero as it goes, in order."""
    found = [0] * (snapshot.moments + 1)
    for block in snapshot.blocks:
        if block.allocated_at:
            found[block.allocated_at] = block.size_bytes
        if block.freed_at is not None:
            found[block.freed_at] = -block.size_bytes
    return found[1:]


def made(snapshot: Snapshot) -> list[Block]:
    """The blocks of the call, in the order in which they came."""
    return sorted((one for one in snapshot.blocks if one.allocated_at), key=lambda one: one.allocated_at)


def rise(snapshot: Snapshot) -> int:
    """By how much live bytes rise above the beginning."""
    level = levels(snapshot)
    return max(level) - level[0]


@CASES
def test_a_predicted_forward_is_the_recorded_one_event_by_event(precision: str, attention: str, tmp_path: Path) -> None:
    ours, theirs = timelines("forward", precision, attention, tmp_path)
    predicted, recorded = events(ours), events(theirs)
    assert rise(ours) == rise(theirs)
    # The recording goes on until the call's result is let go.
    assert all(change < 0 for change in recorded[len(predicted) :])
    if (precision, attention) != ("bf16", "sdpa"):
        assert predicted == recorded[: len(predicted)]
        return
    # Flash attention's seeds and offsets come before its result, and not behind it.
    assert Counter(predicted) == Counter(recorded[: len(predicted)])
    off = [pair for pair in zip(predicted, recorded, strict=False) if pair[0] != pair[1]]
    assert 0 < len(off) <= 4 * LAYERS
    assert all(512 in pair for pair in off)


@CASES
@pytest.mark.parametrize("mode", ["forward_backward", "train_step"])
def test_a_predicted_step_is_the_recorded_one_but_for_workspaces(
    mode: str, precision: str, attention: str, tmp_path: Path
) -> None:
    ours, theirs = timelines(mode, precision, attention, tmp_path)
    assert rise(ours) == rise(theirs)
    predicted, recorded = events(ours), events(theirs)
    if attention == "naive":
        assert predicted == recorded[: len(predicted)]
        return
    if precision == "bf16":
        assert Counter(predicted) == Counter(recorded[: len(predicted)])
        return
    sizes, others = (Counter(one.size_bytes for one in made(side)) for side in (ours, theirs))
    # The backward of memory-efficient attention: what is there at once is one block, and what goes before is not seen.
    only_predicted, only_recorded = sizes - others, others - sizes
    ((size, count),) = only_predicted.items()
    small, product, large = sorted(only_recorded)
    assert size == small + large
    assert count == only_recorded[large] == only_recorded[product] == LAYERS
    assert only_recorded[small] == 2 * LAYERS


@CASES
@pytest.mark.parametrize("mode", ["forward", "forward_backward", "train_step"])
def test_a_recording_says_of_its_peak_what_the_prediction_says(
    mode: str, precision: str, attention: str, tmp_path: Path
) -> None:
    ours, theirs = timelines(mode, precision, attention, tmp_path)
    assert by_category_and_module(ours) == by_category_and_module(theirs)


def by_category_and_module(snapshot: Snapshot) -> dict[tuple[str, str], Part]:
    """What is alive at the peak. The module of what a backward has in passing is known to a prediction alone."""

    def key(block: Block) -> tuple[str, str]:
        is_in_passing = block.category == "temporaries" and not (block.allocated_at and block.phase == "forward")
        return block.category, "" if is_in_passing else module_of(block)

    alive = alive_at(snapshot, peak_moment(levels(snapshot)))
    assert not any(one.allocated_at for one in alive if one.category == "unknown")
    return parts_by((one for one in alive if one.category != "unknown"), key)
