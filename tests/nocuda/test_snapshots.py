"""Snapshots that PyTorch's own recorder writes: read, and summed up to what its allocator says."""

from __future__ import annotations

import gc
import json
import pickle
from pathlib import Path

import pytest
import torch

from perflab.cli import main
from perflab.measure.calls.workload import Step, Workload
from perflab.measure.memory import histories
from perflab.measure.memory.histories import record_call
from perflab.snapshots.analysis import alive_at, levels, peak_moment
from perflab.snapshots.model import Snapshot
from perflab.snapshots.pytorch import rounded
from tests.harness.made_snapshots import read

from .active import needs_nocuda

pytestmark = needs_nocuda


def record(path: Path, protocol: int | None = None, **how: object) -> tuple[int, int]:
    """Two training steps; returns the highest ``memory_allocated`` in them, and that at the end."""
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(max_entries=100_000, **how)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        torch.cuda.memory._set_memory_metadata("forward")
        with torch.profiler.record_function("forward"):
            loss = model(torch.randn(64, 256, device="cuda")).square().mean()
        torch.cuda.memory._set_memory_metadata("backward")
        with torch.profiler.record_function("backward"):
            loss.backward()
        torch.cuda.memory._set_memory_metadata("optimizer")
        with torch.profiler.record_function("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        del loss
    torch.cuda.memory._set_memory_metadata("")
    seen = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    if protocol is None:
        torch.cuda.memory._dump_snapshot(str(path))
    else:
        path.write_bytes(pickle.dumps(torch.cuda.memory._snapshot(), protocol=protocol))
    torch.cuda.memory._record_memory_history(enabled=None)
    return seen


@pytest.mark.parametrize("stacks", ["python", "all"])
def test_a_recording_of_pytorch_has_its_allocator_s_peak_stages_and_categories(tmp_path: Path, stacks: str) -> None:
    path = tmp_path / "recorded.pickle"
    peak, end = record(path, stacks=stacks, clear_history=True)
    found = read(path)
    level = levels(found)
    assert (found.source, found.device) == ("PyTorch", "cuda:0")
    assert [stage.name for stage in found.stages] == ["forward", "backward", "optimizer"] * 2
    assert len(found.steps) == 2
    # No block is as large as one of which the allocator leaves a rest uncut, but for workspaces, which are whole.
    assert max(level[found.stages[0].start :]) == peak
    assert level[-1] == end
    assert sum(one.in_use_bytes for one in found.segments) == end
    states = [one for one in found.blocks if one.category == "optimizer state" and one.requested_bytes == 256 * 512 * 4]
    assert len(states) == 4
    assert {"activations", "gradients", "parameters", "temporaries"} <= {one.category for one in found.blocks}
    stacks_of_states = {frame.file.rsplit("/", 1)[-1] for one in states for frame in one.stack}
    assert {"test_snapshots.py", "adam.py"} & stacks_of_states


@pytest.mark.parametrize("protocol", range(6))
def test_its_snapshot_reads_alike_in_every_protocol(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "recorded.pickle"
    peak, _ = record(path, protocol, stacks="python", clear_history=True)
    level = levels(read(path))
    assert level[peak_moment(level)] == peak


def test_without_stacks_and_with_expandable_segments_it_still_reads(tmp_path: Path) -> None:
    path = tmp_path / "recorded.pickle"
    record(path, context=None, clear_history=True)
    assert all(one.stack == () for one in read(path).blocks if one.allocated_at)
    torch.cuda.memory.empty_cache()
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    try:
        record(path, stacks="python", clear_history=True)
    finally:
        torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    assert any("expandable" in one.kind for one in read(path).segments)


def test_ranges_of_record_function_are_stages_where_no_mark_stands(tmp_path: Path) -> None:
    path = tmp_path / "recorded.pickle"
    record(path, stacks="python", clear_history=True, global_record_annotations=True)
    content = pickle.loads(path.read_bytes())
    for event in content["device_traces"][0]:
        event.pop("user_metadata")
    path.write_bytes(pickle.dumps(content))
    assert [stage.name for stage in read(path).stages] == ["forward", "backward", "optimizer"] * 2


def test_out_of_memory_is_told_with_what_was_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "full.pickle"
    torch.cuda.memory._record_memory_history(max_entries=1000, stacks="python", clear_history=True)
    kept = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    torch.cuda.memory._dump_snapshot(str(path))
    torch.cuda.memory._record_memory_history(enabled=None)
    assert main(["memory", str(path), "--format=json"]) == 0
    (asked, free, *alive) = json.loads(capsys.readouterr().out)["tables"]["out_of_memory_1"]
    assert (asked["what"], asked["bytes"]) == ("asked for", 1 << 50)
    assert free["bytes"] > 0
    assert sum(one["bytes"] for one in alive) == torch.cuda.memory_allocated()
    assert kept.numel() == 3 << 30


def test_what_is_alive_and_the_fragments_are_what_the_allocator_had_reserved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "reserved.pickle"
    mib = 1 << 20
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    torch.cuda.memory._record_memory_history(max_entries=1000, stacks="python", clear_history=True)
    kept = [torch.empty(size * mib, dtype=torch.uint8, device="cuda") for size in (30, 3, 50)]
    kept[0] = torch.empty(1, device="cuda")  # 30 MiB are cached
    kept.append(torch.empty(60 * mib, dtype=torch.uint8, device="cuda"))
    alive, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    kept.clear()
    torch.cuda.empty_cache()  # what is reserved at the end is no measure
    torch.cuda.memory._dump_snapshot(str(path))
    torch.cuda.memory._record_memory_history(enabled=None)
    assert torch.cuda.memory_reserved() <= before + 2 * mib
    assert main(["memory", str(path), "--format=json"]) == 0
    told = json.loads(capsys.readouterr().out)
    by_name = {row["what"].partition(":")[0]: row["bytes"] for row in told["tables"]["reserved"]}
    assert by_name == {
        "alive, all categories": told["peak_bytes"],
        "fragments": reserved - told["peak_bytes"],
        "reserved": reserved,
    }
    assert told["peak_bytes"] == sum(row["bytes"] for row in told["tables"]["by_category"]) == alive
    assert by_name["fragments"] >= 30 * mib


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(3))
        self.head = torch.nn.Linear(256, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.relu(block(x))
        logits: torch.Tensor = self.head(x)
        return logits


def step_of(model: torch.nn.Module, data: torch.Tensor) -> Step:
    optimizer = torch.optim.AdamW(model.parameters())
    step = Step(
        lambda: model(data).square().mean(),
        lambda loss: loss.backward(),
        lambda: (optimizer.step(), optimizer.zero_grad()),
    )
    step.run()
    return step


def alive(snapshot: Snapshot, category: str, moment: int) -> int:
    return sum(one.size_bytes for one in alive_at(snapshot, moment) if one.category == category)


@pytest.mark.parametrize("kept", [1_000_000, 60])
def test_a_recording_of_our_own_knows_what_pytorch_s_recorder_does_not(
    tmp_path: Path, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the recorder keeps the last 60 events alone."""
    monkeypatch.setattr(histories, "MAX_EVENTS", kept)
    model = Net().cuda()
    step = step_of(model, torch.randn(64, 256, device="cuda"))
    gc.collect()
    device = torch.device("cuda", torch.cuda.current_device())
    path = record_call(step, tmp_path / "step", device).path
    found = read(path)
    of_weights = sum(rounded(4 * one.numel()) for one in model.parameters())
    backward = next(stage for stage in found.stages if stage.name == "backward")
    assert alive(found, "parameters", 0) == alive(found, "parameters", found.moments) == of_weights
    assert alive(found, "optimizer state", 0) == 2 * of_weights  # its counters lie on the CPU
    assert alive(found, "gradients", backward.end) == of_weights
    assert alive(found, "gradients", found.moments) == 0
    with path.open("rb") as file:
        events = len(pickle.load(file)["device_traces"][device.index])
    assert (events == kept) is (kept == 60)
    if kept > 60:
        made = [one for one in found.blocks if one.phase == "forward" and one.size_bytes == 4 * 64 * 256]
        assert [one.module for one in made] == ["blocks.0", "Net", "blocks.1", "Net", "blocks.2", "Net"]


def test_modules_that_are_compiled_are_not_hooked(tmp_path: Path) -> None:
    model = Net().cuda()
    compiled = torch.compile(model, backend="eager")
    data = torch.randn(64, 256, device="cuda")
    compiled(data)
    calls = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    found = read(record_call(Workload(compiled, (data,), {}), tmp_path / "compiled", data.device).path)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == calls
    assert alive(found, "parameters", 0) == sum(rounded(4 * one.numel()) for one in model.parameters())


def test_retries_are_those_that_pytorch_counts(tmp_path: Path) -> None:
    torch.empty(1, device="cuda")  # before it there are no statistics
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(max_entries=10_000)
    try:
        before = torch.cuda.memory_stats()["num_alloc_retries"]
        held = torch.empty(40 << 30, dtype=torch.uint8, device="cuda")
        rest = torch.empty(30 << 30, dtype=torch.uint8, device="cuda")
        del rest
        again = torch.empty(36 << 30, dtype=torch.uint8, device="cuda")  # room once the cache is given back
        del again
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(60 << 30, dtype=torch.uint8, device="cuda")
        counted = torch.cuda.memory_stats()["num_alloc_retries"] - before
        torch.cuda.memory._dump_snapshot(str(tmp_path / "a.pickle"))
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    del held
    assert (counted, read(tmp_path / "a.pickle").cache.retries) == (2, 2)
