"""What the first call of a loop does otherwise than later ones, told from the trace of a later one. Pure.

A trace is of a call that finds gradients and optimizer state from the call before. The first call has neither, so it
takes other blocks at other moments, and the allocator's cache keeps that shape: gradients that later calls add to are
those that the first backward has made, and optimizer state comes to be in the first step, where most of what the
forward and backward passes took is free again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perflab.predicted.trace.trace import Alloc, Free, Op, Trace
from perflab.profiles.records import OPTIMIZER

_ABSENT = ("gradients", "optimizer state")
_ACCUMULATES = "aten::add_"
"""Autograd adds a gradient to one that is there (``AccumulateGrad``); where none is, it keeps the block."""
_NO_CUBLAS = ("attention", "convolution")


@dataclass(frozen=True)
class FirstCall:
    """Positions are of the trace's events."""

    held: tuple[Alloc, ...]
    """What is there before it."""
    state: tuple[Alloc, ...]
    """Optimizer state."""
    state_at: int
    """Before which event that comes to be; as many as there are events: behind the last."""
    adopted: Mapping[int, Alloc]
    """Blocks that later calls add to a gradient and let go, and the first one keeps as that gradient."""
    products: tuple[int, ...]
    """After which events cuBLAS asks for its workspace: that of the forward thread, that of autograd's."""


def first_call(trace: Trace) -> FirstCall:
    """Tell it from a later one."""
    kinds = {block.block: trace.uses[block.block].kind if block.block in trace.uses else "" for block in trace.held}
    state = tuple(block for block in trace.held if kinds[block.block] == "optimizer state")
    return FirstCall(
        held=tuple(block for block in trace.held if kinds[block.block] not in _ABSENT),
        state=state,
        state_at=_optimizer_begins(trace) if state else len(trace.events),
        adopted=_adopted(trace, [block for block in trace.held if kinds[block.block] == "gradients"]),
        products=_first_products(trace),
    )


def _optimizer_begins(trace: Trace) -> int:
    """Where the phase does; without such a phase, where the last backward ends."""
    behind_backward = 0
    for number, event in enumerate(trace.events):
        if isinstance(event, Op):
            if event.place.phase == OPTIMIZER:
                return number
            if event.place.in_backward:
                behind_backward = number + 1
    return behind_backward


def _adopted(trace: Trace, gradients: list[Alloc]) -> dict[int, Alloc]:
    freed = {event.block for event in trace.events if isinstance(event, Free)}
    waiting: dict[tuple[object, ...], list[Alloc]] = {}
    for block in reversed([block for block in gradients if block.block not in freed]):
        waiting.setdefault((block.place.module, block.layer, block.size_bytes), []).append(block)
    found: dict[int, Alloc] = {}
    if not waiting:
        return found
    sizes: dict[int, int] = {}
    added: Op | None = None
    for event in trace.events:
        if isinstance(event, Alloc):
            sizes[event.block] = event.size_bytes
        elif isinstance(event, Op):
            added = event if event.name == _ACCUMULATES and event.place.in_backward else None
        elif added is not None and event.block in sizes:
            of_it = waiting.get((added.place.module, added.layer, sizes[event.block]))
            if of_it:
                found[event.block] = of_it.pop()
                added = None
    return found


def _first_products(trace: Trace) -> tuple[int, ...]:
    """Behind the results of the first product of each thread: they are asked for before the workspace is."""
    found: dict[bool, int] = {}
    events = trace.events
    for number, event in enumerate(events):
        if isinstance(event, Op) and event.flops and not any(word in event.name for word in _NO_CUBLAS):
            thread = event.place.in_backward
            if thread not in found:
                while number + 1 < len(events) and isinstance(events[number + 1], Alloc):
                    number += 1
                found[thread] = number
    return tuple(found.values())
