"""What is ordered among streams, as the race detector of dry runs follows it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perflab.predicted.dry_run.races import Access, Order

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


Step = tuple[str, *tuple[int, ...]]
RACE = [("access", MAIN, SIDE)]
HELD = [("allocate", 100, MAIN), ("reads", SIDE), ("free",)]
"""Memory of one stream that another still reads when it is given back."""

ORDERS: dict[str, tuple[list[Step], list[tuple[str, int, int | None]]]] = {
    "one stream": ([("writes", MAIN), ("reads", MAIN), ("writes", MAIN)], []),
    "two reads": ([("reads", MAIN), ("reads", SIDE)], []),
    "a write beside a read": ([("reads", MAIN), ("writes", SIDE)], RACE),
    "a write beside a write": ([("writes", MAIN), ("writes", SIDE)], RACE),
    "a read beside a write": ([("writes", MAIN), ("reads", SIDE)], RACE),
    "an event": ([("writes", MAIN), ("record", 1, MAIN), ("wait", 1, SIDE), ("writes", SIDE)], []),
    "an event by another stream": (
        [
            *[("writes", MAIN), ("record", 1, MAIN), ("wait", 1, THIRD)],
            *[("record", 2, THIRD), ("wait", 2, SIDE), ("writes", SIDE)],
        ],
        [],
    ),
    "the host for the event": (
        [("writes", MAIN), ("record", 1, MAIN), ("host_waits_for_event", 1), ("writes", SIDE)],
        [],
    ),
    "the host for the stream": ([("writes", MAIN), ("host_waits_for_stream", MAIN), ("writes", SIDE)], []),
    "the host for the device": ([("writes", MAIN), ("host_waits",), ("writes", SIDE)], []),
    "an event before the write": ([("record", 1, MAIN), ("writes", MAIN), ("wait", 1, SIDE), ("reads", SIDE)], RACE),
    "an event that was never recorded": ([("writes", MAIN), ("wait", 1, SIDE), ("reads", SIDE)], RACE),
    "freed memory": (HELD, []),
    "freed memory, and new of another stream": ([*HELD, ("allocate", 200, SIDE)], []),
    "freed memory, and new of its stream": ([*HELD, ("allocate", 200, MAIN)], [("freed", SIDE, None)]),
    "freed memory whose stream has waited": (
        [*HELD, ("record", 1, SIDE), ("wait", 1, MAIN), ("allocate", 200, MAIN)],
        [],
    ),
    "freed memory that the allocator keeps": (
        [*HELD[:2], ("keep_for", 100, SIDE), ("free",), ("allocate", 200, MAIN)],
        [],
    ),
    "new memory at an old address": (
        [("allocate", 100, MAIN), ("writes", MAIN), ("free",), ("allocate", 100, SIDE), ("writes", SIDE)],
        [],
    ),
}


@pytest.mark.parametrize(("steps", "races"), ORDERS.values(), ids=ORDERS)
def test_what_does_not_wait_for_a_write_or_its_stream_races(
    steps: list[Step], races: list[tuple[str, int, int | None]]
) -> None:
    seen = Seen()
    for what, *arguments in steps:
        getattr(seen if hasattr(seen, what) else seen.order, what)(*arguments)
    assert seen.races == races


@given(st.lists(st.tuples(st.sampled_from([MAIN, SIDE, THIRD]), st.booleans(), st.integers(0, 2)), max_size=30))
def test_with_the_host_waiting_after_each_kernel_nothing_races(steps: list[tuple[int, bool, int]]) -> None:
    seen = Seen()
    for stream, writes, tensor in steps:
        (seen.writes if writes else seen.reads)(stream, tensor)
        seen.order.host_waits()
    assert seen.races == []
