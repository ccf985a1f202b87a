"""Compares two traces, ignoring how their blocks are numbered."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from perflab.predicted.trace.trace import Alloc, Free, Trace


def same(a: Trace, b: Trace) -> bool:
    """Whether two traces are equal event by event and block by block, except for the blocks' numbers."""
    if (dict(a.layers), a.parameters) != (dict(b.layers), b.parameters):
        return False
    return all(one == other for one, other in zip_longest(_told(a), _told(b)))


def _told(trace: Trace) -> Iterator[object]:
    """Yield a trace's contents in order, with blocks renumbered in order of allocation."""
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
