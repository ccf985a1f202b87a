"""Records the allocations of a block to a file, for the ``memory_snapshot`` fixture."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perflab.measure.devices import synchronize
from perflab.measure.memory import cpu_allocations
from perflab.torch_internals.machine import dump_cuda_memory, record_cuda_memory, stop_recording_cuda_memory

if TYPE_CHECKING:
    import torch

MAX_EVENTS = 1_000_000
"""How many allocations and frees CUDA's recorder keeps; a training step of the largest lab model makes fewer."""


@dataclass
class MemorySnapshot:
    """What a block did with memory. The numbers are there once the block has ended."""

    path: Path
    """The recorded history."""
    peak_bytes: int | None = None
    """Highest rise of live bytes above the level at the block's beginning."""


@contextlib.contextmanager
def record_memory(path: Path, device: torch.device) -> Iterator[MemorySnapshot]:
    """Record every allocation and free on ``device`` during the block.

    Args:
        path: where to write, without the ending: ``.pickle`` on CUDA (PyTorch's memory snapshot), ``.json`` on a
            CPU (``events``: a list of ``[time_ns, bytes]``, negative for a free).
        device: the device to watch.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if device.type == "cuda":
        snapshot = MemorySnapshot(path.with_name(path.name + ".pickle"))
        with _cuda_history(snapshot, device):
            yield snapshot
        return
    snapshot = MemorySnapshot(path.with_name(path.name + ".json"))
    with cpu_allocations() as allocations:
        yield snapshot
    snapshot.peak_bytes = allocations.peak_bytes()
    history = {"schema": 1, "device": "cpu", "peak_bytes": snapshot.peak_bytes, "events": allocations.events}
    snapshot.path.write_text(json.dumps(history), encoding="utf-8")


@contextlib.contextmanager
def _cuda_history(snapshot: MemorySnapshot, device: torch.device) -> Iterator[None]:
    import torch

    synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    start = torch.cuda.memory_allocated(device)
    record_cuda_memory(MAX_EVENTS, device)
    try:
        yield
        synchronize(device)
        snapshot.peak_bytes = torch.cuda.max_memory_allocated(device) - start
        dump_cuda_memory(str(snapshot.path))
    finally:
        stop_recording_cuda_memory(device)
