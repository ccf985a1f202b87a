"""Records the allocations of a block or a call to a file, for ``memory_snapshot`` and ``--perf-snapshots``.

Recorders know sizes and stacks. What a block is for, and the names of modules, the objects say that the code has in its
hands; they are asked at the beginning, at the end, and between phases (``known_blocks``), and the answers are written
into the file: on CUDA behind the end of PyTorch's pickle, where no other reader looks.
"""

from __future__ import annotations

import contextlib
import json
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perflab.measure.cuda_history import cuda_history
from perflab.measure.known_blocks import KnownBlocks, Looks
from perflab.measure.memory import CpuAllocations, cpu_allocations
from perflab.torch_internals.machine import (
    cpu_block_events,
    host_events,
    kineto_results,
    mark_cuda_memory,
)

if TYPE_CHECKING:
    import torch

    from perflab.measure.workload import Workload

_LOOK = "perflab: look "
"""How the ranges begin that say when on a CPU the objects were asked."""


@dataclass
class MemorySnapshot:
    """What a block did with memory. The numbers are there once the block has ended."""

    path: Path
    """The recorded history."""
    peak_bytes: int | None = None
    """Highest rise of live bytes above the level at the block's beginning."""


@contextlib.contextmanager
def record_memory(
    path: Path, device: torch.device, roots: Callable[[], tuple[Any, ...]] = tuple
) -> Iterator[MemorySnapshot]:
    """Record every allocation and free on ``device`` during the block.

    Args:
        path: where to write, without the ending: ``.pickle`` on CUDA (PyTorch's memory snapshot), ``.json`` on a
            CPU (``content_of``).
        device: the device to watch.
        roots: gives what the block has in its hands, by which blocks and modules are known.

    Raises:
        OSError: the file cannot be written.
    """
    with _recording(path, device, roots()) as (snapshot, looks):
        try:
            yield snapshot
        finally:
            looks.look()


def record_call(workload: Workload, path: Path, device: torch.device) -> MemorySnapshot:
    """Record one call, with its phases as stages; ``path`` as in ``record_memory``.

    Raises:
        OSError: the file cannot be written.
    """
    with (
        _recording(path, device, workload.roots) as (snapshot, looks),
        _stages(workload.spans, device, looks.look) as next_stage,
    ):
        result = workload.run(next_stage)
        looks.look_at_result(result)
        del result
    return snapshot


@contextlib.contextmanager
def _recording(path: Path, device: torch.device, roots: tuple[Any, ...]) -> Iterator[tuple[MemorySnapshot, Looks]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    known = KnownBlocks(roots, device)
    if device.type == "cuda":
        snapshot = MemorySnapshot(path.with_name(path.name + ".pickle"))
        with cuda_history(snapshot.path, known, device) as history:
            yield snapshot, history.looks
        snapshot.peak_bytes = history.peak_bytes
        return
    import torch

    def mark(number: int) -> None:
        with torch.profiler.record_function(f"{_LOOK}{number}"):
            pass

    snapshot = MemorySnapshot(path.with_name(path.name + ".json"))
    looks = Looks(known, mark)
    with cpu_allocations(with_stack=True) as allocations:
        yield snapshot, looks
    snapshot.peak_bytes = allocations.peak_bytes()
    snapshot.path.write_text(json.dumps(content_of(allocations, looks)), encoding="utf-8")


def content_of(allocations: CpuAllocations, looks: Looks) -> dict[str, Any]:
    """A CPU's recording as it is written: schema 2, which has all of schema 1.

    ``events`` are ``[time_ns, bytes]``, negative for a free. ``blocks`` has an entry for each of them, ``[block,
    place]``: the block's address, and where in ``places`` stands who asked for it or let it go. ``before`` are
    ``[block, bytes, place]`` of what was held; ``looks`` and ``returned`` are what the objects said before an event
    (``Looks.as_notes``).
    """
    content: dict[str, Any] = {
        "schema": 1,
        "device": "cpu",
        "peak_bytes": allocations.peak_bytes(),
        "events": allocations.events,
    }
    results = kineto_results(allocations.profiler)
    seen = cpu_block_events(results, looks.known.names, _LOOK)
    if [(one.time_ns, one.size_bytes) for one in seen] != allocations.events:
        return content  # the profiler's two lists differ, so nobody can tell whose block is whose
    places: dict[tuple[Any, ...], int] = {}
    blocks = []
    for one in seen:
        place = one.operator, one.module, one.mark, one.frames, ""
        blocks.append([one.address, places.setdefault(place, len(places))])
    before = []
    for address, part in looks.known.held.items():
        place = "", part.module, "", (), part.category
        before.append([address, part.size_bytes, places.setdefault(place, len(places))])
    listed = [
        {"operator": operator, "module": module, "phase": phase, "category": category, "frames": frames}
        for operator, module, phase, frames, category in places
    ]
    times = [one.time_ns for one in seen]
    moments = [bisect_right(times, time_ns) for time_ns in _looked_at(results)]
    return {
        **content,
        "schema": 2,
        "source": "perflab",
        "blocks": blocks,
        "places": listed,
        "before": before,
        **looks.as_notes(moments),
    }


def _looked_at(results: Any) -> list[int]:
    """When each answer had been given, by the profiler's clock."""
    return sorted(event.start_ns() for event in host_events(results) if event.name().startswith(_LOOK))


@contextlib.contextmanager
def _stages(names: tuple[str, ...], device: torch.device, look: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Marks that the recorder of a device keeps, one after another; ``look`` is called when one has ended."""
    import torch

    left = iter(names)
    on_cuda = device.type == "cuda"
    with contextlib.ExitStack() as stack:

        def begin() -> None:
            name = next(left, "")
            if on_cuda:
                mark_cuda_memory(name)
                if name:
                    stack.callback(mark_cuda_memory, "")
            elif name:
                stack.enter_context(torch.profiler.record_function(name))

        def end() -> None:
            stack.close()
            look()
            begin()

        begin()
        yield end
