"""Aligns what two calls of the same work did, by its names: which piece of one is which of the other. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher

STRANGER = -1
"""Stands for a piece that the other call does not have at this place."""
_REACH = 400
"""Cost beyond which two stretches are not taken for each other's: a search for more takes time with its square."""
_SHIFT = 2
"""What each piece costs by which one stretch is longer. Layers repeat: to skip a whole one would always fit too."""
_ALIKE = 8
"""Names in a row that say that they do."""
_MOST_COMPARED = 300
"""Pieces up to which a stretch in which they differ is compared piece by piece."""


def aligned(names: Sequence[Hashable], others: Sequence[Hashable]) -> list[int]:
    """The place of each name among the others, or ``STRANGER``.

    Both go on alike but for a few stretches: an operator more in one of 20,000 moves all places behind it by one. Where
    they do not go on alike soon, everything up to their common end is strange.
    """
    if names == others:  # nearly always
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


def _common_end(names: Sequence[Hashable], others: Sequence[Hashable], found: list[int]) -> tuple[int, int]:
    """Fill in the end that both have, behind the beginning that both have; returns where it begins in each."""
    shorter = min(len(names), len(others))
    begin = next((at for at in range(shorter) if names[at] != others[at]), shorter)
    length = 0
    while length < shorter - begin and names[-1 - length] == others[-1 - length]:
        length += 1
        found[-length] = len(others) - length
    return len(names) - length, len(others) - length


def _differ(names: Sequence[Hashable], others: Sequence[Hashable]) -> tuple[int, int]:
    """How many of each to skip until they go on alike, at the least cost; all of them where they do not."""
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
