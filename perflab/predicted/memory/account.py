"""Sums up a trace: peak memory and its composition, live bytes over time, costs of operators, saved tensors. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise

from perflab.base.grouping import groups_of
from perflab.predicted.trace.trace import Alloc, Free, Op, Trace
from perflab.results.peak import CATEGORIES, PeakPart
from perflab.results.predicted import Cost, SavedTensors, Timeline

BLOCK_BYTES = 512
"""The unit of block sizes: CUDA's caching allocator gives out multiples of it (``kMinBlockSize``)."""
STRETCHES = 120
"""The number of stretches in a timeline: as many as a picture has room for."""
Rounding = Callable[[int], int]
Bound = Callable[[Op], float | None]


def rounded_as_on_cuda(size_bytes: int) -> int:
    """Return the bytes that the caching allocator takes for a request: ``round_size()``, but 0 for a request of 0."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


@dataclass(frozen=True)
class Account:
    """The memory and work of one call; fields as in ``Prediction``."""

    peak_bytes: int
    held_bytes: int
    composition: dict[str, int]
    at_peak: list[PeakPart]
    costs: list[Cost]
    saved: list[SavedTensors]
    keeping_output_bytes: int | None
    launches: int


def account_of(trace: Trace, *, rounded: Rounding = rounded_as_on_cuda, roofline_ns: Bound = lambda _: None) -> Account:
    """Sum a trace up: peak memory, composition, costs of operators, saved tensors and launches.

    Args:
        trace: the trace of the call.
        rounded: the bytes that a block takes, from the bytes requested.
        roofline_ns: the roofline time of one operator in nanoseconds; None if there is none.
    """
    sizes = _sizes(trace, rounded)
    held_bytes = sum(sizes[alloc.block] for alloc in trace.held)
    peak_bytes, alive = _peak(trace, sizes)
    parts = _parts(trace, sizes, alive)
    composition = {one: sum(part.size_bytes for part in parts if part.category == one) for one in CATEGORIES}
    kept_bytes = sum(sizes[block] for block in trace.result_blocks)
    return Account(
        peak_bytes=peak_bytes,
        held_bytes=held_bytes,
        composition={name: size for name, size in composition.items() if size},
        at_peak=parts,
        costs=_costs(trace, roofline_ns),
        saved=_saved(trace, sizes),
        keeping_output_bytes=peak_bytes + kept_bytes if kept_bytes else None,
        launches=sum(event.launches for event in trace.events if isinstance(event, Op)),
    )


def timeline_of(trace: Trace) -> Timeline:
    """Return the highest level of live bytes in each stretch of a trace.

    Stretches have equally many allocations and frees, however long a stretch takes.
    """
    sizes = _sizes(trace)
    level = sum(sizes[one.block] for one in trace.held)
    levels, begins = [level], dict[str, int]()
    for event in trace.events:
        if isinstance(event, Alloc | Op) and event.place.phase:
            begins.setdefault(event.place.phase, len(levels))
        if isinstance(event, Op):
            continue
        level += sizes[event.block] if isinstance(event, Alloc) else -sizes[event.block]
        levels.append(level)
    many = min(STRETCHES, len(levels))
    edges = [len(levels) * number // many for number in range(many + 1)]
    highest = [max(levels[start:end]) for start, end in pairwise(edges)]
    phases = {name: min(sum(edge <= at for edge in edges) - 1, many - 1) for name, at in begins.items()}
    return Timeline(highest_bytes=highest, phases=phases)


def _sizes(trace: Trace, rounded: Rounding = rounded_as_on_cuda) -> dict[int, int]:
    """Return the bytes that each block takes, by block number."""
    return {alloc.block: rounded(alloc.size_bytes) for alloc in _allocs(trace)}


def _allocs(trace: Trace) -> Iterable[Alloc]:
    yield from trace.held
    yield from (event for event in trace.events if isinstance(event, Alloc))


def _peak(trace: Trace, sizes: dict[int, int]) -> tuple[int, set[int]]:
    """Return the highest level of live bytes, and the numbers of the blocks alive at that moment."""
    held = {alloc.block for alloc in trace.held}
    changes = (
        sizes[event.block] if isinstance(event, Alloc) else -sizes[event.block] if isinstance(event, Free) else 0
        for event in trace.events
    )
    levels = list(accumulate(changes, initial=sum(map(sizes.__getitem__, held))))
    peak = max(levels)
    before = trace.events[: levels.index(peak)]
    alive = held | {event.block for event in before if isinstance(event, Alloc)}
    return peak, alive - {event.block for event in before if isinstance(event, Free)}


def _parts(trace: Trace, sizes: dict[int, int], alive: set[int]) -> list[PeakPart]:
    found = groups_of(
        (alloc for alloc in _allocs(trace) if alloc.block in alive),
        lambda alloc: (trace.uses[alloc.block].category, alloc.place.module, alloc.operator),
    )
    parts = [
        PeakPart(
            category=category,
            module=module,
            operator=operator,
            size_bytes=sum(sizes[one.block] for one in blocks),
            blocks=len(blocks),
            line=_where_most((sizes[one.block], one.place.line) for one in blocks),
        )
        for (category, module, operator), blocks in found.items()
    ]
    return sorted(parts, key=lambda part: -part.size_bytes)


def _costs(trace: Trace, roofline_ns: Bound) -> list[Cost]:
    done = (event for event in trace.events if isinstance(event, Op))
    found = groups_of(done, lambda op: (op.place.phase, op.place.module, op.name))
    return [
        Cost(
            phase=phase,
            module=module,
            operator=operator,
            calls=len(ops),
            flops=sum(op.flops for op in ops),
            bytes_moved=sum(op.bytes_moved for op in ops),
            roofline_ns=round(sum(roofline_ns(op) or 0.0 for op in ops), 3),
            line=_where_most([(op.bytes_moved, op.place.line) for op in ops]),
        )
        for (phase, module, operator), ops in found.items()
    ]


def _saved(trace: Trace, sizes: dict[int, int]) -> list[SavedTensors]:
    """Return the tensors saved for backward at the moment when their bytes are highest, the largest first.

    The tensors that one micro-batch has saved are gone when the next micro-batch saves.
    """
    kept = {block: size if trace.uses[block].saved is not None else 0 for block, size in sizes.items()}
    _, alive = _peak(trace, kept)
    found: dict[tuple[str, str, str, tuple[int, ...], str], list[int]] = {}
    for alloc in _allocs(trace):
        saved = trace.uses[alloc.block].saved
        if saved is not None and alloc.block in alive:
            key = (saved.place.module, saved.place.line, alloc.operator, saved.shape, saved.dtype)
            found.setdefault(key, []).append(sizes[alloc.block])
    rows = [
        SavedTensors(
            module=module,
            line=line,
            operator=operator,
            shape=list(shape),
            dtype=dtype,
            count=len(blocks),
            size_bytes=sum(blocks),
        )
        for (module, line, operator, shape, dtype), blocks in found.items()
    ]
    return sorted(rows, key=lambda row: -row.size_bytes)


def _where_most(amounts: Iterable[tuple[int, str]]) -> str:
    """Return the line with the largest amount; the first one among equals."""
    by_line: dict[str, int] = {}
    for amount, line in amounts:
        by_line[line] = by_line.get(line, 0) + amount
    return max(by_line, key=lambda line: by_line[line], default="")
