"""Snapshots made by scripts as PyTorch's documentation tells users to write them, in every way that its recorder has.

Each is read by every command, and has the numbers of PyTorch's own allocator.
"""

from __future__ import annotations

import gc
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nocuda import Gpu
from perflab.cli import main
from perflab.snapshots.analysis import levels
from perflab.snapshots.model import Snapshot
from perflab.snapshots.reading import read_snapshots

from .active import needs_nocuda, said_by

pytestmark = needs_nocuda
MIB = 2**20
MANY, FEW = 100_000, 30
"""Events that the recorder keeps: all of them, or the last ones alone."""


def train(steps: int = 2) -> list[Any]:
    """What is alive at the end."""
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        loss = model(torch.randn(64, 256, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [model, optimizer]


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Nothing of other tests is cached or recorded, and nothing goes on after this one."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    yield
    torch.cuda.memory._record_memory_history(enabled=None)
    gc.collect()


def record(**how: Any) -> None:
    torch.cuda.memory._record_memory_history(**{"max_entries": MANY, "clear_history": True, **how})


def dumped(path: Path) -> Snapshot:
    """The snapshot as it is now, read; every command shows it."""
    torch.cuda.memory._dump_snapshot(str(path))
    (found,) = read_snapshots(path)
    for shown in ([path], [path, path]):
        for form in ("text", "markdown", "json", "html"):
            assert main(["memory", *map(str, shown), f"--format={form}"]) == 0
    assert min(levels(found)) >= 0
    return found


@pytest.mark.parametrize("kept", [MANY, FEW])
@pytest.mark.parametrize("context", [None, "state", "alloc", "all"])
@pytest.mark.parametrize("stacks", ["python", "all"])
def test_whatever_stacks_and_events_are_kept_the_level_is_the_allocator_s(
    tmp_path: Path, stacks: str, context: str | None, kept: int
) -> None:
    record(stacks=stacks, context=context, max_entries=kept)
    alive = train()
    peak, end = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    found = dumped(tmp_path / "snapshot.pickle")
    level = levels(found)
    assert level[-1] == end == sum(one.in_use_bytes for one in found.segments)
    assert max(level) == peak if kept == MANY else end <= max(level) <= peak
    categories = {one.category for one in found.blocks}
    if context is None:
        assert categories == {"unknown"}
    if kept == MANY and context in ("alloc", "all"):
        assert "optimizer state" in categories
        assert ("activations" in categories) is (context == "all" and stacks == "all")
        assert any("who let blocks go was not recorded" in note for note in found.notes) is (context == "alloc")
    if context in ("state", "alloc", "all"):
        states = [one for one in found.blocks if one.requested_bytes == 256 * 512 * 4 and one.freed_at is None]
        assert len(states) == 6  # two weights, and two moments of each
        assert all(any(frame.file == __file__ for frame in one.stack) for one in states)
    del alive


def test_the_segments_alone_are_read_as_well(tmp_path: Path) -> None:
    """Of ``torch.cuda.memory_snapshot()``, which is public and has no history."""
    kept = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
    path = tmp_path / "segments.pickle"
    path.write_bytes(pickle.dumps(torch.cuda.memory_snapshot()))
    (found,) = read_snapshots(path)
    assert list(levels(found)) == [torch.cuda.memory_allocated()]
    assert kept.numel() == 5 * MIB


@pytest.mark.parametrize(
    ("left_out", "said"),
    [
        (["free_completed"], None),
        (["free_requested"], None),
        (["alloc"], "that came without an event"),
        (["free_requested", "free_completed"], "that were let go without an event"),
    ],
    ids=str,
)
def test_actions_that_were_not_recorded_are_named_where_they_are_missed(
    tmp_path: Path, left_out: list[str], said: str | None
) -> None:
    record(skip_actions=left_out)
    train()
    gc.collect()
    peak = torch.cuda.max_memory_allocated()
    found = dumped(tmp_path / "snapshot.pickle")
    assert [note for note in found.notes if said and said in note] == [*found.notes]
    assert bool(found.notes) is bool(said)
    assert max(levels(found)) == peak if said is None else max(levels(found)) >= peak


def test_expandable_segments_streams_and_pools_have_the_allocator_s_level(tmp_path: Path) -> None:
    record(stacks="python")
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    try:
        alive = [*train(), torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")]
        del alive[-1]
        peak, end = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        found = dumped(tmp_path / "expandable.pickle")
        assert (max(levels(found)), levels(found)[-1]) == (peak, end)
        assert found.cache.taken_bytes - found.cache.given_back_bytes <= torch.cuda.memory_reserved()
    finally:
        torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    record(stacks="python")
    side, first = torch.cuda.Stream(), torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
    with torch.cuda.stream(side):
        alive.append(torch.empty(8 * MIB, dtype=torch.uint8, device="cuda"))
    first.record_stream(side)
    del first
    with torch.cuda.use_mem_pool(pool := torch.cuda.MemPool()):
        alive.append(torch.empty(6 * MIB, dtype=torch.uint8, device="cuda"))
    torch.cuda.synchronize()
    alive.append(torch.empty(MIB, dtype=torch.uint8, device="cuda"))
    found = dumped(tmp_path / "streams.pickle")
    assert levels(found)[-1] == torch.cuda.memory_allocated()
    assert len({one.stream for one in found.blocks if one.allocated_at}) == 2
    del alive, pool


def test_a_dump_from_an_observer_of_out_of_memory_says_what_was_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As PyTorch's documentation shows it: the snapshot is written within the allocation that fails."""
    path = tmp_path / "full.pickle"
    is_on = [True]

    def observer(_device: int, _asked: int, _total: int, _free: int) -> None:
        if is_on:  # nobody can be taken off again
            torch.cuda.memory._dump_snapshot(str(path))

    record()
    torch._C._cuda_attach_out_of_memory_observer(observer)
    alive = train()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
    is_on.clear()
    assert main(["memory", str(path), "--format=json"]) == 0
    (asked, free, *parts) = json.loads(capsys.readouterr().out)["tables"]["out_of_memory_1"]
    assert (asked["bytes"], free["bytes"] > 0) == (1 << 45, True)
    assert sum(one["bytes"] for one in parts) == torch.cuda.memory_allocated()
    del alive


TWO = """
import sys, torch
{train}
torch.cuda.memory._record_memory_history(max_entries=100_000)
alive = []
for device in range(2):
    with torch.cuda.device(device):
        alive.append(train(2 + device))
with torch.profiler.record_function("at the end"):
    alive.append(torch.empty(1 << 20, device="cuda:1"))
torch.cuda.memory._dump_snapshot(sys.argv[-1])
for device in range(2):
    print(torch.cuda.max_memory_allocated(device), torch.cuda.memory_allocated(device))
"""


def test_a_snapshot_of_two_devices_has_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "two.pickle"
    source = Path(__file__).read_text(encoding="utf-8")
    function = source[source.index("def train(") : source.index("@pytest.fixture")].replace("list[Any]", "list")
    code = TWO.format(train=function).replace("sys.argv[-1]", repr(str(path)))
    said = [tuple(map(int, line.split())) for line in said_by(code, Gpu(devices=2))]
    found = read_snapshots(path)
    assert [one.device for one in found] == ["cuda:0", "cuda:1"]
    assert [(max(levels(one)), levels(one)[-1]) for one in found] == said
    for device, (peak, _) in enumerate(said):
        assert main(["memory", str(path), f"--device={device}", "--format=json"]) == 0
        assert json.loads(capsys.readouterr().out)["peak_bytes"] == peak
    assert main(["memory", str(path), "--format=json"]) == 0
    assert json.loads(capsys.readouterr().out)["device"] == "cuda:1"  # it has the most events


def test_ranges_stand_for_a_device_that_was_never_the_current_one(tmp_path: Path) -> None:
    path = tmp_path / "two.pickle"
    code = (
        "import torch\n"
        "torch.cuda.memory._record_memory_history(max_entries=1000, global_record_annotations=True)\n"
        "with torch.profiler.record_function('forward'):\n"
        "    alive = [torch.empty(1 << 20, device=f'cuda:{one}') for one in (0, 1)]\n"
        f"torch.cuda.memory._dump_snapshot({str(path)!r})\n"
    )
    said_by(code, Gpu(devices=2))
    for found in read_snapshots(path):
        assert [stage.name for stage in found.stages] == ["forward"], found.device
