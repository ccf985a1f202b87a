"""Explains why one peak is higher than another: which blocks are new, and where they are allocated. Pure.

A line's number changes when something above the line is edited, so blocks are compared whatever their line. Of the
lines of one operator in one module, the line is named that allocates what the other peak has on no line.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence

from perflab.base.data import changed
from perflab.results.peak import INPUTS, KEPT, KEPT_BEFORE, LET_GO, Peak, PeakChange, PeakExplanation, PeakPart
from perflab.units import format_bytes, format_signed

_Key = tuple[str, str, str]
"""Category, operator and module of blocks."""


def explain_peak(base: Peak, head: Peak, against: str, change_bytes: int) -> PeakExplanation:
    """Explain what makes the peak of ``head`` higher than the peak of ``base``.

    ``against`` is the name of the base in texts; ``change_bytes`` is the change by the gate's own measurement.
    """
    before, now = _by_key(base.parts), _by_key(head.parts)
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
    parts = _with_keeper(parts, base, head)
    lead = next((one for one in parts if one.change_bytes * change_bytes > 0), None)
    if lead is not None:  # the first change in the direction of the peak is its cause
        parts = [lead, *(one for one in parts if one is not lead)]
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


def _with_keeper(parts: Sequence[PeakChange], base: Peak, head: Peak) -> list[PeakChange]:
    """Return the changes, with the new holder in the largest change of kept blocks.

    The new holder is one that holds tensors now and did not before. If the holder grows, further blocks of ``INPUTS``
    count as kept blocks.
    """
    known = {one.holder for one in base.keepers if one.grows or not head.grows_bytes}
    keeper = next((one for one in head.keepers if one.holder not in known or not one.holder), None)
    grows = keeper is not None and keeper.grows and head.grows_bytes > base.grows_bytes
    kept = [one for one in parts if one.more > 0 and (one.category == KEPT or (grows and one.category == INPUTS))]
    return [changed(one, category=KEPT, keeper=keeper) if one in kept[:1] else one for one in parts]


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


def _by_key(parts: Iterable[PeakPart]) -> dict[_Key, list[PeakPart]]:
    found: dict[_Key, list[PeakPart]] = defaultdict(list)
    for one in parts:
        found[one.category, one.operator, one.module].append(one)
    return found


def _changes(key: _Key, before: list[PeakPart], now: list[PeakPart]) -> list[PeakChange]:
    """Return the changes of blocks of one kind and place.

    Each stack has its own change if blocks are only more or only fewer; otherwise there is one change in all.
    """
    # Blocks that both sides have, whatever their lines, have not changed.
    gone, new = (_unlike(some, others) for some, others in ((before, now), (now, before)))
    if gone and new:
        return [_change(key, gone, new)]
    by_stack: dict[tuple[str, ...], list[PeakPart]] = defaultdict(list)
    for one in gone or new:
        by_stack[one.line, *one.stack].append(one)
    return [_change(key, some if gone else [], [] if gone else some) for some in by_stack.values()]


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


def _unlike(parts: list[PeakPart], others: list[PeakPart]) -> list[PeakPart]:
    """Return the parts that ``others`` lack.

    Parts are compared by line, stack and size first, and then, for lines that moved, by size alone.
    """
    return _without(_without(parts, others, _whole), _without(others, parts, _whole), _size)


def _whole(one: PeakPart) -> Hashable:
    return one.line, tuple(one.stack), one.size_bytes, one.blocks


def _size(one: PeakPart) -> Hashable:
    return one.size_bytes, one.blocks


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
