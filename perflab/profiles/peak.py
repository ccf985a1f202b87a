"""The memory that is alive at the peak of a recorded call, by category, operator, module and line. Pure functions."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import NamedTuple

from perflab.base.data import changed
from perflab.internals.of_torch.machine import BlockEvent
from perflab.profiles.events import NODE, Call
from perflab.profiles.placed import Placed, role_of
from perflab.results.peak import KEPT, LET_GO, PeakPart
from perflab.results.profile import BACKWARD, OPTIMIZER

_ONLY_ALLOCATE = ("aten::empty", "aten::resize_", "aten::new_empty")
"""Beginnings of the names of operators that allocate memory on behalf of their callers."""


class Asked(NamedTuple):
    """The origin of an allocation: the phase, operator, module, line and callers that asked for a block."""

    phase: str = ""
    role: str = ""
    """``BACKWARD`` or ``OPTIMIZER``, as in ``Placed``; ``""``: neither."""
    operator: str = ""
    module: str = ""
    line: str = ""
    stack: tuple[str, ...] = ()

    def part(self, category: str, size_bytes: int, blocks: int) -> PeakPart:
        """Return a part for blocks that this origin asked for."""
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
    """Finds the origin of an allocation among the operators of recorded calls."""

    def __init__(self, found: Iterable[Placed], phases_at: Sequence[tuple[int, str]] = ()) -> None:
        """Index the operators by thread and time.

        ``phases_at`` has when each phase began, in order; empty if the calls have no phases.
        """
        self._placed = {id(one.call): one for one in found}
        self._by_thread: dict[int, list[Call]] = {}
        for one in self._placed.values():
            self._by_thread.setdefault(one.call.event.thread, []).append(one.call)
        for calls in self._by_thread.values():
            calls.sort(key=lambda call: (call.event.start_ns, -call.event.end_ns))
        self._starts = {thread: [one.event.start_ns for one in calls] for thread, calls in self._by_thread.items()}
        self._phases_at = phases_at

    def at(self, event: BlockEvent) -> Asked:
        """Return the origin of an event: the innermost operator running on its thread that does more than allocate."""
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
    """Return the origins, by address, of blocks that were allocated before ``began_ns`` and not freed until then."""
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
    """Return the parts by which a call's memory rises above its beginning up to its peak.

    The parts are the blocks that the call has allocated and, with negative sizes, the earlier blocks that it has freed.

    Args:
        events: the allocator's events, in order of time; events of earlier calls give the origins of blocks that this
            call frees.
        began_ns: when the call began.
        askers: finds the origins of blocks.
        failed_ns: when the call ran out of memory; the parts are then of that moment instead of the peak. None: it did
            not.
        ended_ns: when the call had returned; a block that is freed later was its result. None: not known.
    """
    first = bisect_left(events, began_ns, key=attrgetter("time_ns"))
    end = _peak(events, first) if failed_ns is None else bisect_left(events, failed_ns, key=attrgetter("time_ns"))
    there: dict[int, int] = {}
    """The number of the event that allocated the block at an address."""
    freed: dict[int, int] = {}
    """The number of the event that freed a block, by the number of the event that allocated it."""
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
            if failed_ns is not None:  # it is not known when the block would have been freed
                category = f"made by the {asked.phase or 'call'}"
            parts.append(asked.part(category, events[number].size_bytes, 1))
    return summed(parts)


def _peak(events: Sequence[BlockEvent], first: int) -> int:
    """Return the number of events up to the first moment at which most memory is alive."""
    level = highest = 0
    end = first
    for number in range(first, len(events)):
        level += events[number].size_bytes
        if level > highest:
            highest, end = level, number + 1
    return end


def category_of(made: Asked, freed: Asked | None) -> str:
    """Return a block's category, by where a call allocated and freed it; ``freed`` is None if it was not seen freed."""
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
    """Sum up parts of the same category, operator, module and stack; the largest sum comes first."""
    together: dict[tuple[str, str, str, str, tuple[str, ...]], list[PeakPart]] = {}
    for one in parts:
        together.setdefault((one.category, one.operator, one.module, one.line, tuple(one.stack)), []).append(one)
    sums = (
        changed(ones[0], size_bytes=sum(one.size_bytes for one in ones), blocks=sum(one.blocks for one in ones))
        for ones in together.values()
    )
    return sorted(sums, key=lambda one: -abs(one.size_bytes))
