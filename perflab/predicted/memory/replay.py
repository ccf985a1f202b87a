"""Replays a trace through the model of the caching allocator, to estimate reserved memory and fragmentation.

Reports must label the result as an estimate. The model serves a sequence of requests exactly as the allocator does;
that a real process makes these requests in this order is an assumption. Not modelled: other streams, the pools of CUDA
graphs, work before the first call (drawing the weights), allocations of libraries beside ``workspace_bytes``, and
settings (``PYTORCH_ALLOC_CONF``; ``expandable_segments`` is off by default, as here).

A training loop makes the same call again and again. So the trace is replayed several times: the first round is the
loop's first call, which shapes the cache; the last round finds the cache as every later call does. Reserved memory
never shrinks between rounds.

A trace shows a call that finds gradients and optimizer state from the call before. The first call has neither, so it
takes other blocks at other moments, and the allocator's cache keeps that shape: the gradients that later calls add to
are blocks that the first backward has made, and optimizer state is allocated in the first optimizer step, when most of
the memory of the forward and backward passes is free again."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from perflab.base.grouping import groups_of
from perflab.predicted.memory.caching_allocator import CachingAllocator, Segment
from perflab.predicted.trace.trace import Alloc, Free, Op, Place, Trace
from perflab.results.profile import OPTIMIZER

WORKSPACES = (-1, -2)
"""The numbers of the blocks that stand for library workspaces, one for each thread that computes matrix products."""
ROUNDS = 3
"""The number of calls to replay.

State is allocated in the first call of a loop and exists from the start of the second; the third call finds the cache
that the second has left.
"""


class Entry(NamedTuple):
    """One action of the allocator."""

    action: str
    """``alloc``, ``free`` or ``segment_alloc``."""
    address: int
    size_bytes: int
    """Bytes requested; for a segment, its whole size."""
    event: int
    """The index in the trace's events at which the action happens; -1 before the first event."""
    block: Alloc
    """The block that is allocated or freed; for a segment, the block whose request needs the segment."""


@dataclass(frozen=True)
class Replay:
    """The result of a replay. Bytes are counted as ``torch.cuda.memory_stats`` counts them."""

    peak_allocated_bytes: int
    """``max_memory_allocated`` of the last round: blocks rounded up, with the remainders that are not split off large
    blocks, up to 1 MiB each."""
    peak_reserved_bytes: int
    """``max_memory_reserved``."""
    workspace_bytes: int
    """The bytes of the library workspaces of all threads that compute products."""
    log: tuple[Entry, ...]
    """The allocator's actions in the last round."""
    segments: tuple[Segment, ...]
    """The segments reserved at the end of the last round."""
    alive: Mapping[int, Alloc]
    """The blocks alive at the end of the last round, by address."""


def replay(trace: Trace, workspace_bytes: int = 0) -> Replay:
    """Estimate what PyTorch's allocator reserves for a call that is made again and again.

    The replay first allocates, in order, the blocks of ``trace.held`` that exist before the first call. Between rounds,
    blocks that outlive the call are freed, except blocks that replace held ones which the call freed (new gradients for
    old ones: the same size and kind).

    Args:
        trace: the trace of the call.
        workspace_bytes: bytes that cuBLAS allocates with the first product of each thread and keeps; they count as
            allocated.
    """
    first = first_call(trace)
    player = _Player(trace, workspace_bytes)
    for block in first.held:
        player.alloc(block)
    player.play(first)
    for _ in range(ROUNDS - 1):
        player.settle()
        player.play()
    return Replay(
        peak_allocated_bytes=player.peak,
        peak_reserved_bytes=player.allocator.reserved_bytes,
        workspace_bytes=workspace_bytes * len(first.products),
        log=tuple(player.log),
        segments=player.allocator.segments(),
        alive={address: block for address, block in player.live.values() if block.size_bytes},
    )


class _Player:
    def __init__(self, trace: Trace, workspace_bytes: int) -> None:
        self.trace = trace
        self.workspace_bytes = workspace_bytes
        self.allocator = CachingAllocator(self._segment)
        self.event = -1
        self.asking: Alloc
        self.log: list[Entry] = []
        self.peak = 0
        self.live: dict[int, tuple[int, Alloc]] = {}

    def alloc(self, block: Alloc) -> None:
        self.asking = block
        address = self.allocator.malloc(block.size_bytes)
        self.peak = max(self.peak, self.allocator.allocated_bytes)
        self.live[block.block] = address, block
        if block.size_bytes:
            self.log.append(Entry("alloc", address, block.size_bytes, self.event, block))

    def free(self, number: int) -> None:
        address, block = self.live.pop(number)
        self.allocator.free(address)
        if block.size_bytes:
            self.log.append(Entry("free", address, block.size_bytes, self.event, block))

    def play(self, first: FirstCall | None = None) -> None:
        """Replay the events of a call; of the first one, if ``first`` has its differences from later ones."""
        self.log.clear()
        self.peak = self.allocator.allocated_bytes
        for number, event in enumerate((*self.trace.events, None)):
            self.event = min(number, len(self.trace.events) - 1)
            for block in first.state if first is not None and number == first.state_at else ():
                self.alloc(block)
            if isinstance(event, Alloc):
                self.alloc(event)
            elif isinstance(event, Free):
                if first is not None and (gradient := first.adopted.get(event.block)) is not None:
                    address, _ = self.live.pop(event.block)
                    self.live[gradient.block] = address, gradient
                elif first is None or event.block in self.live:
                    self.free(event.block)
            if first is not None and number in first.products:
                workspace = WORKSPACES[first.products.index(number)]
                self.alloc(Alloc(workspace, self.workspace_bytes, Place(), "workspace"))

    def settle(self) -> None:
        """Bring memory from the end of a call to the start of the next: held blocks exist, all others are freed."""
        self.event = -1
        held = {block.block for block in self.trace.held} | {*WORKSPACES}
        heirs: dict[tuple[int, str], deque[int]] = defaultdict(deque)
        for number, (_, block) in self.live.items():
            if number not in held and number not in self.trace.result_blocks:
                heirs[self._nature(block)].append(number)
        missing = []
        for block in self.trace.held:
            if block.block not in self.live:
                if alike := heirs[self._nature(block)]:
                    self.live[block.block] = self.live.pop(alike.popleft())[0], block
                else:
                    missing.append(block)
        for number in [number for number in self.live if number not in held]:
            self.free(number)
        for block in missing:
            self.alloc(block)

    def _nature(self, block: Alloc) -> tuple[int, str]:
        use = self.trace.uses.get(block.block)
        return block.size_bytes, use.category if use else ""

    def _segment(self, address: int, size: int) -> None:
        self.log.append(Entry("segment_alloc", address, size, self.event, self.asking))


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
    there = [block for block in reversed(gradients) if block.block not in freed]
    waiting = groups_of(there, lambda block: (block.place.module, block.layer, block.size_bytes))
    found: dict[int, Alloc] = {}
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
    """Return the position of the last result of each thread's first product by cuBLAS.

    On CUDA, backward runs in a thread of autograd's. A product's results are allocated before its workspace. An
    operator that is not PyTorch's is taken to multiply in kernels of its own.
    """
    found: dict[bool, int] = {}
    events = trace.events
    for number, event in enumerate(events):
        if not isinstance(event, Op) or not event.name.startswith("aten::") or not event.flops:
            continue
        if not any(word in event.name for word in _NO_CUBLAS):
            thread = event.place.in_backward
            if thread not in found:
                while number + 1 < len(events) and isinstance(events[number + 1], Alloc):
                    number += 1
                found[thread] = number
    return tuple(found.values())
