"""Compares two traces, whatever numbers their blocks have; gives the first difference."""

from __future__ import annotations

from perflab.predicted.trace.trace import Alloc, Event, Free, Layer, Op, Place, Trace


def same(a: Trace, b: Trace) -> str | None:
    """None if both tell the same: event by event, and block by block.

    Blocks are numbered anew in the order in which each trace first names them, so their own numbers do not count.

    Returns:
        The first difference as a sentence, in which "one" is ``a`` and "the other" is ``b``.
    """
    if dict(a.layers) != dict(b.layers):
        return f"one has the layers {dict(a.layers)}, the other {dict(b.layers)}"
    twins: dict[int, int] = {}
    """Of each block of ``a``, the one of ``b``."""
    for what, ours, theirs in (("held block", a.held, b.held), ("event", a.events, b.events)):
        for index, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            difference = _difference(one, other, a, b, twins)
            if difference:
                return f"{what} {index:,}: {difference}"
        if len(ours) != len(theirs):
            shorter = min(len(ours), len(theirs))
            name, longer = ("one", ours) if len(ours) > shorter else ("the other", theirs)
            return f"{what} {shorter:,} is only in {name}: {told(longer[shorter])}"
    lasting = {twins.get(block, block) for block in a.result_blocks}
    if lasting != set(b.result_blocks):
        return (
            f"{len(lasting - b.result_blocks):,} blocks of the result are one's alone, "
            f"{len(b.result_blocks - lasting):,} the other's"
        )
    if a.parameters != b.parameters:
        return f"one has {a.parameters:,} parameters, the other {b.parameters:,}"
    return None


def _difference(one: Event, other: Event, a: Trace, b: Trace, twins: dict[int, int]) -> str | None:
    if isinstance(one, Op) and isinstance(other, Op):
        if one == other:
            return None
    elif isinstance(one, Alloc) and isinstance(other, Alloc):
        twins[one.block] = other.block
        ours, theirs = a.uses.get(one.block), b.uses.get(other.block)
        if _of_block(one) == _of_block(other):
            return None if ours == theirs else f"{told(one)} is for {ours} in one, for {theirs} in the other"
    elif isinstance(one, Free) and isinstance(other, Free) and one.layer == other.layer:
        if twins.get(one.block) == other.block:
            return None
        return f"{told(one)} in both, and not the same block"
    return f"{told(one)} in one, {told(other)} in the other"


def _of_block(made: Alloc) -> tuple[int, Place, str, Layer | None]:
    return made.size_bytes, made.place, made.operator, made.layer


def told(event: Event) -> str:
    """An event in words: ``aten::mm in blocks.*.mlp (backward, blocks 2)``."""
    layer = f"{event.layer.stack} {event.layer.number}" if event.layer else ""
    if isinstance(event, Free):
        return f"a block is freed ({layer or 'of no layer'})"
    where = ", ".join(word for word in (event.place.phase, layer) if word)
    home = f"{event.place.module or 'no module'}{f' ({where})' if where else ''}"
    if isinstance(event, Alloc):
        return f"{event.operator or 'a block'} of {event.size_bytes:,} B in {home}"
    work = f"{event.flops:,} FLOPs, {event.bytes_moved:,} B, {event.dtype}, launches {event.launches}"
    return f"{event.name} in {home}: {work}"
