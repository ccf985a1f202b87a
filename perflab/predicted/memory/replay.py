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

from perflab.predicted.memory.caching_allocator import CachingAllocator, Segment
from perflab.predicted.memory.first_call import FirstCall, first_call
from perflab.predicted.trace.trace import Alloc, Free, Place, Trace

WORKSPACES = (-1, -2)
"""The blocks that stand for what libraries hold, of each thread that multiplies."""
ROUNDS = 3
"""In the first call of a loop state comes to be, in the second all of it is there, the third finds that one's cache."""


class Entry(NamedTuple):
    """One thing that the allocator did."""

    action: str
    """``alloc``, ``free`` or ``segment_alloc``."""
    address: int
    size_bytes: int
    """As it was asked for; of a segment all of it."""
    event: int
    """Where in the trace's events; -1 before them."""
    block: Alloc
    """For whom."""


@dataclass(frozen=True)
class Replay:
    """What became of it. Bytes as ``torch.cuda.memory_stats`` counts them."""

    peak_allocated_bytes: int
    """``max_memory_allocated`` of the last round: blocks rounded up, and what is not cut off of large ones, up to 1 MiB
    of each."""
    peak_reserved_bytes: int
    """``max_memory_reserved``."""
    log: tuple[Entry, ...]
    """What happened in the last round."""
    segments: tuple[Segment, ...]
    """What was reserved at its end."""
    alive: Mapping[int, Alloc]
    """What was alive at its end, by address."""


def replay(trace: Trace, workspace_bytes: int = 0) -> Replay:
    """Estimate what PyTorch's allocator reserves for a call that is made again and again.

    First comes what ``trace.held`` has when nothing was called yet, in order. Between the rounds what outlives the call
    dies, but for blocks that take the place of held ones that the call let go (new gradients for old ones: the same
    size and kind).

    Args:
        trace: the call.
        workspace_bytes: what libraries allocate once and keep, such as cuBLAS; it is counted. Each thread that
            multiplies has its share, asked for by its first product.
    """
    first = first_call(trace)
    player = _Player(trace, first, workspace_bytes)
    for block in first.held:
        player.alloc(block)
    if not first.products:
        player.alloc(Alloc(WORKSPACES[0], workspace_bytes, Place(), "workspace"))
    player.play_first()
    for _ in range(ROUNDS - 1):
        player.settle()
        player.play()
    return Replay(
        peak_allocated_bytes=player.peak,
        peak_reserved_bytes=player.allocator.reserved_bytes,
        log=tuple(player.log),
        segments=player.allocator.segments(),
        alive={address: block for address, block in player.live.values() if block.size_bytes},
    )


class _Player:
    def __init__(self, trace: Trace, first: FirstCall, workspace_bytes: int) -> None:
        self.trace = trace
        self.first = first
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
                elif event.block in self.live:
                    self.free(event.block)
            if number in first.products:
                share = self.workspace_bytes // len(first.products)
                self.alloc(Alloc(WORKSPACES[first.products.index(number)], share, Place(), "workspace"))

    def _begin_round(self) -> None:
        self.log.clear()
        self.peak = self.allocator.allocated_bytes

    def settle(self) -> None:
        """From the end of a call to where the next begins: what is held is there, and what is not has gone."""
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
        return block.size_bytes, use.kind if use else ""

    def _segment(self, address: int, size: int) -> None:
        self.log.append(Entry("segment_alloc", address, size, self.event, self.asking))
