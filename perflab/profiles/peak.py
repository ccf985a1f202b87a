"""The memory at the peak of a recorded call, by category, operator, module and line; why one peak is higher. Pure.

A line's number changes when something above the line is edited, so blocks of two peaks are compared whatever their
line. Of the lines of one operator in one module, the line is named that allocates what the other peak has on no line.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from perflab.base.data import changed
from perflab.base.grouping import groups_of
from perflab.internals.of_torch.machine import BlockEvent
from perflab.profiles.events import NODE, Innermost, Placed, made_by, role_of
from perflab.results.peak import (
    ACTIVATIONS,
    INPUTS,
    KEPT,
    KEPT_BEFORE,
    LET_GO,
    MADE_BY,
    OUTLIVED,
    Keeper,
    Peak,
    PeakChange,
    PeakExplanation,
    PeakPart,
)
from perflab.results.profile import BACKWARD, OPTIMIZER
from perflab.units import format_bytes, format_signed

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
        self._innermost = Innermost(one.call for one in self._placed.values())
        self._phases_at = phases_at
        self._over_ns: dict[tuple[int, int], int] = {}
        """When the last backward of an operator was over, by the operator's thread and autograd number."""
        for one in self._placed.values():
            if one.call.name.startswith(NODE):
                number, end_ns = made_by(one.call), one.call.event.end_ns
                self._over_ns[number] = max(end_ns, self._over_ns.get(number, end_ns))

    def at(self, event: BlockEvent) -> Asked:
        """Return the origin of an event: the innermost operator running on its thread that does more than allocate."""
        running = self._running(event)
        if not running:
            number = bisect_right(self._phases_at, event.time_ns, key=lambda one: one[0]) - 1
            phase = self._phases_at[number][1] if number >= 0 else ""
            return Asked(phase, role_of(phase))
        one, *outer = running
        for above in outer:
            if not one.call.name.startswith(_ONLY_ALLOCATE) or above.call.name.startswith(NODE):
                break
            one = above
        operator = "" if one.call.name.startswith(NODE) else one.call.name
        return Asked(one.phase, one.role, operator, *one.where)

    def is_spent(self, event: BlockEvent, moment_ns: int) -> bool:
        """Whether the backward of the operator that asked for a block is over at a moment, so that none needs it."""
        calls = [one.call for one in self._running(event)]
        numbers = [(one.event.thread, one.event.sequence) for one in calls if one.event.sequence >= 0]
        if not numbers or any(one.name.startswith(NODE) for one in calls):
            return False
        return self._over_ns.get(numbers[-1], moment_ns) < moment_ns  # the outermost operator's

    def _running(self, event: BlockEvent) -> list[Placed]:
        open_calls = self._innermost.at(event.thread, event.time_ns)
        return [self._placed[id(call)] for call in open_calls if id(call) in self._placed]


def alive_after(events: Iterable[BlockEvent]) -> list[BlockEvent]:
    """Return the allocations among the events whose blocks were not freed again."""
    there: dict[int, BlockEvent] = {}
    for event in events:
        if event.size_bytes >= 0:
            there[event.address] = event
        else:
            there.pop(event.address, None)
    return list(there.values())


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
    peak_ns = events[end - 1].time_ns if end else began_ns
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
            if category != KEPT and askers.is_spent(events[number], peak_ns):
                category = OUTLIVED
            if failed_ns is not None:  # it is not known when the block would have been freed
                category = f"{MADE_BY}{asked.phase or 'call'}"
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
    return ACTIVATIONS if freed.role else "passed on"


def summed(parts: Iterable[PeakPart]) -> list[PeakPart]:
    """Sum up parts of the same category, operator, module and stack; the largest sum comes first."""
    together = groups_of(parts, lambda one: (one.category, one.operator, one.module, one.line, *one.stack))
    sums = (
        changed(ones[0], size_bytes=sum(one.size_bytes for one in ones), blocks=sum(one.blocks for one in ones))
        for ones in together.values()
    )
    return sorted(sums, key=lambda one: -abs(one.size_bytes))


_Key = tuple[str, str, str]
"""Category, operator and module of blocks."""


def _without_gradients(base: Peak, module: str) -> bool:
    """Return whether a module ran without gradients; of one that did not run, all within the next module around it."""
    if module in base.with_gradients:
        return not base.with_gradients[module]
    while module and module not in base.with_gradients:
        module = module.rpartition(".")[0]
    around = [of for name, of in base.with_gradients.items() if not module or f"{name}.".startswith(f"{module}.")]
    return bool(around) and not any(around)


def explain_peak(base: Peak, head: Peak, against: str, change_bytes: int) -> PeakExplanation:
    """Explain what makes the peak of ``head`` higher than the peak of ``base``.

    ``against`` is the name of the base in texts; ``change_bytes`` is the change by the gate's own measurement.
    """
    before, now = (groups_of(side.parts, lambda one: (one.category, one.operator, one.module)) for side in (base, head))
    changes = [one for key in {**now, **before} for one in _changes(key, before.get(key, []), now.get(key, []))]
    seen_bytes = head.peak_bytes - base.peak_bytes
    rest_bytes, each_bytes = change_bytes - seen_bytes, head.grows_bytes or base.grows_bytes
    if rest_bytes and each_bytes and rest_bytes % each_bytes == 0:
        changes.append(PeakChange(category=KEPT_BEFORE, change_bytes=rest_bytes, more=rest_bytes // each_bytes))
        rest_bytes = 0
    parts = sorted(
        _without_equal(one for one in changes if one.change_bytes or one.more),
        key=lambda one: (-abs(one.change_bytes), one.change_bytes < 0, not one.line),
    )
    # The largest change of kept blocks has the new holder, which holds tensors now and did not before. If the holder
    # grows, further blocks of ``INPUTS`` count as kept blocks.
    known = {one.holder for one in base.keepers if one.grows or not head.grows_bytes}
    keeper = next((one for one in head.keepers if one.holder not in known or not one.holder), None)
    categories = (
        (KEPT, INPUTS) if keeper is not None and keeper.grows and head.grows_bytes > base.grows_bytes else (KEPT,)
    )
    kept = next((one for one in parts if one.more > 0 and one.category in categories), None)
    parts = [changed(one, category=KEPT, keeper=keeper) if one is kept else one for one in parts]
    lead = next((one for one in parts if one.change_bytes * change_bytes > 0), None)
    if lead is not None:  # the first change in the direction of the peak is its cause
        enabled = _without_gradients(base, lead.module) and lead.operator in head.with_gradients.get(lead.module, ())
        parts = [changed(lead, has_gradients=enabled), *(one for one in parts if one is not lead)]
    outlived = _outlived(base, head)
    is_known = lead is not None and lead.category in (KEPT, OUTLIVED)
    if outlived is not None and 0 < change_bytes <= outlived.size_bytes and not is_known:
        parts = [outlived, *parts]  # without these blocks there would be no higher peak at this moment
    if len(head.backward) == 1:
        by = Keeper(line=head.backward[0].partition(" ")[0])
        parts = [changed(one, keeper=by) if one.category == OUTLIVED else one for one in parts]
    problem = None
    if rest_bytes:
        problem = f"{format_signed(rest_bytes, format_bytes)} of the change were not there when this was recorded"
    return PeakExplanation(
        base=against,
        before_bytes=base.peak_bytes,
        now_bytes=base.peak_bytes + change_bytes - rest_bytes,
        parts=parts,
        problem=problem,
    )


def _outlived(base: Peak, head: Peak) -> PeakChange | None:
    """Return the blocks whose backward is over at the peak, and had yet to run at the peak before; None: no blocks.

    ``retain_graph=True`` makes them so, and so does a variable. They are alive at both peaks, and no change in bytes.
    """
    waited, others, spent = (
        groups_of(parts, lambda one: (one.operator, one.module))
        for parts in (
            [one for one in base.parts if one.category == ACTIVATIONS],
            [one for one in base.parts if one.category != ACTIVATIONS],  # some may outlive their backward there as well
            [one for one in head.parts if one.category == OUTLIVED],
        )
    )
    sizes = {
        key: min(_size(spent[key]) - _size(others.get(key, [])), _size(waited[key]))
        for key in spent.keys() & waited.keys()
    }
    sizes = {key: size_bytes for key, size_bytes in sizes.items() if size_bytes > 0}
    if not sizes:
        return None
    largest = max(spent[max(sizes, key=lambda key: (sizes[key], key))], key=lambda one: one.size_bytes)
    return PeakChange(
        category=OUTLIVED,
        change_bytes=0,
        size_bytes=sum(sizes.values()),
        places=len(sizes),
        operator=largest.operator,
        module=largest.module,
        line=largest.line,
        stack=largest.stack,
    )


def _size(parts: Iterable[PeakPart]) -> int:
    return sum(part.size_bytes for part in parts)


def _without_equal(changes: Iterable[PeakChange]) -> list[PeakChange]:
    """Drop pairs of changes that are the same blocks in another category: the peak is at another moment now.

    All newly kept blocks are summed up as one change, in which blocks that were at the peak before count zero bytes.
    """
    left: dict[Hashable, list[PeakChange]] = defaultdict(list)
    kept: list[tuple[PeakChange, int]] = []
    for one in sorted(changes, key=lambda one: one.category == KEPT):
        place = one.operator, one.module, one.line
        others = left[*place, -one.change_bytes, -one.more]
        equal = others.pop() if others and LET_GO not in (one.category, others[-1].category) else None
        if one.category == KEPT and one.more > 0:
            kept.append((one, 0 if equal else one.change_bytes))
        elif equal is None:
            left[*place, one.change_bytes, one.more].append(one)
    found = [one for some in left.values() for one in some]
    if kept:
        largest, _ = max(kept, key=lambda item: item[0].change_bytes)
        sums = sum(size_bytes for _, size_bytes in kept), sum(one.more for one, _ in kept)
        found.append(changed(largest, change_bytes=sums[0], more=sums[1], places=len(kept)))
    return found


def _changes(key: _Key, before: list[PeakPart], now: list[PeakPart]) -> list[PeakChange]:
    """Return the changes of blocks of one kind and place.

    Each stack has its own change if blocks are only more or only fewer; otherwise there is one change in all.
    """
    # Blocks that both sides have, whatever their lines, have not changed. They are compared by line, stack and size
    # first, and then, for lines that moved, by size alone.
    for likeness in (_whole, attrgetter("size_bytes", "blocks")):
        before, now = _without(before, now, likeness), _without(now, before, likeness)
    if before and now:
        return [_change(key, before, now)]
    by_stack = groups_of(before or now, lambda one: (one.line, *one.stack)).values()
    return [_change(key, some if before else [], [] if before else some) for some in by_stack]


def _change(key: _Key, gone: list[PeakPart], new: list[PeakPart]) -> PeakChange:
    change_bytes, more = (
        sum(getattr(one, field) for one in new) - sum(getattr(one, field) for one in gone)
        for field in ("size_bytes", "blocks")
    )
    largest = max((new if change_bytes > 0 else gone) or new or gone, key=lambda one: abs(one.size_bytes))
    category, operator, module = key
    return PeakChange(
        category=category,
        change_bytes=change_bytes,
        more=more,
        operator=operator,
        module=module,
        line=largest.line,
        stack=largest.stack,
    )


def _whole(one: PeakPart) -> Hashable:
    return one.line, tuple(one.stack), one.size_bytes, one.blocks


def _without(parts: list[PeakPart], others: list[PeakPart], likeness: Callable[[PeakPart], Hashable]) -> list[PeakPart]:
    left = Counter(map(likeness, others))
    found = []
    for one in parts:
        alike = likeness(one)
        if left[alike]:
            left[alike] -= 1
        else:
            found.append(one)
    return found
