"""What is ordered among streams, as the race detector of dry runs follows it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perflab.predicted.dry_run.order import Access, Order

MAIN, SIDE, THIRD = 0, 7, 9


class Seen:
    """An order, and the races that it told: what, the earlier stream, the later one."""

    def __init__(self) -> None:
        self.races: list[tuple[str, int, int | None]] = []
        self.order = Order(self._note)

    def _note(self, what: str, before: Access, now: Access | tuple[str, ...]) -> None:
        self.races.append((what, before.stream, now.stream if isinstance(now, Access) else None))

    def reads(self, stream: int, tensor: int = 100) -> None:
        self.order.launch(stream, "aten::add", ("here",), [(tensor, tensor)], [])

    def writes(self, stream: int, tensor: int = 100) -> None:
        self.order.launch(stream, "aten::mul", ("here",), [], [(tensor, tensor)])

    def free(self, tensor: int = 100) -> None:
        self.order.free(tensor, lambda: ("there",))


def test_one_stream_is_in_order() -> None:
    seen = Seen()
    seen.writes(MAIN)
    seen.reads(MAIN)
    seen.writes(MAIN)
    assert seen.races == []


def test_reads_do_not_race_with_reads() -> None:
    seen = Seen()
    seen.reads(MAIN)
    seen.reads(SIDE)
    assert seen.races == []


@pytest.mark.parametrize("first", ["reads", "writes"])
def test_a_write_races_with_what_it_does_not_wait_for(first: str) -> None:
    seen = Seen()
    getattr(seen, first)(MAIN)
    seen.writes(SIDE)
    assert seen.races == [("access", MAIN, SIDE)]


def test_a_read_races_with_a_write_before_it() -> None:
    seen = Seen()
    seen.writes(MAIN)
    seen.reads(SIDE)
    assert seen.races == [("access", MAIN, SIDE)]


WAITS: dict[str, Callable[[Order], None]] = {
    "an event": lambda order: (order.record(1, MAIN), order.wait(1, SIDE))[0],
    "an event by another stream": lambda order: (
        order.record(1, MAIN),
        order.wait(1, THIRD),
        order.record(2, THIRD),
        order.wait(2, SIDE),
    )[0],
    "the host for the event": lambda order: (order.record(1, MAIN), order.host_waits_for_event(1))[0],
    "the host for the stream": lambda order: order.host_waits_for_stream(MAIN),
    "the host for the device": lambda order: order.host_waits(),
}


@pytest.mark.parametrize("how", WAITS)
def test_who_waits_does_not_race(how: str) -> None:
    seen = Seen()
    seen.writes(MAIN)
    WAITS[how](seen.order)
    seen.writes(SIDE)
    assert seen.races == []


def test_an_event_is_as_old_as_its_record() -> None:
    seen = Seen()
    seen.order.record(1, MAIN)
    seen.writes(MAIN)
    seen.order.wait(1, SIDE)
    seen.reads(SIDE)
    assert seen.races == [("access", MAIN, SIDE)]


def test_an_event_that_was_never_recorded_orders_nothing() -> None:
    seen = Seen()
    seen.writes(MAIN)
    seen.order.wait(1, SIDE)
    seen.reads(SIDE)
    assert seen.races == [("access", MAIN, SIDE)]


def test_freed_memory_is_a_race_when_its_stream_may_take_it() -> None:
    seen = Seen()
    seen.order.allocate(100, MAIN)
    seen.reads(SIDE)
    seen.free()
    assert seen.races == []
    seen.order.allocate(200, SIDE)  # of another stream: memory is kept by stream
    assert seen.races == []
    seen.order.allocate(200, MAIN)
    assert seen.races == [("freed", SIDE, None)]


def test_freed_memory_is_none_when_its_stream_has_waited() -> None:
    seen = Seen()
    seen.order.allocate(100, MAIN)
    seen.reads(SIDE)
    seen.free()
    seen.order.record(1, SIDE)
    seen.order.wait(1, MAIN)
    seen.order.allocate(200, MAIN)
    assert seen.races == []


def test_memory_that_the_allocator_keeps_is_none() -> None:
    seen = Seen()
    seen.order.allocate(100, MAIN)
    seen.reads(SIDE)
    seen.order.keep_for(100, SIDE)
    seen.free()
    seen.order.allocate(200, MAIN)
    assert seen.races == []


def test_new_memory_at_an_old_address_has_no_past() -> None:
    seen = Seen()
    seen.order.allocate(100, MAIN)
    seen.writes(MAIN)
    seen.free()
    seen.order.allocate(100, SIDE)
    seen.writes(SIDE)
    assert seen.races == []


@given(st.lists(st.tuples(st.sampled_from([MAIN, SIDE, THIRD]), st.booleans(), st.integers(0, 2)), max_size=30))
def test_with_the_host_waiting_after_each_kernel_nothing_races(steps: list[tuple[int, bool, int]]) -> None:
    seen = Seen()
    for stream, writes, tensor in steps:
        (seen.writes if writes else seen.reads)(stream, tensor)
        seen.order.host_waits()
    assert seen.races == []
