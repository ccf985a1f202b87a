"""What PyTorch's profiler sees of a CPU's memory for the length of a block, as JSON with notes of ours.

The profiler reports no free of a block that was there before it, so such a block is written down where it stays to the
end, and left out where it does not.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perflab.event_lines import as_lines
from perflab.files import write_whole
from perflab.measure.known_blocks import History, KnownBlocks, Looks
from perflab.measure.memory import CpuAllocations, cpu_allocations
from perflab.torch_internals.machine import (
    CpuBlockEvent,
    cpu_block_events,
    event_name,
    host_events,
    kineto_results,
)

if TYPE_CHECKING:
    import torch

    from perflab.profiles.records import PeakPart

_OURS = "perflab: "
"""How ranges begin that are no marks of the user's."""
_LOOK = f"{_OURS}look "
"""How those begin that say when the objects were asked."""


@contextlib.contextmanager
def cpu_history(
    path: Path, roots: Callable[[], tuple[Any, ...]], device: torch.device, before: Callable[[], object] | None = None
) -> Iterator[History]:
    """Record, and write to ``path`` at the end.

    Args:
        path: the file.
        roots: gives what the block has in its hands.
        device: the CPU.
        before: is called under the profiler and not recorded, so that it knows the blocks that the block lets go.

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
    """Schema 3: what stands before the events, and these.

    Events are ``[time_ns, bytes, block, place]``, bytes negative for a free: the block's address, and where in
    ``places`` stands who asked for it or let it go. ``before`` are ``[block, bytes, place]`` of what was held;
    ``looks`` and ``returned`` are what the objects said before an event (``Looks.as_notes``). ``let_go_unseen_bytes``
    were held, and nobody knows when they were let go. Schema 1, without all this, has ``[time_ns, bytes]``.
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
    """What was there before, by address: what nothing happened to and is still there, and what was seen to go.

    With it the bytes of what was held and went without being seen.
    """
    first: dict[int, int] = {}
    for one in seen:
        first.setdefault(one.address, one.size_bytes)
    stays = {address: part for address, part in left.items() if address not in first}
    goes = {address: part for address, part in held.items() if first.get(address, 0) < 0}
    unseen = (part.size_bytes for address, part in held.items() if address not in stays and address not in goes)
    return {**stays, **goes}, sum(unseen)


def _looked_at(results: Any) -> list[int]:
    """When each answer had been given, by the profiler's clock."""
    return sorted(event.start_ns() for event in host_events(results) if event_name(event).startswith(_LOOK))
