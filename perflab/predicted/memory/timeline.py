"""Live bytes over a call, in as many stretches as a picture has room for. Pure."""

from __future__ import annotations

from itertools import pairwise

from perflab.predicted.memory.account import Rounding, rounded_as_on_cuda
from perflab.predicted.records import Timeline
from perflab.predicted.trace.trace import Alloc, Op, Trace

STRETCHES = 120


def timeline_of(trace: Trace, rounded: Rounding = rounded_as_on_cuda) -> Timeline:
    """The highest level in each stretch. Stretches have equally many allocations and frees, however long those take."""
    sizes = {one.block: rounded(one.size_bytes) for one in (*trace.held, *trace.events) if isinstance(one, Alloc)}
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
