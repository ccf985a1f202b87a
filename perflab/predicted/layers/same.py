"""Compares two traces, whatever numbers their blocks have."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from perflab.predicted.trace.trace import Alloc, Free, Trace


def same(a: Trace, b: Trace) -> bool:
    """Whether both tell the same: event by event, and block by block."""
    if (dict(a.layers), a.parameters) != (dict(b.layers), b.parameters):
        return False
    return all(one == other for one, other in zip_longest(_told(a), _told(b)))


def _told(trace: Trace) -> Iterator[object]:
    """What a trace tells, in order. Blocks are numbered anew as they come, so their own numbers do not count."""
    numbers: dict[int, int] = {}
    for event in (*trace.held, "the call", *trace.events):
        if isinstance(event, Alloc):
            numbers[event.block] = len(numbers)
            yield event.size_bytes, event.place, event.operator, event.layer, trace.uses.get(event.block)
        elif isinstance(event, Free):
            yield numbers.get(event.block), event.layer
        else:
            yield event
    yield {numbers[block] for block in trace.result_blocks}
