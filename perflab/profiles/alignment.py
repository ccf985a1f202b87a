"""Aligns the pieces of two calls of the same work by name: which piece of one is which piece of the other. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher

STRANGER = -1
"""The place of a piece that has no counterpart in the other call."""
_REACH = 400
"""The greatest cost up to which a common continuation is searched for: the search time grows with the square of the
cost."""
_SHIFT = 2
"""Cost of each piece by which one skipped stretch is longer than the other. Layers repeat, so without this cost
skipping a whole layer would always fit too."""
_ALIKE = 8
"""How many equal names in a row show that both calls go on alike."""
_MOST_COMPARED = 300
"""Length in pieces of the longest differing stretch that is compared piece by piece."""


def aligned(names: Sequence[Hashable], others: Sequence[Hashable]) -> list[int]:
    """Return the index of each name in ``others``, or ``STRANGER`` for a name without a counterpart.

    The sequences should differ in a few stretches only: one operator more among 20,000 moves all later indices by one.
    If no common continuation is found within the cost limit, all names up to the common end are strangers, unless the
    stretches are short enough to be compared piece by piece.
    """
    if names == others:  # the case nearly always
        return list(range(len(names)))
    found = [STRANGER] * len(names)
    until, until_other = _common_end(names, others, found)
    at = other = 0
    while at < until and other < until_other:
        if names[at] == others[other]:
            found[at] = other
            skipped, skipped_other = 1, 1
        else:
            skipped, skipped_other = _differ(names[at:until], others[other:until_other])
            if max(skipped, skipped_other) <= _MOST_COMPARED:
                stretches = names[at : at + skipped], others[other : other + skipped_other]
                for a, b, size in SequenceMatcher(None, *stretches, autojunk=False).get_matching_blocks():
                    found[at + a : at + a + size] = range(other + b, other + b + size)
        at, other = at + skipped, other + skipped_other
    return found


def counterparts(names: Sequence[Hashable], others: Sequence[Hashable]) -> tuple[list[int], int]:
    """Return the index of each name's counterpart in another call of the same work, and the number of strangers.

    A stranger gets the index of the first equal name, or ``STRANGER`` if there is none.
    """
    found = aligned(names, others)
    first = {name: len(others) - 1 - at for at, name in enumerate(reversed(others))}
    indices = [at if at != STRANGER else first.get(name, STRANGER) for at, name in zip(found, names, strict=True)]
    return indices, found.count(STRANGER)


def _common_end(names: Sequence[Hashable], others: Sequence[Hashable], found: list[int]) -> tuple[int, int]:
    """Match the common end of both sequences behind their common beginning; return where the end begins in each."""
    shorter = min(len(names), len(others))
    begin = next((at for at in range(shorter) if names[at] != others[at]), shorter)
    length = 0
    while length < shorter - begin and names[-1 - length] == others[-1 - length]:
        length += 1
        found[-length] = len(others) - length
    return len(names) - length, len(others) - length


def _differ(names: Sequence[Hashable], others: Sequence[Hashable]) -> tuple[int, int]:
    """Return how many names of each to skip, at the least cost, until both go on alike; all names if none is found."""
    for cost in range(1, min(_REACH, (1 + _SHIFT) * (len(names) + len(others))) + 1):
        for shift in range(cost // (1 + _SHIFT) + 1):
            longer = cost - _SHIFT * shift
            for skipped, skipped_other in {(longer, longer - shift), (longer - shift, longer)}:
                if _alike(names, others, skipped, skipped_other):
                    return skipped, skipped_other
    return len(names), len(others)


def _alike(names: Sequence[Hashable], others: Sequence[Hashable], at: int, other: int) -> bool:
    if at > len(names) or other > len(others):
        return False
    return names[at : at + _ALIKE] == others[other : other + _ALIKE]
