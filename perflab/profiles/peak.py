"""What is alive at the peak of a recorded call, by category, operator, module and line. Pure functions."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import NamedTuple

from perflab.data import changed
from perflab.profiles.events import NODE, Call
from perflab.profiles.placed import Placed, role_of
from perflab.profiles.records import BACKWARD, KEPT, LET_GO, OPTIMIZER, PeakPart
from perflab.torch_internals.machine import BlockEvent

_ONLY_ALLOCATE = ("aten::empty", "aten::resize_", "aten::new_empty")
"""Operators that ask for memory on behalf of those that call them."""


class Asked(NamedTuple):
    """Who asked for a block."""

    phase: str = ""
    role: str = ""
    """As in ``Placed``."""
    operator: str = ""
    module: str = ""
    line: str = ""
    stack: tuple[str, ...] = ()

    def part(self, category: str, size_bytes: int, blocks: int) -> PeakPart:
        """Blocks that it asked for."""
        return PeakPart(
            category=category,
            size_bytes=size_bytes,
            blocks=blocks,
            operator=self.operator,
            module=self.module,
            line=self.line,
            stack=list(self.stack),
        )


class Askers:
    """Finds who asked for a block at some time, among the operators of recorded calls."""

    def __init__(self, found: Iterable[Placed], phases_at: Sequence[tuple[int, str]] = ()) -> None:
        """``phases_at``: when each phase began, in order; empty where the calls have none."""
        self._placed = {id(one.call): one for one in found}
        self._by_thread: dict[int, list[Call]] = {}
        for one in self._placed.values():
            self._by_thread.setdefault(one.call.event.thread, []).append(one.call)
        for calls in self._by_thread.values():
            calls.sort(key=lambda call: (call.event.start_ns, -call.event.end_ns))
        self._starts = {thread: [one.event.start_ns for one in calls] for thread, calls in self._by_thread.items()}
        self._phases_at = phases_at

    def at(self, event: BlockEvent) -> Asked:
        """Who ran then on that thread: the innermost operator that does more than to ask for memory."""
        call = self._running(event)
        while call is not None and call.name.startswith(_ONLY_ALLOCATE):
            above = next((one for one in call.above() if id(one) in self._placed), None)
            if above is None or above.name.startswith(NODE):
                break
            call = above
        if call is None:
            return Asked(phase := self._phase_at(event.time_ns), role_of(phase))
        one = self._placed[id(call)]
        operator = "" if call.name.startswith(NODE) else call.name
        return Asked(one.phase, one.role, operator, *one.where)

    def _running(self, event: BlockEvent) -> Call | None:
        calls = self._by_thread.get(event.thread, [])
        number = bisect_right(self._starts.get(event.thread, []), event.time_ns) - 1
        call = calls[number] if number >= 0 else None
        while call is not None and (call.event.end_ns < event.time_ns or id(call) not in self._placed):
            call = call.parent
        return call

    def _phase_at(self, time_ns: int) -> str:
        number = bisect_right(self._phases_at, time_ns, key=lambda one: one[0]) - 1
        return self._phases_at[number][1] if number >= 0 else ""


def kept_before(events: Iterable[BlockEvent], began_ns: int, askers: Askers) -> dict[int, Asked]:
    """By address, who asked for the blocks that calls before this moment have made, and not let go."""
    there: dict[int, BlockEvent] = {}
    for event in takewhile(lambda one: one.time_ns < began_ns, events):
        if event.size_bytes >= 0:
            there[event.address] = event
        else:
            there.pop(event.address, None)
    return {address: askers.at(event) for address, event in there.items()}


def made_by_call(
    events: Sequence[BlockEvent],
    began_ns: int,
    askers: Askers,
    failed_ns: int | None = None,
    ended_ns: int | None = None,
) -> list[PeakPart]:
    """What a call has made, and let go of what was there, up to its peak: what it rises above its beginning.

    Args:
        events: of the allocator, in order of time; those of earlier calls say whose a block is that this one frees.
        began_ns: when the call began.
        askers: who asked for what.
        failed_ns: when it ran out of memory; then that moment is meant, and no peak.
        ended_ns: when the call had returned; what goes later was its result. None: that is not known.
    """
    first = bisect_left(events, began_ns, key=attrgetter("time_ns"))
    end = _peak(events, first) if failed_ns is None else bisect_left(events, failed_ns, key=attrgetter("time_ns"))
    there: dict[int, int] = {}
    """By address, the number of the event that gave the block."""
    freed: dict[int, int] = {}
    """By the number of the event that gave a block, that of the one that took it."""
    parts: list[PeakPart] = []
    for number, event in enumerate(events):
        if event.size_bytes >= 0:
            there[event.address] = number
            continue
        giver = there.pop(event.address, None)
        if giver is not None:
            freed[giver] = number
        if first <= number < end and (giver is None or giver < first):
            asked = askers.at(events[giver]) if giver is not None else Asked()
            parts.append(asked.part(LET_GO, event.size_bytes, -1))
    for number in range(first, end):
        if events[number].size_bytes > 0 and freed.get(number, end) >= end:
            last = askers.at(events[freed[number]]) if number in freed else None
            asked = askers.at(events[number])
            is_result = ended_ns is not None and number in freed and events[freed[number]].time_ns >= ended_ns
            category = "results" if is_result else category_of(asked, last)
            if failed_ns is not None:  # nobody knows what would have become of it
                category = f"made by the {asked.phase or 'call'}"
            parts.append(asked.part(category, events[number].size_bytes, 1))
    return summed(parts)


def _peak(events: Sequence[BlockEvent], first: int) -> int:
    """The number of events up to the first moment at which most is alive."""
    level = highest = 0
    end = first
    for number in range(first, len(events)):
        level += events[number].size_bytes
        if level > highest:
            highest, end = level, number + 1
    return end


def category_of(made: Asked, freed: Asked | None) -> str:
    """What a block is for, by where a call made it and let it go; None: not as long as it was watched."""
    if freed is not None and (freed.phase, freed.role) == (made.phase, made.role):
        return "temporaries"
    if made.role == OPTIMIZER:
        return "new optimizer state"
    if made.role == BACKWARD:
        return "new gradients"
    if freed is None:
        return KEPT
    return "activations" if freed.role else "passed on"


def summed(parts: Iterable[PeakPart]) -> list[PeakPart]:
    """Parts of one category and stack together, the largest first."""
    together: dict[tuple[str, str, str, str, tuple[str, ...]], list[PeakPart]] = {}
    for one in parts:
        together.setdefault((one.category, one.operator, one.module, one.line, tuple(one.stack)), []).append(one)
    sums = (
        changed(ones[0], size_bytes=sum(one.size_bytes for one in ones), blocks=sum(one.blocks for one in ones))
        for ones in together.values()
    )
    return sorted(sums, key=lambda one: -abs(one.size_bytes))
