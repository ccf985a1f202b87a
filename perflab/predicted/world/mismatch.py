"""Finds where the collectives of two ranks do not match, which would hang a real group.

The collectives of all groups that hold both ranks have to be the same in both, in the same order: kind, dtype, size and
group. What a rank sends to the other has to be what that one receives, message by message. Groups without one of the
two say nothing about this pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, zip_longest

from perflab.base.data import changed
from perflab.measure.counts.collectives import Collective
from perflab.predicted.world.lone_rank import lone_rank
from perflab.results.predicted import Mismatch, PredictedCase
from perflab.units import format_bytes

_UNEVEN = ("gather", "scatter", "all_to_all")
"""Kinds whose bytes differ by rank: a root has the whole, or the parts are unequal."""
_MESSAGES = ("send", "recv")
_UNCOMPARED = "the collectives of the rank are compared with no other rank's: one rank was played"
_NO_LINE = "a line in C++"


def find_mismatches(ranks: Mapping[int, Sequence[Collective]]) -> list[Mismatch]:
    """Return the first mismatch of each pair of ranks.

    Args:
        ranks: the collectives of each rank that was played, in the order in which they began.
    """
    found = []
    for first, second in combinations(sorted(ranks), 2):
        one = _shared(ranks, first, second) or _sent(ranks, first, second) or _sent(ranks, second, first)
        found += [one] if one is not None else []
    return found


def with_mismatches(case: PredictedCase) -> PredictedCase:
    """Return a dry run's case with the mismatches between the rank that this process plays and those played before.

    The case's body has ended: what its fixtures communicate later is not compared.
    """
    alone = lone_rank()
    if alone is None or case.now.dry_run is None:
        return case
    alone.collectives = list(alone.seen.collectives)
    found = find_mismatches({alone.rank: alone.collectives, **alone.others})
    notes = case.now.notes if alone.others else [*case.now.notes, _UNCOMPARED]
    return changed(case, now=changed(case.now, notes=notes, dry_run=changed(case.now.dry_run, mismatches=found)))


def _shared(ranks: Mapping[int, Sequence[Collective]], first: int, second: int) -> Mismatch | None:
    both = [
        [one for one in ranks[rank] if one.kind not in _MESSAGES and {first, second} <= set(one.ranks)]
        for rank in (first, second)
    ]
    for number, (a, b) in enumerate(zip_longest(*both), start=1):
        if a is None or b is None or _key(a) != _key(b):
            return _mismatch(number, (first, a), (second, b))
    return None


def _sent(ranks: Mapping[int, Sequence[Collective]], sender: int, receiver: int) -> Mismatch | None:
    if any(one.kind == "recv" and one.peer is None for one in ranks[receiver]):
        return None  # it takes what comes, from any rank
    sent = [one for one in ranks[sender] if one.kind == "send" and one.peer == receiver]
    received = [one for one in ranks[receiver] if one.kind == "recv" and one.peer == sender]
    for number, (a, b) in enumerate(zip_longest(sent, received), start=1):
        if a is None or b is None or (a.dtype, a.size_bytes) != (b.dtype, b.size_bytes):
            return _mismatch(number, (sender, a), (receiver, b))
    return None


def _key(one: Collective) -> tuple[object, ...]:
    return one.kind, one.dtype, one.ranks, None if one.kind in _UNEVEN else one.size_bytes


def _mismatch(number: int, first: tuple[int, Collective | None], second: tuple[int, Collective | None]) -> Mismatch:
    (rank, one), (other, two) = first, second
    return Mismatch(
        number=number,
        rank=rank,
        collective=_words(one),
        line=_line(one),
        other_rank=other,
        other_collective=_words(two),
        other_line=_line(two),
    )


def _words(one: Collective | None) -> str:
    if one is None:
        return ""
    if one.peer is not None:
        return f"{one.kind} of {format_bytes(one.size_bytes)} {one.dtype}, rank {one.peer}"
    told = f" of {format_bytes(one.size_bytes)} {one.dtype}" if one.dtype else ""
    return f"{one.kind}{told}, {f'ranks {one.group}' if one.group else 'all ranks'}"


def _line(one: Collective | None) -> str:
    return "" if one is None else one.line or _NO_LINE
