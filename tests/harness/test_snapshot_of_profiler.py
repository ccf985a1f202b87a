"""A snapshot that PyTorch makes of a profile is read and shown; one of any size soon, and in its share of 2 GB."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from torch.cuda._memory_viz import _profile_to_snapshot

from perflab.snapshots.analysis import levels
from perflab.snapshots.pytorch import rounded
from perflab.snapshots.reading import read_snapshots
from tests.harness.command import Command
from tests.harness.made_snapshots import MIB, Recording, content, written


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


GIGABYTE, BYTES = 10**9, 2 * 10**9
"""A file of so many bytes may take so many bytes of memory."""
UNPICKLINGS = 10
"""How often the file might be unpickled in the processor time that it is shown in: 4 to 5 times are usual."""
DEPTH, LINES = 80, 500
"""Frames of a stack, and lines that there are."""
SHOW = """
import re, sys, time
from pathlib import Path
from perflab.cli import main
start = time.process_time()
main(["memory", sys.argv[1]])
seconds, status = time.process_time() - start, Path("/proc/self/status").read_text()
print(seconds, 1024 * int(re.search(r"VmHWM:\\s*(\\d+) kB", status)[1]))
"""


def deep(events: int) -> Recording:
    """Pairs of an allocation and what lets it go, with stacks as deep as those of a training script with C++ frames."""
    made = Recording()
    calls = [(f"/home/me/project/part{line % 20}.py", line, f"function{line % 50}") for line in range(LINES)]
    for number in range(events // 3):
        stack = [calls[(number * 7 + place) % LINES] for place in range(DEPTH)]
        made.alloc(number * MIB, 512 * (1 + number % 9), *stack)
        if number >= 100:
            made.free((number - 100) * MIB, 512 * (1 + (number - 100) % 9), *stack)
    return made


def shown(path: Path) -> tuple[float, int]:
    """Seconds of processor time for a file's report, and the most memory of the process."""
    run = subprocess.run(
        [sys.executable, "-c", SHOW, str(path)], capture_output=True, text=True, timeout=300, check=True
    )
    seconds, size = run.stdout.splitlines()[-1].split()
    return float(seconds), int(size)


def unpickled_s(path: Path) -> float:
    """Seconds of processor time for unpickling a file, the median of three."""
    took_s = []
    for _ in range(3):
        start_s = time.process_time()
        pickle.loads(path.read_bytes())
        took_s.append(time.process_time() - start_s)
    return median(took_s)


def test_a_file_takes_a_few_unpicklings_and_its_share_of_two_gigabytes(tmp_path: Path) -> None:
    small = written(tmp_path / "small.pickle", content(deep(3)))
    large = written(tmp_path / "large.pickle", content(deep(45_000)))
    (none_s, none_bytes), (took_s, took_bytes) = shown(small), shown(large)
    share = large.stat().st_size / GIGABYTE
    assert share > 0.01
    assert took_s - none_s < UNPICKLINGS * unpickled_s(large)
    assert none_bytes + (took_bytes - none_bytes) / share < BYTES
