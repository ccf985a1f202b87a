"""Derives how the first call of a loop differs from later calls, from the trace of a later call. Pure.

A trace shows a call that finds gradients and optimizer state from the call before. The first call has neither, so it
takes other blocks at other moments, and the allocator's cache keeps that shape: the gradients that later calls add to
are blocks that the first backward has made, and optimizer state is allocated in the first optimizer step, when most of
the memory of the forward and backward passes is free again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perflab.predicted.trace.trace import Alloc, Free, Op, Trace
from perflab.results.profile import OPTIMIZER

_ABSENT = ("gradients", "optimizer state")
_ACCUMULATES = "aten::add_"
"""The operator that adds to an existing gradient (``AccumulateGrad``); without one, autograd keeps the new block."""
_NO_CUBLAS = ("attention", "convolution")


@dataclass(frozen=True)
class FirstCall:
    """The differences of the first call. Positions are indices into the trace's events."""

    held: tuple[Alloc, ...]
    """The blocks that exist before the first call."""
    state: tuple[Alloc, ...]
    """The blocks of optimizer state."""
    state_at: int
    """The position of the event before which the state is allocated; the number of events: after the last."""
    adopted: Mapping[int, Alloc]
    """The gradients by block number: later calls add the block to the gradient and free the block; the first call keeps
    the block as the gradient."""
    products: tuple[int, ...]
    """The positions of the events after which the forward thread and autograd's thread request a cuBLAS workspace."""


def first_call(trace: Trace) -> FirstCall:
    """Derive the first call from the trace of a later call."""
    kinds = {block.block: trace.uses[block.block].category if block.block in trace.uses else "" for block in trace.held}
    state = tuple(block for block in trace.held if kinds[block.block] == "optimizer state")
    return FirstCall(
        held=tuple(block for block in trace.held if kinds[block.block] not in _ABSENT),
        state=state,
        state_at=_optimizer_begins(trace) if state else len(trace.events),
        adopted=_adopted(trace, [block for block in trace.held if kinds[block.block] == "gradients"]),
        products=_first_products(trace),
    )


def _optimizer_begins(trace: Trace) -> int:
    """Return the position where the optimizer phase begins; without such a phase, where the last backward ends."""
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
    """Return the position of the last result of each thread's first product.

    A product's results are allocated before its workspace.
    """
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
