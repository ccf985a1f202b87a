"""Traces put through the model of the caching allocator: peaks, and what is reserved."""

from __future__ import annotations

import random

import pytest

from perflab.predicted.memory.account import rounded_as_on_cuda
from perflab.predicted.memory.caching_allocator import FIRST_ADDRESS
from perflab.predicted.memory.replay import WORKSPACES, Replay, replay
from perflab.predicted.trace.trace import Alloc, Event, Free, Op, Place, Trace, Use

MIB = 2**20
PLACE = Place("forward", "blocks.*.attention", "model.py:45")
OP = Op("aten::mm", PLACE, 0, 0, "float32")


def block(number: int, size_bytes: int) -> Alloc:
    return Alloc(number, size_bytes, PLACE, "aten::mm")


def trace(
    *events: Event, held: tuple[Alloc, ...] = (), result: frozenset[int] = frozenset(), **kinds: list[int]
) -> Trace:
    uses = {number: Use(kind) for kind, numbers in kinds.items() for number in numbers}
    return Trace(held, events, uses, result_blocks=result)


def addresses(seen: Replay) -> dict[int, int]:
    """Where each block was in the last round, those of workspaces included."""
    alive = {block.block: address for address, block in seen.alive.items()}
    return {entry.block.block: entry.address for entry in seen.log if entry.action in ("alloc", "free")} | alive


def test_the_peak_is_of_what_is_alive_together() -> None:
    seen = replay(trace(block(1, 30 * MIB), OP, Free(1), block(2, 12 * MIB), Free(2), held=(block(0, 9 * MIB),)))
    assert seen.peak_allocated_bytes == 39 * MIB
    assert seen.peak_reserved_bytes == 50 * MIB  # 20 for what is held, 30 that the second block finds free
    assert addresses(seen) == {0: FIRST_ADDRESS, 1: FIRST_ADDRESS + 20 * MIB, 2: FIRST_ADDRESS + 20 * MIB}


def test_holes_that_are_too_small_make_it_reserve_more_than_it_ever_allocates() -> None:
    events: list[Event] = [block(number, 10 * MIB) for number in range(8)]
    events += [Free(number) for number in range(8)]
    events.append(block(8, 80 * MIB))
    seen = replay(trace(*events))
    assert (seen.peak_allocated_bytes, seen.peak_reserved_bytes) == (80 * MIB, 160 * MIB)


def test_the_second_round_finds_the_cache_and_may_need_more_than_the_first() -> None:
    call = trace(block(1, 9 * MIB), block(2, 12 * MIB), Free(1), block(3, 20 * MIB), Free(2), Free(3))
    # At first, block 1 opens a segment of 20 MiB, block 2 one of 12, and block 3 finds the former free: 32 MiB. Then
    # block 1 fits best into the 12, so block 2 cuts into the 20, and block 3 needs a third segment: 52 MiB.
    seen = replay(call)
    assert (seen.peak_allocated_bytes, seen.peak_reserved_bytes) == (32 * MIB, 52 * MIB)
    assert addresses(seen) == {1: FIRST_ADDRESS + 20 * MIB, 2: FIRST_ADDRESS, 3: FIRST_ADDRESS + 32 * MIB}


def test_what_outlives_a_call_dies_before_the_next_and_what_it_let_go_is_there_again() -> None:
    seen = replay(trace(block(1, 40 * MIB), result=frozenset({1})))
    assert (seen.peak_allocated_bytes, seen.peak_reserved_bytes) == (40 * MIB, 40 * MIB)
    seen = replay(trace(Free(0), block(1, 60 * MIB), Free(1), held=(block(0, 40 * MIB),)))
    assert (seen.peak_allocated_bytes, seen.peak_reserved_bytes) == (60 * MIB, 100 * MIB)
    assert seen.log[0][:3] == ("free", addresses(seen)[0], 40 * MIB)


def test_new_gradients_take_the_place_of_the_old_ones_from_call_to_call() -> None:
    old, new = block(0, 40 * MIB), block(1, 40 * MIB)
    seen = replay(trace(Free(0), block(2, 11 * MIB), new, Free(2), held=(old,), gradients=[0, 1], temporaries=[2]))
    # The first call has no old gradient, so blocks 2 and 1 open a segment each. The new gradient is the next call's old
    # one, and there both blocks find their place again.
    second = FIRST_ADDRESS + 12 * MIB
    assert addresses(seen) == {2: FIRST_ADDRESS, 0: second, 1: second}
    assert (seen.peak_allocated_bytes, seen.peak_reserved_bytes) == (52 * MIB, 52 * MIB)  # of 12 MiB 1 is not cut off
    assert [(entry.action, entry.block.block) for entry in seen.log] == [
        ("free", 0),
        ("alloc", 2),
        ("alloc", 1),
        ("free", 2),
    ]


def test_a_gradient_that_later_calls_add_to_is_the_block_that_the_first_one_made() -> None:
    held, made = block(0, 40 * MIB), block(1, 40 * MIB)
    add = Op("aten::add_", Place("backward", PLACE.module, PLACE.line, in_backward=True), 0, 0, "float32")
    call = trace(block(2, 60 * MIB), made, add, Free(1), Free(2), held=(held,), gradients=[0], temporaries=[1, 2])
    seen = replay(call)
    # At first: segments of 60 and 40; the second call holds the 40, and takes 40 more for what it adds.
    assert addresses(seen) == {0: FIRST_ADDRESS + 60 * MIB, 1: FIRST_ADDRESS + 100 * MIB, 2: FIRST_ADDRESS}
    assert (seen.peak_allocated_bytes, seen.peak_reserved_bytes) == (140 * MIB, 140 * MIB)


def test_optimizer_state_comes_to_be_when_the_first_optimizer_begins_and_finds_what_is_free_then() -> None:
    state = block(0, 40 * MIB)
    step = Op("aten::_foreach_lerp_", Place("optimizer"), 0, 0, "float32")
    seen = replay(trace(block(1, 40 * MIB), Free(1), step, held=(state,), **{"optimizer state": [0]}))
    assert addresses(seen)[0] == FIRST_ADDRESS  # where block 1 was; that takes another place from then on
    assert (addresses(seen)[1], seen.peak_reserved_bytes) == (FIRST_ADDRESS + 40 * MIB, 80 * MIB)


def test_cublas_asks_for_a_workspace_with_the_first_product_of_each_thread() -> None:
    forward, backward = (Op("aten::mm", Place(in_backward=within), 8, 0, "float32") for within in (False, True))
    call = trace(block(1, 30 * MIB), Free(1), forward, block(2, 2 * MIB), forward, backward, Free(2))
    seen = replay(call, workspace_bytes=32 * MIB)
    assert addresses(seen)[WORKSPACES[0]] == FIRST_ADDRESS + 30 * MIB
    assert addresses(seen)[WORKSPACES[1]] == FIRST_ADDRESS + 62 * MIB
    assert seen.peak_allocated_bytes == (30 + 64) * MIB
    assert seen.workspace_bytes == 64 * MIB


def product(name: str) -> Op:
    return Op(name, PLACE, 8, 0, "float32")


def test_the_workspace_of_libraries_counts_and_stays() -> None:
    call = trace(product("aten::addmm"), block(1, 4 * MIB), Free(1), held=(block(0, 10 * MIB),))
    seen = replay(call, workspace_bytes=8 * MIB)
    assert seen.peak_allocated_bytes == 22 * MIB
    assert seen.peak_reserved_bytes == 30 * MIB  # both large blocks below 10 MiB share a segment


@pytest.mark.parametrize("name", ["mylib::attend", "aten::_flash_attention_forward", "aten::convolution"])
def test_what_multiplies_without_cublas_takes_no_workspace(name: str) -> None:
    seen = replay(trace(block(1, 4 * MIB), product(name), Free(1)), workspace_bytes=8 * MIB)
    assert (seen.workspace_bytes, seen.peak_allocated_bytes) == (0, 4 * MIB)


def test_the_log_and_the_segments_are_of_the_last_round() -> None:
    call = trace(block(1, 30 * MIB), block(2, 0), Free(1), block(3, 700), held=(block(0, 512),), result=frozenset({3}))
    seen = replay(call)
    assert [(entry.action, entry.size_bytes, entry.event) for entry in seen.log] == [
        ("alloc", 30 * MIB, 0),
        ("free", 30 * MIB, 2),
        ("alloc", 700, 3),
    ]
    assert {address: alive.block for address, alive in seen.alive.items()} == {
        addresses(seen)[0]: 0,
        addresses(seen)[3]: 3,
    }
    assert [segment.size_bytes for segment in seen.segments] == [2 * MIB, 30 * MIB]


def random_call(seed: int, blocks: int) -> Trace:
    draw = random.Random(seed)
    held = tuple(block(number, draw.choice((512, 40_000, 3 * MIB, 12 * MIB))) for number in range(10))
    live, events = [one.block for one in held[5:]], []
    for number in range(10, 10 + blocks):
        events.append(block(number, int(2 ** draw.uniform(4, 24))))
        live.append(number)
        while len(live) > 30 or (live and draw.random() < 0.3):
            events.append(Free(live.pop(draw.randrange(len(live)))))
    return trace(*events, held=held)


def peak_by_addition(call: Trace) -> int:
    sizes = {one.block: rounded_as_on_cuda(one.size_bytes) for one in call.held}
    peak = sum(sizes.values())
    for event in call.events:
        if isinstance(event, Alloc):
            sizes[event.block] = rounded_as_on_cuda(event.size_bytes)
        elif isinstance(event, Free):
            del sizes[event.block]
        peak = max(peak, sum(sizes.values()))
    return peak


@pytest.mark.parametrize("seed", range(5))
def test_whatever_a_call_does_its_numbers_are_in_order(seed: int) -> None:
    call = random_call(seed, 200)
    seen = replay(call)
    at_least = peak_by_addition(call)
    assert at_least <= seen.peak_allocated_bytes <= seen.peak_reserved_bytes
    assert seen.peak_allocated_bytes <= at_least + 40 * MIB  # 40 blocks at most, each with at most 1 MiB not cut off
    assert replay(call) == seen
