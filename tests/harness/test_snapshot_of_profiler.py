"""A snapshot that PyTorch's own code makes, of a profile, without a GPU: it is read, and every command shows it."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.cuda._memory_viz import _profile_to_snapshot

from perflab.snapshots.analysis import levels
from perflab.snapshots.device import rounded
from perflab.snapshots.reading import read_snapshots
from tests.harness.command import Command


def profiled(steps: int = 2) -> dict[str, Any]:
    """What ``torch.cuda._memory_viz`` makes of a profile, as its plots do."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True, record_shapes=True, with_stack=True) as profile:
        for _ in range(steps):
            model(torch.randn(32, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    made: dict[str, Any] = _profile_to_snapshot(profile)
    return made


def levels_backwards(made: dict[str, Any]) -> list[int]:
    """Live bytes after each event, from what is alive at the end: what was there before has no event."""
    blocks = [block for segment in made["segments"] for block in segment["blocks"]]
    found = [sum(rounded(block["size"]) for block in blocks if block["state"] == "active_allocated")]
    for event in reversed(made["device_traces"][0]):
        if event["action"] in ("alloc", "free_completed"):
            sign = 1 if event["action"] == "alloc" else -1
            found.append(found[-1] - sign * rounded(event["size"]))
    return found[::-1]


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_snapshot_of_a_profile_has_its_levels_and_categories(tmp_path: Path, command: Command, protocol: int) -> None:
    made, path = profiled(), tmp_path / "profile.pickle"
    path.write_bytes(pickle.dumps(made, protocol=protocol))
    (found,) = read_snapshots(path)
    assert list(levels(found)) == levels_backwards(made)
    told = {event["category"] for event in made["device_traces"][0] if event["action"] == "alloc"}
    assert {"gradient", "optimizer_state", "activation"} <= told <= {block.category for block in found.blocks}
    for form in ("text", "markdown", "html", "json"):
        shown = command("memory", path, f"--format={form}")
    parts = json.loads(shown)["tables"]["by_category"]
    assert sum(part["bytes"] for part in parts) == max(levels_backwards(made))
