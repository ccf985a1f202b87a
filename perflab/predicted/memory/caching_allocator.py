"""A model of PyTorch's CUDA caching allocator: the addresses it gives and the memory it reserves.

The rules are those of ``DeviceCachingAllocator`` in ``c10/cuda/CUDACachingAllocator.cpp``, the constants those of
``c10/core/AllocatorConfig.h`` (PyTorch 2.13); each is named where it is followed. The model is exact for one stream,
room for all segments and PyTorch's default settings: no expandable segments, no ``max_split_size``, no garbage
collection, no rounding to powers of two, no pools of CUDA graphs. The model only *estimates* what a real process
reserves: the addresses that ``cudaMalloc`` returns are unknown and break ties, blocks that another stream used come
back late (``record_stream``), and libraries allocate as well. ``replay`` determines what is allocated when.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import NamedTuple

from perflab.predicted.memory.account import BLOCK_BYTES, rounded_as_on_cuda

SMALL_BYTES = 2**20
"""``kSmallSize``: the largest block of the small pool; in the large pool, a remainder up to this is not split off."""
SMALL_SEGMENT_BYTES = 2 * 2**20
"""``kSmallBuffer``: the size of the small pool's segments."""
LARGE_SEGMENT_BYTES = 20 * 2**20
"""``large_segment_size()``, formerly ``kLargeBuffer``: the size of segments for large blocks.

It applies to blocks below ``MIN_OWN_SEGMENT_BYTES``.
"""
MIN_OWN_SEGMENT_BYTES = 10 * 2**20
"""``kMinLargeAlloc``: from this block size on, a segment is as large as its block, rounded up."""
SEGMENT_STEP_BYTES = 2 * 2**20
"""``kRoundLarge``: a large block's own segment is rounded up to a multiple of this size."""
FIRST_ADDRESS = 0x7F00_0000_0000
"""The address of the first segment; each further segment lies behind the last, and no address is given twice."""


class BlockState(NamedTuple):
    """A block of a segment, allocated or free."""

    address: int
    size_bytes: int
    requested_bytes: int
    """The bytes requested; 0 for a free block."""
    allocated: bool


class Segment(NamedTuple):
    """The memory of one ``cudaMalloc``; the blocks, in order of address, fill the segment."""

    address: int
    size_bytes: int
    small: bool
    blocks: tuple[BlockState, ...]


class _Block:
    """PyTorch's ``Block``: ``before`` and ``after`` are its neighbours in the segment (``prev`` and ``next``)."""

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
    """Return the bytes requested from ``cudaMalloc`` if no free block is large enough: ``get_allocation_size()``."""
    if rounded_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded_bytes < MIN_OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-rounded_bytes // SEGMENT_STEP_BYTES) * SEGMENT_STEP_BYTES


class CachingAllocator:
    """The allocator of one device with unlimited memory, for one stream.

    Args:
        on_segment: called for each segment that is reserved, with the segment's address and bytes.
    """

    def __init__(self, on_segment: Callable[[int, int], None] = lambda *_: None) -> None:
        self.allocated_bytes = 0
        """The bytes of blocks in use, as ``torch.cuda.memory_allocated`` counts: with remainders not split off."""
        self.reserved_bytes = 0
        """The bytes of all segments: ``torch.cuda.memory_reserved``. No segment is released, so it never falls."""
        self._on_segment = on_segment
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}  # (size, address), small pool and large
        self._blocks: dict[int, _Block] = {}
        self._heads: list[int] = []
        self._next_address = FIRST_ADDRESS

    def malloc(self, size_bytes: int) -> int:
        """Allocate a block of at least ``size_bytes`` and return its address; 0 if ``size_bytes`` is 0."""
        if size_bytes == 0:
            return 0  # NativeCachingAllocator::allocate() requests no block then
        size = rounded_as_on_cuda(size_bytes)
        # get_free_block(): the smallest that is large enough, of equal ones the one with the lowest address; they are
        # sorted as by BlockComparatorSize, by size, then by address.
        free = self._free[size <= SMALL_BYTES]
        place = bisect_left(free, (size, 0))
        block = self._blocks[free.pop(place)[1]] if place < len(free) else self._new_segment(size)
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
        """Return a block to the cache, merged with free neighbours: ``free_block()``. The address 0 is ignored.

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
        """Return all segments in order of address, with their blocks."""
        found = []
        for address in self._heads:
            block: _Block | None = self._blocks[address]
            small, pieces = self._blocks[address].small, []
            while block is not None:
                pieces.append(BlockState(block.address, block.size, block.requested, block.used))
                block = block.after
            found.append(Segment(address, sum(piece.size_bytes for piece in pieces), small, tuple(pieces)))
        return tuple(found)

    def _new_segment(self, size: int) -> _Block:
        """Reserve a segment for ``size`` bytes and return the segment as one block: ``alloc_block()``."""
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
