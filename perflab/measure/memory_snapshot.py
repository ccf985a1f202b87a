"""Records the allocations of a block to a file, for the ``memory_snapshot`` fixture."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perflab.measure.devices import synchronize
from perflab.measure.memory import CpuAllocations, cpu_allocations
from perflab.torch_internals.machine import (
    cpu_block_events,
    dump_cuda_memory,
    kineto_results,
    mark_cuda_memory,
    record_cuda_memory,
    stop_recording_cuda_memory,
)

if TYPE_CHECKING:
    import torch

    from perflab.measure.workload import Workload

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
            CPU (``content_of``).
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
    with cpu_allocations(with_stack=True) as allocations:
        yield snapshot
    snapshot.peak_bytes = allocations.peak_bytes()
    snapshot.path.write_text(json.dumps(content_of(allocations)), encoding="utf-8")


def content_of(allocations: CpuAllocations) -> dict[str, Any]:
    """A CPU's recording as it is written: schema 2, which has all of schema 1.

    ``events`` are ``[time_ns, bytes]``, negative for a free. ``blocks`` has an entry for each of them, ``[block,
    place]``: the block's address, and where in ``places`` stands who asked for it or let it go.
    """
    content: dict[str, Any] = {
        "schema": 1,
        "device": "cpu",
        "peak_bytes": allocations.peak_bytes(),
        "events": allocations.events,
    }
    seen = cpu_block_events(kineto_results(allocations.profiler))
    if [(one.time_ns, one.size_bytes) for one in seen] != allocations.events:
        return content  # the profiler's two lists differ, so nobody can tell whose block is whose
    places: dict[tuple[Any, ...], int] = {}
    blocks = []
    for one in seen:
        place = one.operator, one.module, one.mark, one.frames
        blocks.append([one.address, places.setdefault(place, len(places))])
    listed = [
        {"operator": operator, "module": module, "phase": phase, "category": "", "frames": frames}
        for operator, module, phase, frames in places
    ]
    return {**content, "schema": 2, "source": "perflab", "blocks": blocks, "places": listed}


def record_call(workload: Workload, path: Path, device: torch.device) -> MemorySnapshot:
    """Record one call, with its phases as stages; ``path`` as in ``record_memory``.

    Raises:
        OSError: the file cannot be written.
    """
    with record_memory(path, device) as snapshot, _stages(workload.spans, device) as next_stage:
        workload.run(next_stage)
    return snapshot


@contextlib.contextmanager
def _stages(names: tuple[str, ...], device: torch.device) -> Iterator[Callable[[], None]]:
    """Marks that the recorder of a device keeps, one after another."""
    import torch

    left = iter(names)
    on_cuda = device.type == "cuda"
    with contextlib.ExitStack() as stack:

        def begin() -> None:
            name = next(left, "")
            stack.close()
            if on_cuda:
                mark_cuda_memory(name)
                if name:
                    stack.callback(mark_cuda_memory, "")
            elif name:
                stack.enter_context(torch.profiler.record_function(name))

        begin()
        yield begin


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
