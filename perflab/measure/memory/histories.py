"""Records the history of memory during a block of code: the CPU's with PyTorch's profiler, CUDA's with its recorder.

The CPU's file is JSON. The profiler may not report the free of a memory block that is older than the recording. Such a
block is written down if it survives to the end or its free was reported, and left out otherwise.

CUDA's file is PyTorch's, with perflab's notes appended: what lay at an address and which module ran, and when. A moment
is the number of allocations and frees so far, which the allocator counts, so no clocks are compared.
"""

from __future__ import annotations

import contextlib
import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perflab.base.event_lines import as_lines
from perflab.base.files import write_whole
from perflab.internals.of_torch.machine import (
    CpuBlockEvent,
    cpu_block_events,
    dump_cuda_memory,
    event_name,
    host_events,
    kineto_results,
    record_cuda_memory,
    stop_recording_cuda_memory,
)
from perflab.measure.machine.devices import synchronize
from perflab.measure.memory.known_blocks import History, KnownBlocks, Looks
from perflab.measure.memory.peak import CpuAllocations, cpu_allocations

if TYPE_CHECKING:
    import torch
    from torch import nn

    from perflab.results.peak import PeakPart

_OURS = "perflab: "
"""Prefix of the names of perflab's own ranges, which are no marks of the user's."""
_LOOK = f"{_OURS}look "
"""Prefix of the names of the ranges that mark when the objects were asked."""
MAX_EVENTS = 1_000_000
"""Number of allocations and frees that the recorder keeps; a training step of the largest lab model makes fewer."""
NOTES = b"\nperflab notes 1\n"
"""Separator between PyTorch's pickle, whose readers stop at its end, and our notes (``perflab.snapshots.notes``)."""


@contextlib.contextmanager
def cpu_history(
    path: Path, roots: Callable[[], tuple[Any, ...]], device: torch.device, before: Callable[[], object] | None = None
) -> Iterator[History]:
    """Record the CPU's memory during the block of code, and write the history to ``path`` at the end.

    Args:
        path: the file.
        roots: returns the objects that the code holds.
        device: the CPU.
        before: called under the profiler before the recording, so that the profiler knows the memory that the code
            frees.

    Raises:
        OSError: the file cannot be written.
    """
    known = KnownBlocks(roots(), device)  # while the profiler notes each call of Python's, this takes seconds
    with cpu_allocations(with_stack=True) as allocations:
        if before is not None:
            before()
            known.ask_again()
        history = History(Looks(known, _mark))
        with allocations.span():
            yield history
    history.peak_bytes = allocations.peak_bytes()
    at_the_end = KnownBlocks(roots(), device)
    history.looks.look_anew(at_the_end)
    head, events = _content(allocations, history.looks, at_the_end.held)
    write_whole(path, b"".join(as_lines(head, events)))


def _mark(number: int) -> None:
    import torch

    with torch.profiler.record_function(f"{_LOOK}{number}"):
        pass


def _content(
    allocations: CpuAllocations, looks: Looks, left: Mapping[int, PeakPart]
) -> tuple[dict[str, Any], list[Any]]:
    """Return the file's header and events, in schema 3, or in schema 1 if the profiler's two lists of events differ.

    In schema 3 an event is ``[time_ns, bytes, block, place]``: bytes are negative for a free, ``block`` is the block's
    address, and ``place`` is the index in ``places`` of the code that requested or freed the block. ``before`` lists
    ``[block, bytes, place]`` of the blocks held at the beginning. ``looks`` and ``returned`` are the answers of the
    objects before an event (``Looks.as_notes``). ``let_go_unseen_bytes`` counts held bytes that were freed at an
    unknown time. In schema 1 an event is ``[time_ns, bytes]``, and the header has none of these fields.
    """
    begin_ns = allocations.begin_ns or 0
    events = [(time_ns, size) for time_ns, size in allocations.events if time_ns >= begin_ns]
    head = {"schema": 1, "device": "cpu", "peak_bytes": allocations.peak_bytes()}
    results = kineto_results(allocations.profiler)
    seen = [one for one in cpu_block_events(results, looks.known.names, _OURS) if one.time_ns >= begin_ns]
    if [(one.time_ns, one.size_bytes) for one in seen] != events:
        return head, events  # the profiler's two lists differ, so nobody can tell whose block is whose
    places: dict[tuple[Any, ...], int] = {}
    placed = []
    for one in seen:
        place = one.operator, one.module, one.mark, one.frames, ""
        placed.append((one.time_ns, one.size_bytes, one.address, places.setdefault(place, len(places))))
    held, unseen_bytes = _before(looks.known.held, seen, left)
    before = []
    for address, part in held.items():
        place = "", part.module, "", (), part.category
        before.append([address, part.size_bytes, places.setdefault(place, len(places))])
    listed = [
        {"operator": operator, "module": module, "phase": phase, "category": category, "frames": frames}
        for operator, module, phase, frames, category in places
    ]
    times = [one.time_ns for one in seen]
    moments = [*(bisect_right(times, time_ns) for time_ns in _looked_at(results)), len(times)]
    head |= {
        "schema": 3,
        "source": "perflab",
        "let_go_unseen_bytes": unseen_bytes,
        "places": listed,
        "before": before,
        **looks.as_notes(moments),
    }
    return head, placed


def _before(
    held: Mapping[int, PeakPart], seen: list[CpuBlockEvent], left: Mapping[int, PeakPart]
) -> tuple[dict[int, PeakPart], int]:
    """Return the blocks that existed before, by address: blocks without events that still exist, and freed blocks.

    The second value is the bytes of held blocks whose free was not reported.
    """
    first: dict[int, int] = {}
    for one in seen:
        first.setdefault(one.address, one.size_bytes)
    stays = {address: part for address, part in left.items() if address not in first}
    goes = {address: part for address, part in held.items() if first.get(address, 0) < 0}
    unseen = (part.size_bytes for address, part in held.items() if address not in stays and address not in goes)
    return {**stays, **goes}, sum(unseen)


def _looked_at(results: Any) -> list[int]:
    """Return the times at which the objects' answers had been given, in nanoseconds of the profiler's clock, sorted."""
    return sorted(event.start_ns() for event in host_events(results) if event_name(event).startswith(_LOOK))


@contextlib.contextmanager
def cuda_history(path: Path, roots: Callable[[], tuple[Any, ...]], device: torch.device) -> Iterator[History]:
    """Record CUDA memory during the block of code, and write the history to ``path`` at the end.

    Args:
        path: the file.
        roots: returns the objects that the code holds.
        device: the GPU.

    Raises:
        OSError: the file cannot be written.
    """
    import torch

    known = KnownBlocks(roots(), device)
    synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    start_bytes = torch.cuda.memory_allocated(device)
    record_cuda_memory(MAX_EVENTS, device)
    begin = _events_so_far(device)

    def so_far() -> int:
        return _events_so_far(device) - begin

    moments = [0]
    modules: list[tuple[int, str]] = []
    history = History(Looks(known, lambda _: moments.append(so_far()), [known.held]))
    try:
        with _modules_noted(known, lambda name: modules.append((so_far(), name))):
            yield history
        synchronize(device)
        history.looks.look_anew(KnownBlocks(roots(), device))
        moments.append(so_far())
        history.peak_bytes = torch.cuda.max_memory_allocated(device) - start_bytes
        events = so_far()
        dump_cuda_memory(str(path))
    finally:
        stop_recording_cuda_memory(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    notes = {"device": index, "events": events, "modules": modules, **history.looks.as_notes(moments)}
    with path.open("ab") as file:
        file.write(NOTES + json.dumps(notes).encode("ascii"))


def _events_so_far(device: torch.device) -> int:
    """Return how many blocks the allocator has given out and taken back: the number of events of its recorder."""
    import torch

    stats = torch.cuda.memory_stats_as_nested_dict(device)  # flat ones take ten times as long
    return int(stats["allocation"]["all"]["allocated"] + stats["active"]["all"]["freed"])


@contextlib.contextmanager
def _modules_noted(known: KnownBlocks, note: Callable[[str], None]) -> Iterator[None]:
    """Call ``note`` with the name of the innermost running module whenever it changes; empty if none runs.

    Compiled code is not observed, because hooks on modules would make it compile again.
    """
    from torch import nn

    if known.is_compiled:
        yield
        return
    running: list[tuple[nn.Module, str]] = []

    def enter(module: nn.Module, _: Any) -> None:
        running.append((module, known.names.get(id(module)) or type(module).__name__))
        note(running[-1][1])

    def leave(module: nn.Module, _args: Any, _result: Any) -> None:
        while running and running.pop()[0] is not module:
            pass  # modules within this one that an error has left come first
        note(running[-1][1] if running else "")

    hooks = (
        nn.modules.module.register_module_forward_pre_hook(enter),
        nn.modules.module.register_module_forward_hook(leave, always_call=True),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
