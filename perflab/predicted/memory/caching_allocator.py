"""A model of PyTorch's CUDA caching allocator: the addresses it gives and the memory it reserves.

The rules are those of ``DeviceCachingAllocator`` in ``c10/cuda/CUDACachingAllocator.cpp``, the constants those of
``c10/core/AllocatorConfig.h`` (PyTorch 2.13); each is named where it is followed. They are exact for what is modelled:
one stream and PyTorch's default settings, so no expandable segments, no ``max_split_size``, no garbage collection, no
rounding to powers of two, no pools of CUDA graphs. What a real process reserves is still only *estimated* by it: the
addresses that ``cudaMalloc`` gives are not known and break ties, blocks that another stream used come back late
(``record_stream``), and libraries allocate as well. What is allocated, and when, is ``replay``'s to know.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import NamedTuple

from perflab.errors import PerflabError
from perflab.units import format_bytes

MIN_BLOCK_BYTES = 512
"""``kMinBlockSize``: sizes are multiples of it."""
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


class CardFullError(PerflabError):
    """No room for a segment, even after all cached ones were given back: CUDA out of memory."""

    def __init__(
        self, asked_bytes: int, segment_bytes: int, capacity_bytes: int, reserved: int, allocated: int
    ) -> None:
        asked, needed, capacity = (format_bytes(size) for size in (asked_bytes, segment_bytes, capacity_bytes))
        super().__init__(
            f"no room for a block of {asked}: its segment takes {needed}, and of {capacity} {format_bytes(reserved)} "
            f"are reserved, {format_bytes(allocated)} allocated",
            "free blocks first, or give the model of the GPU a larger capacity_bytes",
        )
        self.asked_bytes = asked_bytes
        self.segment_bytes = segment_bytes
        self.capacity_bytes = capacity_bytes
        self.reserved_bytes = reserved
        self.allocated_bytes = allocated


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


def round_size(size_bytes: int) -> int:
    """A block's size: ``round_size()``."""
    return max(MIN_BLOCK_BYTES, -(-size_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES)


def segment_size(rounded_bytes: int) -> int:
    """What is asked of ``cudaMalloc`` where no free block will do: ``get_allocation_size()``."""
    if rounded_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded_bytes < MIN_OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-rounded_bytes // SEGMENT_STEP_BYTES) * SEGMENT_STEP_BYTES


class CachingAllocator:
    """The allocator of one device, for one stream.

    Args:
        capacity_bytes: what the device has for segments; None: no end of it.
        on_segment: told of each segment that is taken or given back: ``segment_alloc`` or ``segment_free``, its
            address, its bytes.
    """

    def __init__(
        self, capacity_bytes: int | None = None, on_segment: Callable[[str, int, int], None] = lambda *_: None
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.allocated_bytes = 0
        """Of blocks in use, as ``torch.cuda.memory_allocated`` counts: with a remainder that was not cut off."""
        self.reserved_bytes = 0
        """Of all segments: ``torch.cuda.memory_reserved``."""
        self.peak_allocated_bytes = 0
        self.peak_reserved_bytes = 0
        self._on_segment = on_segment
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}  # (size, address), small pool and large
        self._blocks: dict[int, _Block] = {}
        self._heads: set[int] = set()
        self._next_address = FIRST_ADDRESS

    def malloc(self, size_bytes: int) -> int:
        """The address of a block of at least ``size_bytes``; 0 for none, which takes nothing.

        Raises:
            CardFullError: it would need a segment that the device has no room for.
        """
        if size_bytes == 0:
            return 0  # NativeCachingAllocator::allocate() asks for nothing then
        size = round_size(size_bytes)
        block = self._best_fit(size, size <= SMALL_BYTES) or self._new_segment(size_bytes, size)
        remaining = block.size - size
        if remaining >= MIN_BLOCK_BYTES if block.small else remaining > SMALL_BYTES:  # should_split()
            rest = _Block(block.address + size, remaining, block.small)
            rest.before, rest.after = block, block.after
            if rest.after is not None:
                rest.after.before = rest
            block.after, block.size = rest, size
            self._keep(rest)
        block.used, block.requested = True, size_bytes
        self.allocated_bytes += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
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

    def release_cached(self) -> None:
        """Give all segments back that are one free block: ``release_cached_blocks()``, ``torch.cuda.empty_cache``."""
        for small in (False, True):
            for _, address in list(self._free[small]):
                block = self._blocks[address]
                if block.before is None and block.after is None:
                    self._take(block)
                    del self._blocks[address]
                    self._heads.remove(address)
                    self.reserved_bytes -= block.size
                    self._on_segment("segment_free", address, block.size)

    def segments(self) -> tuple[Segment, ...]:
        """All segments by address, with their blocks."""
        found = []
        for address in sorted(self._heads):
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

    def _new_segment(self, asked: int, size: int) -> _Block:
        """``alloc_block()``, and what ``malloc()`` does when it fails."""
        needed = segment_size(size)
        if not self._has_room(needed):
            self.release_cached()
            if not self._has_room(needed):
                assert self.capacity_bytes is not None
                raise CardFullError(asked, needed, self.capacity_bytes, self.reserved_bytes, self.allocated_bytes)
        block = _Block(self._next_address, needed, size <= SMALL_BYTES)
        self._next_address += needed
        self._blocks[block.address] = block
        self._heads.add(block.address)
        self.reserved_bytes += needed
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        self._on_segment("segment_alloc", block.address, needed)
        return block

    def _has_room(self, needed: int) -> bool:
        return self.capacity_bytes is None or self.reserved_bytes + needed <= self.capacity_bytes

    def _keep(self, block: _Block) -> None:
        self._blocks[block.address] = block
        insort(self._free[block.small], (block.size, block.address))

    def _take(self, block: _Block) -> None:
        free = self._free[block.small]
        del free[bisect_left(free, (block.size, block.address))]
