"""Replays a trace through the model of the caching allocator: what it reserves, and where it fragments.

An estimate, and it is to be called one. What is exact is what the allocator does with a sequence of requests; that the
requests are these, and in this order, is the assumption. Left out: other streams, CUDA graphs' pools, what runs before
the first call (drawing the weights), what libraries allocate beside ``workspace_bytes``, and settings
(``PYTORCH_ALLOC_CONF``; ``expandable_segments`` is off by default, as here).

A training loop makes the same call again and again. So the trace is replayed several times: the first round is the
loop's first call (``first_call``), which shapes the cache, the last one finds it as every later one does. What is
reserved never shrinks between them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from perflab.predicted.memory.caching_allocator import CachingAllocator, CardFullError, Segment
from perflab.predicted.memory.first_call import FirstCall, first_call
from perflab.predicted.trace.trace import Alloc, Free, Place, Trace

WORKSPACE, WORKSPACE_OF_BACKWARD = WORKSPACES = (-1, -2)
"""The blocks that stand for what libraries hold, of each thread that multiplies."""
ROUNDS = 3
"""In the first call of a loop state comes to be, in the second all of it is there, the third finds that one's cache."""


class Entry(NamedTuple):
    """One thing that the allocator did."""

    action: str
    """``alloc``, ``free``, ``segment_alloc``, ``segment_free`` or ``oom``."""
    address: int
    """0 of an ``oom``."""
    size_bytes: int
    """As it was asked for; of a segment all of it."""
    event: int
    """Where in the trace's events; -1 before them."""
    block: Alloc | None
    """For whom; None where segments are given back."""


@dataclass(frozen=True)
class Replay:
    """What became of it. Bytes as ``torch.cuda.memory_stats`` counts them."""

    peak_allocated_bytes: int
    """``max_memory_allocated`` of the last round: blocks rounded up, and what is not cut off of large ones, up to 1 MiB
    of each."""
    peak_reserved_bytes: int
    """``max_memory_reserved``."""
    reserved_at_peak_bytes: int
    """Reserved when the most was allocated in the last round, the first time."""
    addresses: Mapping[int, int]
    """Where each block was in the last round."""
    out_of_memory: Alloc | None
    """What no room was found for; ``block`` is one of ``WORKSPACES`` if it was that. None: all found room."""
    round: int
    """The last round: ``ROUNDS``, or in which it ran out of memory; 0 before the call."""
    log: tuple[Entry, ...]
    """What happened in that round."""
    segments: tuple[Segment, ...]
    """What was reserved at its end."""
    alive: Mapping[int, Alloc]
    """What was alive at its end, by address."""

    @property
    def fragmentation_bytes(self) -> int:
        """What is reserved beyond what blocks take at the worst moment of each."""
        return self.peak_reserved_bytes - self.peak_allocated_bytes


def replay(
    trace: Trace, *, capacity_bytes: int | None = None, workspace_bytes: int = 0, keep_result: bool = False
) -> Replay:
    """Estimate what PyTorch's allocator reserves for a call that is made again and again.

    First comes what ``trace.held`` has when nothing was called yet, in order. Between the rounds what outlives the call
    dies, but for blocks that take the place of held ones that the call let go (new gradients for old ones: the same
    size and kind).

    Args:
        trace: the call.
        capacity_bytes: what the GPU has for PyTorch; None: no end of it.
        workspace_bytes: what libraries allocate once and keep, such as cuBLAS; it is counted. Each thread that
            multiplies has its share, asked for by its first product.
        keep_result: a call's result is still alive while the next one runs, as with ``out = step()`` in a loop.
    """
    first = first_call(trace)
    player = _Player(trace, capacity_bytes, first, workspace_bytes)
    try:
        for block in first.held:
            player.alloc(block)
        if not first.products:
            player.alloc(Alloc(WORKSPACE, workspace_bytes, Place(), "workspace"))
        player.play_first()
        for _ in range(ROUNDS - 1):
            player.settle(trace.result_blocks if keep_result else frozenset())
            player.play()
    except CardFullError as full:
        player.log.append(Entry("oom", 0, full.asked_bytes, player.event, player.asking))
        return player.outcome(player.asking)
    return player.outcome(None)


class _Player:
    def __init__(self, trace: Trace, capacity_bytes: int | None, first: FirstCall, workspace_bytes: int) -> None:
        self.trace = trace
        self.first = first
        self.workspace_bytes = workspace_bytes
        self.allocator = CachingAllocator(capacity_bytes, self._segment)
        self.event = -1
        self.asking: Alloc | None = None
        self.log: list[Entry] = []
        self.round = 0
        self.peak = 0
        self.reserved_at_peak = 0
        self.live: dict[int, tuple[int, Alloc]] = {}
        self.addresses: dict[int, int] = {}

    def alloc(self, block: Alloc) -> None:
        self.asking = block
        address = self.allocator.malloc(block.size_bytes)
        if self.allocator.allocated_bytes > self.peak:
            self.peak, self.reserved_at_peak = self.allocator.allocated_bytes, self.allocator.reserved_bytes
        self.asking = None
        self.live[block.block] = address, block
        self.addresses[block.block] = address
        if block.size_bytes:
            self.log.append(Entry("alloc", address, block.size_bytes, self.event, block))

    def free(self, number: int) -> None:
        address, block = self.live.pop(number)
        self.allocator.free(address)
        if block.size_bytes:
            self.log.append(Entry("free", address, block.size_bytes, self.event, block))

    def play(self) -> None:
        """The events of one call that is not the first."""
        self._begin_round()
        for number, event in enumerate(self.trace.events):
            self.event = number
            if isinstance(event, Alloc):
                self.alloc(event)
            elif isinstance(event, Free):
                self.free(event.block)

    def play_first(self) -> None:
        """The events of the first call."""
        self._begin_round()
        first = self.first
        for number, event in enumerate((*self.trace.events, None)):
            self.event = min(number, len(self.trace.events) - 1)
            for block in first.state if number == first.state_at else ():
                self.alloc(block)
            if isinstance(event, Alloc):
                self.alloc(event)
            elif isinstance(event, Free):
                if (gradient := first.adopted.get(event.block)) is not None:
                    address, _ = self.live.pop(event.block)
                    self.live[gradient.block] = address, gradient
                    self.addresses[gradient.block] = address
                elif event.block in self.live:
                    self.free(event.block)
            if number in first.products:
                share = self.workspace_bytes // len(first.products)
                self.alloc(Alloc(WORKSPACES[first.products.index(number)], share, Place(), "workspace"))

    def _begin_round(self) -> None:
        self.round += 1
        self.log.clear()
        self.peak, self.reserved_at_peak = self.allocator.allocated_bytes, self.allocator.reserved_bytes

    def settle(self, kept: frozenset[int]) -> None:
        """From the end of a call to where the next begins: what is held is there, and what is not has gone."""
        self.event = -1
        self.log.clear()
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
                    self.addresses[block.block] = self.live[block.block][0]
                else:
                    missing.append(block)
        for number in [number for number in self.live if number not in held]:
            if number in kept:  # it has a number of its own from now on, out of the next call's way
                self.live[WORKSPACES[-1] - 1 - number] = self.live.pop(number)
            else:
                self.free(number)
        for block in missing:
            self.alloc(block)

    def outcome(self, out_of_memory: Alloc | None) -> Replay:
        return Replay(
            peak_allocated_bytes=self.peak,
            peak_reserved_bytes=self.allocator.peak_reserved_bytes,
            reserved_at_peak_bytes=self.reserved_at_peak,
            addresses=self.addresses,
            out_of_memory=out_of_memory,
            round=self.round,
            log=tuple(self.log),
            segments=self.allocator.segments(),
            alive={address: block for address, block in self.live.values() if block.size_bytes},
        )

    def _nature(self, block: Alloc) -> tuple[int, str]:
        use = self.trace.uses.get(block.block)
        return block.size_bytes, use.kind if use else ""

    def _segment(self, action: str, address: int, size: int) -> None:
        self.log.append(Entry(action, address, size, self.event, self.asking if action == "segment_alloc" else None))
