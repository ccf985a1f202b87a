"""Splits the timeline of live bytes into bands: by category, or by the largest allocations at the peak. Pure.

Each block is in one band, so at every moment the bands add up to the live bytes, whichever way they are stacked.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from perflab.base.grouping import groups_of
from perflab.snapshots.analysis import (
    Alike,
    Line,
    alike,
    alike_keys,
    alive_at,
    categories_of,
    levels,
    lines_in,
    module_of,
    other_calls,
    peak_moment,
    shared_module,
)
from perflab.snapshots.difference import lines_of_both
from perflab.snapshots.model import Block, Snapshot
from perflab.units import format_bytes

MOST_LARGEST = 12
"""The most bands for blocks of one size and stack, as more colours cannot be distinguished; the rest is one band."""
REST = "all other blocks"


class Stacking(NamedTuple):
    """The names of a picture's bands, from the bottom up, and the band of each block."""

    key: str
    """The way of stacking: ``category`` or ``largest``."""
    names: tuple[str, ...]
    band_of: Sequence[int]
    """The band of each of the snapshot's blocks, in the order of the blocks."""


class Point(NamedTuple):
    """A stretch of moments in a picture, drawn at the moment of the stretch at which the most bytes are alive."""

    start: int
    end: int
    """The last moment of the stretch."""
    moment: int
    by_band: tuple[int, ...]
    """Live bytes at ``moment``, in the order of the stacking's names."""


def by_category(snapshot: Snapshot) -> Stacking:
    """Return a stacking with one band for each category."""
    names = tuple(categories_of(snapshot))
    number = {name: position for position, name in enumerate(names)}
    return Stacking("category", names, array("i", (number[block.category] for block in snapshot.blocks)))


def by_largest(snapshot: Snapshot) -> Stacking:
    """Return a stacking by the largest groups of blocks of one size and stack at the peak, with a band for the rest."""
    found, key = alike(alive_at(snapshot, peak_moment(levels(snapshot))))[:MOST_LARGEST], alike_keys()
    line = lines_in(snapshot)
    number = {key(one.blocks[0]): position for position, one in enumerate(found)}
    bands = array("i", (number.get(key(block), len(found)) for block in snapshot.blocks))
    rest = (REST,) if len(found) in bands or not found else ()
    names = told_apart([_named(one, line) for one in found], [_differences(one) for one in found])
    counted = (f"{len(one.blocks):,} × {name}" for one, name in zip(found, names, strict=True))
    return Stacking("largest", (*counted, *rest), bands)


def _named(one: Alike, line: Line) -> str:
    first = one.blocks[0]
    return _band(one.size_bytes, first.category, first.tensor, shared_module(one.blocks), line(first.stack))


def _band(size_bytes: int, category: str, tensor: str, module: str, line: str) -> str:
    about = (f"{format_bytes(size_bytes)} {category}", tensor, module and f"in {module}", line)
    return ", ".join(text for text in about if text)


def _differences(one: Alike) -> list[str]:
    return [f", {one.size_bytes:,} B each", *(f" < {call}" for call in other_calls(one.blocks[0].stack))]


def told_apart(names: Sequence[str], differences: Sequence[Sequence[str]]) -> list[str]:
    """Return the names; equal names get the first of their ``differences`` that differ appended, and more if needed."""
    found = list(names)
    for place in range(max(map(len, differences), default=0)):
        for numbers in groups_of(range(len(found)), found.__getitem__).values():
            more = ["".join(differences[number][place : place + 1]) for number in numbers]
            if len({*more}) > 1:
                for number, text in zip(numbers, more, strict=True):
                    found[number] += text
    return found


_Shared = tuple[int, str, str, str, str]
"""Size, category, shape, module and line of blocks that two snapshots may both have."""


def by_largest_of_both(before: Snapshot, after: Snapshot) -> tuple[Stacking, Stacking]:
    """Return two snapshots' stackings with the same bands: the largest groups of either peak, and one for the rest.

    Blocks are alike if they have one size and one row in a comparison, because stacks of two commits are never equal.
    """
    both = before, after
    at_peak = [alive_at(one, peak_moment(levels(one))) for one in both]
    has_modules, has_tensors = (
        all(any(map(has, ones)) for ones in at_peak) for has in map(attrgetter, ("module", "tensor"))
    )

    def keyed(line: Line) -> Callable[[Block], _Shared]:
        def key(block: Block) -> _Shared:
            tensor, module = block.tensor if has_tensors else "", module_of(block) if has_modules else ""
            return block.size_bytes, block.category, tensor, module, line(block.stack)

        return key

    keys = [keyed(line) for line in lines_of_both(at_peak[0], at_peak[1], both)]
    counts = [Counter(map(key, ones)) for key, ones in zip(keys, at_peak, strict=True)]
    by_size = sorted(counts[0] | counts[1], key=lambda key: -key[0] * max(count[key] for count in counts))
    largest = by_size[:MOST_LARGEST]
    number = {key: position for position, key in enumerate(largest)}
    bands = [
        array("i", (number.get(key(block), len(largest)) for block in snapshot.blocks))
        for key, snapshot in zip(keys, both, strict=True)
    ]
    rest = (REST,) if any(len(largest) in one for one in bands) or not largest else ()
    names = told_apart([_band(*key) for key in largest], [[f", {key[0]:,} B each"] for key in largest])
    first, second = (
        Stacking(
            "largest", (*(f"{count[key]:,} × {name}" for key, name in zip(largest, names, strict=True)), *rest), one
        )
        for count, one in zip(counts, bands, strict=True)
    )
    return first, second


def thinned(snapshot: Snapshot, points: int, stacking: Stacking) -> list[Point]:
    """Reduce the timeline to at most ``points`` stretches, each drawn at its highest moment, so that the peak is kept.

    The chosen moments do not depend on the stacking.
    """
    columns = [array("q", bytes(8 * (snapshot.moments + 1))) for _ in stacking.names]
    for block, band in zip(snapshot.blocks, stacking.band_of, strict=True):
        columns[band][block.allocated_at] += block.size_bytes
        if block.freed_at is not None:
            columns[band][block.freed_at] -= block.size_bytes
    width = max(1, -(-(snapshot.moments + 1) // points))
    now, found = [0] * len(columns), list[Point]()
    for start in range(0, snapshot.moments + 1, width):
        end = min(start + width, snapshot.moments + 1)
        best, best_moment, best_level = tuple(now), start, -1
        for moment in range(start, end):
            for number, column in enumerate(columns):
                if column[moment]:
                    now[number] += column[moment]
            if (level := sum(now)) > best_level:
                best, best_moment, best_level = tuple(now), moment, level
        found.append(Point(start, end - 1, best_moment, best))
    return found
