"""Sums up a trace: peak memory and its composition, live bytes over time, costs of operators, saved tensors. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from perflab.predicted.records import KINDS, Cost, PeakPart, SavedTensors, Timeline
from perflab.predicted.trace.trace import Alloc, Free, Op, Trace

BLOCK_BYTES = 512
"""CUDA's caching allocator gives out multiples of it (``kMinBlockSize``)."""
STRETCHES = 120
"""Of a timeline: as many as a picture has room for."""
Rounding = Callable[[int], int]
Bound = Callable[[Op], float | None]


def rounded_as_on_cuda(size_bytes: int) -> int:
    """What a request takes of the caching allocator: ``round_size()``, but for none, which takes nothing."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


@dataclass(frozen=True)
class Account:
    """What one call needs; fields as in ``Prediction``."""

    peak_bytes: int
    held_bytes: int
    composition: dict[str, int]
    at_peak: list[PeakPart]
    costs: list[Cost]
    saved: list[SavedTensors]
    keeping_output_bytes: int | None
    launches: int


def account_of(trace: Trace, *, rounded: Rounding = rounded_as_on_cuda, roofline_ns: Bound = lambda _: None) -> Account:
    """Sum a trace up.

    Args:
        trace: the call.
        rounded: what a block of so many bytes takes.
        roofline_ns: the roofline time of one operator, None where there is none.
    """
    sizes = _sizes(trace, rounded)
    held_bytes = sum(sizes[alloc.block] for alloc in trace.held)
    peak_bytes, alive = _peak(trace, sizes)
    parts = _parts(trace, sizes, alive)
    composition = {kind: sum(part.size_bytes for part in parts if part.kind == kind) for kind in KINDS}
    kept_bytes = sum(sizes[block] for block in trace.result_blocks)
    return Account(
        peak_bytes=peak_bytes,
        held_bytes=held_bytes,
        composition={kind: size for kind, size in composition.items() if size},
        at_peak=parts,
        costs=_costs(trace, roofline_ns),
        saved=_saved(trace, sizes),
        keeping_output_bytes=peak_bytes + kept_bytes if kept_bytes else None,
        launches=sum(event.launches for event in trace.events if isinstance(event, Op)),
    )


def peak_of(trace: Trace) -> int:
    """The peak alone."""
    return _peak(trace, _sizes(trace))[0]


def timeline_of(trace: Trace) -> Timeline:
    """The highest level in each stretch. Stretches have equally many allocations and frees, however long those take."""
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
    """What each block takes."""
    return {alloc.block: rounded(alloc.size_bytes) for alloc in _allocs(trace)}


def _allocs(trace: Trace) -> Iterable[Alloc]:
    yield from trace.held
    yield from (event for event in trace.events if isinstance(event, Alloc))


def _peak(trace: Trace, sizes: dict[int, int]) -> tuple[int, set[int]]:
    """The highest level, and the blocks that are alive at it."""
    level = peak = sum(sizes[alloc.block] for alloc in trace.held)
    at = 0
    for number, event in enumerate(trace.events, start=1):
        if isinstance(event, Alloc):
            level += sizes[event.block]
            if level > peak:
                peak, at = level, number
        elif isinstance(event, Free):
            level -= sizes[event.block]
    alive = {alloc.block for alloc in trace.held}
    for event in trace.events[:at]:
        if isinstance(event, Alloc):
            alive.add(event.block)
        elif isinstance(event, Free):
            alive.discard(event.block)
    return peak, alive


def _parts(trace: Trace, sizes: dict[int, int], alive: set[int]) -> list[PeakPart]:
    found: dict[tuple[str, str, str], list[tuple[int, str]]] = {}
    for alloc in _allocs(trace):
        if alloc.block in alive:
            key = (trace.uses[alloc.block].kind, alloc.place.module, alloc.operator)
            found.setdefault(key, []).append((sizes[alloc.block], alloc.place.line))
    parts = [
        PeakPart(
            kind=kind,
            module=module,
            operator=operator,
            size_bytes=sum(size for size, _ in blocks),
            blocks=len(blocks),
            line=_where_most(blocks),
        )
        for (kind, module, operator), blocks in found.items()
    ]
    return sorted(parts, key=lambda part: -part.size_bytes)


def _costs(trace: Trace, roofline_ns: Bound) -> list[Cost]:
    found: dict[tuple[str, str, str], list[Op]] = {}
    for event in trace.events:
        if isinstance(event, Op):
            found.setdefault((event.place.phase, event.place.module, event.name), []).append(event)
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
    """Those that are kept when most is: what one micro-batch has saved is gone when the next one saves."""
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
    """The line with the most of it; the first one among equals."""
    by_line: dict[str, int] = {}
    for amount, line in amounts:
        by_line[line] = by_line.get(line, 0) + amount
    return max(by_line, key=lambda line: by_line[line], default="")
