"""The model of the caching allocator: small scenarios worked out by hand from the rule that each names, and invariants.

The rules are functions of ``c10/cuda/CUDACachingAllocator.cpp``, the constants those of ``c10/core/AllocatorConfig.h``.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from itertools import pairwise

import pytest
import torch

from perflab.predicted.memory.account import rounded_as_on_cuda
from perflab.predicted.memory.caching_allocator import FIRST_ADDRESS, CachingAllocator, segment_size

MIB = 2**20
BESIDE_THE_REAL_ONE = """
import random
import torch
from perflab.predicted.memory.caching_allocator import CachingAllocator

draw, model, live, known = random.Random(5), CachingAllocator(), [], set()
for step in range(400):
    size = int(2 ** draw.uniform(9, 26))
    if live and (draw.random() < 0.45 or size // 512 in known):
        ours, theirs = live.pop(draw.randrange(len(live)))
        model.free(ours)
        torch.cuda.caching_allocator_delete(theirs)
    else:
        known.add(size // 512)  # sizes differ, so that no choice is left to the order of addresses
        live.append((model.malloc(size), torch.cuda.caching_allocator_alloc(size)))
    counted = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    assert (model.allocated_bytes, model.reserved_bytes) == counted, (step, model.segments(), counted)
print(model.reserved_bytes > 0)
"""


@pytest.mark.parametrize(
    ("block", "segment"),
    [
        (512, 2 * MIB),  # size <= kSmallSize: kSmallBuffer
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),  # size < kMinLargeAlloc: large_segment_size()
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),  # else up to a multiple of kRoundLarge
        (10 * MIB + 512, 12 * MIB),
        (147 * MIB, 148 * MIB),
    ],
)
def test_a_segment_is_as_large_as_get_allocation_size_says(block: int, segment: int) -> None:
    assert segment_size(block) == segment
    allocator = CachingAllocator()
    allocator.malloc(block)
    assert allocator.reserved_bytes == segment


def test_blocks_share_a_segment_to_its_end() -> None:
    allocator = CachingAllocator()  # should_split() in the small pool: remaining >= kMinBlockSize
    first, second, third = (allocator.malloc(size) for size in (MIB, MIB - 512, 500))
    assert (first, second, third) == (FIRST_ADDRESS, FIRST_ADDRESS + MIB, FIRST_ADDRESS + 2 * MIB - 512)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (2 * MIB, 2 * MIB)
    allocator.malloc(1)
    assert allocator.reserved_bytes == 4 * MIB
    allocator = CachingAllocator()
    addresses = [allocator.malloc(size) for size in (9 * MIB, 9 * MIB, 2 * MIB)]
    assert addresses == [FIRST_ADDRESS, FIRST_ADDRESS + 9 * MIB, FIRST_ADDRESS + 18 * MIB]
    assert allocator.reserved_bytes == 20 * MIB


def test_a_large_remainder_of_at_most_1_mib_stays_with_its_block_and_counts_as_allocated() -> None:
    allocator = CachingAllocator()  # should_split() in the large pool: remaining > kSmallSize
    allocator.malloc(11 * MIB)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (12 * MIB, 12 * MIB)
    allocator.malloc(11 * MIB - 512)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (23 * MIB - 512, 24 * MIB)


def test_the_smallest_free_block_that_will_do_is_taken_and_the_first_of_its_size() -> None:
    allocator = CachingAllocator()  # get_free_block(): lower_bound in the order of size and address
    sizes = (30, 12, 40, 12, 14)
    blocks = [allocator.malloc(size * MIB) for size in sizes]
    for block in reversed(blocks):
        allocator.free(block)
    assert allocator.malloc(12 * MIB) == blocks[1]
    assert allocator.malloc(12 * MIB) == blocks[3]
    assert allocator.malloc(12 * MIB) == blocks[4]
    assert allocator.malloc(12 * MIB) == blocks[0]
    assert allocator.reserved_bytes == sum(sizes) * MIB


def test_freed_neighbours_become_one_block_again() -> None:
    allocator = CachingAllocator()  # free_block(), try_merge_blocks(): the one before and the one behind
    first, second, third = (allocator.malloc(6 * MIB) for _ in range(3))
    allocator.free(first)
    allocator.free(third)
    assert [block.size_bytes for block in allocator.segments()[0].blocks] == [6 * MIB, 6 * MIB, 8 * MIB]
    allocator.free(second)
    (segment,) = allocator.segments()
    assert [(block.size_bytes, block.allocated) for block in segment.blocks] == [(20 * MIB, False)]
    assert allocator.malloc(20 * MIB) == first
    assert allocator.reserved_bytes == 20 * MIB


def test_each_segment_that_is_taken_is_told() -> None:
    seen: list[tuple[int, int]] = []
    allocator = CachingAllocator(lambda address, size: seen.append((address, size // MIB)))
    for size in (5, 30, 9):
        allocator.malloc(size * MIB)
    assert seen == [(FIRST_ADDRESS, 20), (FIRST_ADDRESS + 20 * MIB, 30)]


def test_a_block_is_freed_once_and_nothing_takes_nothing() -> None:
    allocator = CachingAllocator()  # NativeCachingAllocator::allocate(): size != 0
    allocator.free(allocator.malloc(0))
    assert allocator.reserved_bytes == 0
    allocator = CachingAllocator()
    block = allocator.malloc(1)
    allocator.free(block)
    with pytest.raises(
        ValueError, match=rf"no block is allocated at {block:#x}: free takes what malloc gave, and once"
    ):
        allocator.free(block)


def best_fit_by_definition(allocator: CachingAllocator, size: int) -> int | None:
    """Over all free blocks of the pool, with no index: the address that must be given; None: of a new segment."""
    fitting = [
        (block.size_bytes, block.address)
        for segment in allocator.segments()
        for block in segment.blocks
        if segment.small == (size <= MIB) and not block.allocated and block.size_bytes >= size
    ]
    return min(fitting)[1] if fitting else None


def check_books(allocator: CachingAllocator, live: dict[int, int]) -> None:
    """Segments lie apart, blocks fill them without a gap, no two free ones touch, and the sums are the sums."""
    end, in_use = 0, {}
    for segment in allocator.segments():
        assert segment.address >= end
        end = segment.address
        for block in segment.blocks:
            assert block.address == end
            end += block.size_bytes
            if block.allocated:
                in_use[block.address] = block.requested_bytes
                assert (
                    rounded_as_on_cuda(block.requested_bytes)
                    <= block.size_bytes
                    <= rounded_as_on_cuda(block.requested_bytes) + MIB
                )
        assert end == segment.address + segment.size_bytes
        states = [block.allocated for block in segment.blocks]
        assert (False, False) not in set(pairwise(states))
    assert in_use == live
    segments = allocator.segments()
    blocks = [block for segment in segments for block in segment.blocks if block.allocated]
    assert allocator.reserved_bytes == sum(segment.size_bytes for segment in segments)
    assert allocator.allocated_bytes == sum(block.size_bytes for block in blocks)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_asked_for_the_rules_hold(seed: int) -> None:
    draw = random.Random(seed)
    allocator = CachingAllocator()
    live: dict[int, int] = {}
    for _ in range(250):
        if live and draw.random() < 0.45:
            address = draw.choice(list(live))
            allocator.free(address)
            del live[address]
        else:
            size = int(2 ** draw.uniform(6, 25))
            expected = best_fit_by_definition(allocator, rounded_as_on_cuda(size))
            known = {segment.address for segment in allocator.segments()}
            address = allocator.malloc(size)
            assert address == expected if expected else address not in known
            assert address not in live
            live[address] = size
        check_books(allocator, live)
    for address in live:
        allocator.free(address)
    assert all(len(segment.blocks) == 1 for segment in allocator.segments())
    assert allocator.allocated_bytes == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the allocator itself needs CUDA")
def test_the_model_counts_as_pytorch_s_allocator_does() -> None:
    environment = {name: value for name, value in os.environ.items() if "ALLOC_CONF" not in name}
    command = [sys.executable, "-c", BESIDE_THE_REAL_ONE]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")
