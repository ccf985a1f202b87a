"""A model of PyTorch's CUDA caching allocator: the addresses it gives and the memory it reserves.

The rules are those of ``DeviceCachingAllocator`` in ``c10/cuda/CUDACachingAllocator.cpp``, the constants those of
``c10/core/AllocatorConfig.h`` (PyTorch 2.13); each is named where it is followed. They are exact for what is modelled:
one stream, room for all segments and PyTorch's default settings, so no expandable segments, no ``max_split_size``, no
garbage collection, no rounding to powers of two, no pools of CUDA graphs. What a real process reserves is still only
*estimated* by it: the addresses that ``cudaMalloc`` gives are not known and break ties, blocks that another stream used
come back late (``record_stream``), and libraries allocate as well. What is allocated when is ``replay``'s to know.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import NamedTuple

from perflab.predicted.memory.account import BLOCK_BYTES, rounded_as_on_cuda

SMALL_BYTES = 2**20
"""``kSmallSize``: the largest block of the small pool; in the large one, a remainder up to this is not cut off."""
SMALL_SEGMENT_BYTES = 2 * 2**20
"""``kSmallBuffer``: segments of the small pool."""
LARGE_SEGMENT_BYTES = 20 * 2**20
"""``large_segment_size()``, formerly ``kLargeBuffer``: segments for large blocks below ``MIN_OWN_SEGMENT_BYTES``."""
MIN_OWN_SEGMENT_BYTES = 10 * 2**20
"""``kMinLargeAlloc``: from here on a block's segment is as large as the block, rounded up."""
SEGMENT_STEP_BYTES = 2 * 2**20
"""``kRoundLarge``: to this."""
FIRST_ADDRESS = 0x7F00_0000_0000
"""Where the first segment is put; each further one lies behind, and no address is given twice."""


class BlockState(NamedTuple):
    """A piece of a segment."""

    address: int
    size_bytes: int
    requested_bytes: int
    """0 of a free one."""
    allocated: bool


class Segment(NamedTuple):
    """What one ``cudaMalloc`` gave, and its blocks by address; they fill it."""

    address: int
    size_bytes: int
    small: bool
    blocks: tuple[BlockState, ...]


class _Block:
    """``Block``: ``before`` and ``after`` are its neighbours in the segment (``prev`` and ``next``)."""

    __slots__ = ("address", "after", "before", "requested", "size", "small", "used")

    def __init__(self, address: int, size: int, small: bool) -> None:
        self.address = address
        self.size = size
        self.small = small
        self.used = False
        self.requested = 0
        self.before: _Block | None = None
        self.after: _Block | None = None


def segment_size(rounded_bytes: int) -> int:
    """What is asked of ``cudaMalloc`` where no free block will do: ``get_allocation_size()``."""
    if rounded_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded_bytes < MIN_OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-rounded_bytes // SEGMENT_STEP_BYTES) * SEGMENT_STEP_BYTES


class CachingAllocator:
    """The allocator of one device that has no end of memory, for one stream.

    Args:
        on_segment: told of each segment that is taken: its address, its bytes.
    """

    def __init__(self, on_segment: Callable[[int, int], None] = lambda *_: None) -> None:
        self.allocated_bytes = 0
        """Of blocks in use, as ``torch.cuda.memory_allocated`` counts: with a remainder that was not cut off."""
        self.reserved_bytes = 0
        """Of all segments: ``torch.cuda.memory_reserved``. None is given back, so it never falls."""
        self._on_segment = on_segment
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}  # (size, address), small pool and large
        self._blocks: dict[int, _Block] = {}
        self._heads: list[int] = []
        self._next_address = FIRST_ADDRESS

    def malloc(self, size_bytes: int) -> int:
        """The address of a block of at least ``size_bytes``; 0 for none, which takes nothing."""
        if size_bytes == 0:
            return 0  # NativeCachingAllocator::allocate() asks for nothing then
        size = rounded_as_on_cuda(size_bytes)
        block = self._best_fit(size, size <= SMALL_BYTES) or self._new_segment(size)
        remaining = block.size - size
        if remaining >= BLOCK_BYTES if block.small else remaining > SMALL_BYTES:  # should_split()
            rest = _Block(block.address + size, remaining, block.small)
            rest.before, rest.after = block, block.after
            if rest.after is not None:
                rest.after.before = rest
            block.after, block.size = rest, size
            self._keep(rest)
        block.used, block.requested = True, size_bytes
        self.allocated_bytes += block.size
        return block.address

    def free(self, address: int) -> None:
        """Give a block back to the cache, where it becomes one with free neighbours: ``free_block()``.

        Raises:
            ValueError: nothing is allocated at that address.
        """
        if address == 0:
            return
        block = self._blocks.get(address)
        if block is None or not block.used:
            raise ValueError(f"no block is allocated at {address:#x}: free takes what malloc gave, and once")
        self.allocated_bytes -= block.size
        block.used, block.requested = False, 0
        before, after = block.before, block.after
        if before is not None and not before.used:  # try_merge_blocks()
            self._take(before)
            before.size += block.size
            before.after = after
            if after is not None:
                after.before = before
            del self._blocks[block.address]
            block = before
        if after is not None and not after.used:
            self._take(after)
            block.size += after.size
            block.after = after.after
            if block.after is not None:
                block.after.before = block
            del self._blocks[after.address]
        self._keep(block)

    def segments(self) -> tuple[Segment, ...]:
        """All segments by address, with their blocks."""
        found = []
        for address in self._heads:
            block: _Block | None = self._blocks[address]
            small, pieces = self._blocks[address].small, []
            while block is not None:
                pieces.append(BlockState(block.address, block.size, block.requested, block.used))
                block = block.after
            found.append(Segment(address, sum(piece.size_bytes for piece in pieces), small, tuple(pieces)))
        return tuple(found)

    def _best_fit(self, size: int, small: bool) -> _Block | None:
        """The smallest free block of the pool that will do, the first of those: ``get_free_block()``."""
        # Ordered as BlockComparatorSize orders them: by size, then by address.
        free = self._free[small]
        place = bisect_left(free, (size, 0))
        return self._blocks[free.pop(place)[1]] if place < len(free) else None

    def _new_segment(self, size: int) -> _Block:
        """``alloc_block()``."""
        needed = segment_size(size)
        block = _Block(self._next_address, needed, size <= SMALL_BYTES)
        self._next_address += needed
        self._blocks[block.address] = block
        self._heads.append(block.address)
        self.reserved_bytes += needed
        self._on_segment(block.address, needed)
        return block

    def _keep(self, block: _Block) -> None:
        self._blocks[block.address] = block
        insort(self._free[block.small], (block.size, block.address))

    def _take(self, block: _Block) -> None:
        free = self._free[block.small]
        del free[bisect_left(free, (block.size, block.address))]
