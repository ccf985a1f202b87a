"""Small snapshots in PyTorch's form, made event by event; the keys that each version writes."""

from __future__ import annotations

import itertools
import pickle
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perflab.snapshots.events import Events
from perflab.snapshots.model import Snapshot
from perflab.snapshots.reading import read_snapshots
from perflab.snapshots.unpickling import Unpickling

MIB = 2**20
ADDRESS = 0x7F0000000000
MODEL = ("/home/me/project/model.py", 190, "forward")
OPTIMIZER = ("/usr/lib/python3/site-packages/torch/optim/adam.py", 182, "_init_group")
ENGINE = ("/usr/lib/python3/site-packages/torch/autograd/graph.py", 979, "_engine_run_backward")
TRAIN = ("/home/me/project/train.py", 12, "main")


class Recording:
    """Events of one device. A block is known by its address; sizes are in bytes."""

    def __init__(self, *, frames: bool = True, marks: bool = True, category: bool = False) -> None:
        self.events: list[dict[str, Any]] = []
        self.frames, self.marks, self.category = frames, marks, category
        self.mark = ""
        self.clock = itertools.count(1_700_000_000_000_000, 7)
        self.calls: dict[tuple[str, int, str], dict[str, Any]] = {}

    def stack(self, *calls: tuple[str, int, str]) -> list[dict[str, Any]]:
        """Frames are shared among stacks, as PyTorch shares them."""
        return [
            self.calls.setdefault(call, {"filename": call[0], "line": call[1], "name": call[2]})
            for call in calls
            if self.frames
        ]

    def add(self, action: str, address: int, size: int, *calls: tuple[str, int, str], **more: Any) -> Recording:
        event = {"action": action, "addr": ADDRESS + address, "size": size, "stream": 0, "time_us": next(self.clock)}
        if self.frames:
            event["frames"] = self.stack(*calls)
        if self.marks:  # as C++ makes them: a text of its own for each event
            event |= {"user_metadata": "".join(list(self.mark)), "pool_id": tuple([0, 0])}
        self.events.append(event | more)
        return self

    def alloc(self, address: int, size: int, *calls: tuple[str, int, str]) -> Recording:
        return self.add("alloc", address, size, *calls)

    def free(self, address: int, size: int, *calls: tuple[str, int, str]) -> Recording:
        return self.add("free_requested", address, size, *calls).add("free_completed", address, size, *calls)


def block(size: int, state: str = "active_allocated", asked: int | None = None, **more: Any) -> dict[str, Any]:
    return {"size": size, "requested_size": size if asked is None else asked, "state": state, **more}


def segment(blocks: Sequence[dict[str, Any]], address: int = 0, device: int = 0, **more: Any) -> dict[str, Any]:
    start, placed = ADDRESS + address, []
    for one in blocks:
        placed.append({"address": start, **one})
        start += one["size"]
    return {
        "device": device,
        "address": ADDRESS + address,
        "total_size": sum(one["size"] for one in blocks),
        "stream": 0,
        "segment_type": "large",
        "blocks": placed,
        **more,
    }


def training(steps: int = 2, **keys: bool) -> Recording:
    """Forward, backward, optimizer: 4 MiB that backward takes back, a gradient that goes, a state that stays."""
    made = Recording(**keys)
    for step in range(steps):
        made.mark = "forward"
        made.alloc(0, 4 * MIB + 100, MODEL, TRAIN).alloc(16 * MIB, 4 * MIB + 100, MODEL, TRAIN)
        made.mark = "backward"
        made.alloc(32 * MIB, 2 * MIB, ENGINE, TRAIN)
        made.free(0, 4 * MIB + 100, ENGINE, TRAIN).free(16 * MIB, 4 * MIB + 100, ENGINE, TRAIN)
        made.mark = "optimizer"
        if not step:
            made.add("segment_alloc", 64 * MIB, 20 * MIB, OPTIMIZER, TRAIN).alloc(64 * MIB, 2 * MIB, OPTIMIZER, TRAIN)
        made.free(32 * MIB, 2 * MIB, TRAIN)
    return made


def of_few_kinds(seed: int, events: int, sizes: int = 5) -> Recording:
    """Thirty lines give blocks of a few sizes, and let go what they like."""
    lines = [("/home/me/project/model.py", line, "forward") for line in range(100, 130)]
    chance, made, live = random.Random(seed), Recording(), dict[int, int]()
    for number in range(events):
        made.mark = ("", "forward", "backward", "optimizer")[number * 8 // events % 4]
        if live and chance.random() < 0.47:
            address = chance.choice(list(live)) if events < 10_000 else next(iter(live))
            made.free(address, live.pop(address), TRAIN)
        else:
            address, size = (
                (number + 1) * 64 * MIB,
                chance.randrange(1, sizes + 1) * MIB // 4 + 512 * chance.randrange(2),
            )
            live[address] = size
            made.alloc(address, size, chance.choice(lines), TRAIN)
    return made


def content(*recordings: Recording, segments: Sequence[dict[str, Any]] = (), **more: Any) -> dict[str, Any]:
    return {"segments": list(segments), "device_traces": [one.events for one in recordings], **more}


def written(path: Path, made: dict[str, Any], protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(made, protocol=protocol))
    return path


def ended(path: Path, *, seconds: int = 60, most_bytes: int = 3 << 30) -> str:
    """What reading a folder's files says, in a process that has so many seconds and bytes of memory."""
    code = (
        "import resource, sys\nfrom pathlib import Path\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({most_bytes}, {most_bytes}))\n"
        "from perflab.base.errors import SnapshotError\nfrom perflab.snapshots.reading import read_snapshots\n"
        "for path in sorted(Path(sys.argv[1]).iterdir()):\n"
        "    try:\n        read_snapshots(path)\n        print(path.name, 'was read')\n"
        "    except SnapshotError as error:\n        print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=seconds)
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


def unpickled(path: Path, events: Events | None = None) -> tuple[Events, Unpickling]:
    """The events of a pickle, and the interpreter that has read it."""
    events = events or Events()
    with path.open("rb") as file:
        machine = Unpickling(file, path.stat().st_size, events)
        machine.load()
    return events, machine


def read(path: Path) -> Snapshot:
    """The one device of a file."""
    (found,) = read_snapshots(path)
    return found
