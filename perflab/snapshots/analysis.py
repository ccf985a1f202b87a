"""Computes sums over a snapshot: live bytes by moment, blocks alive at a moment, alike blocks, blocks that stay. Pure.

All sums are exact: at each moment the categories add up to the live bytes, and the parts of the peak to the peak.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from perflab.results.peak import CATEGORIES
from perflab.snapshots.model import Block, Snapshot, Stack
from perflab.snapshots.stacks import common_folder, line_of

_Key = TypeVar("_Key", bound=Hashable)
_IN_A_NAME = re.compile(r"(?<=[. ])\d+(?=[. )]|$)")
_NUMBERS = re.compile(r"(?<![^.])\d+(?![^.])")


class Part(NamedTuple):
    """The sum over blocks that share a key: their bytes and their number."""

    size_bytes: int
    blocks: int


class Alike(NamedTuple):
    """Blocks of one size that were allocated by one call stack."""

    size_bytes: int
    """Bytes of each block."""
    blocks: Sequence[Block]

    @property
    def total_bytes(self) -> int:
        """Bytes of all blocks together."""
        return self.size_bytes * len(self.blocks)


def levels(snapshot: Snapshot) -> array[int]:
    """Return the live bytes at each moment, from 0 on."""
    changes = array("q", bytes(8 * (snapshot.moments + 1)))
    for block in snapshot.blocks:
        changes[block.allocated_at] += block.size_bytes
        if block.freed_at is not None:
            changes[block.freed_at] -= block.size_bytes
    for moment in range(1, len(changes)):
        changes[moment] += changes[moment - 1]
    return changes


def peak_moment(level: Sequence[int]) -> int:
    """Return the first moment at which the most bytes are alive."""
    return level.index(max(level))


def reserved_at(snapshot: Snapshot, moment: int) -> int | None:
    """Return the bytes that the allocator had reserved from the device at a moment; None if unknown.

    The sum goes backwards from the end, because a recording may lack its beginning.
    """
    if not snapshot.segments or not snapshot.is_whole:
        return None
    later = sum(change for after, change in snapshot.segment_changes if after >= moment)
    return sum(segment.size_bytes for segment in snapshot.segments) - later


def alive_at(snapshot: Snapshot, moment: int) -> list[Block]:
    """Return the blocks that are alive at a moment, in order of allocation."""
    return [block for block in snapshot.blocks if block.is_there(moment)]


def parts_by(blocks: Iterable[Block], key: Callable[[Block], _Key]) -> dict[_Key, Part]:
    """Sum up the blocks by key, the key with the most bytes first."""
    found: dict[_Key, Part] = {}
    for block in blocks:
        size, count = found.get(name := key(block), (0, 0))
        found[name] = Part(size + block.size_bytes, count + 1)
    return dict(sorted(found.items(), key=lambda item: -item[1].size_bytes))


def categories_of(snapshot: Snapshot) -> list[str]:
    """Return the categories of the snapshot's blocks, in the order in which they are listed."""
    there = {block.category for block in snapshot.blocks}
    return [*(one for one in CATEGORIES if one in there), *sorted(there - {*CATEGORIES})]


def module_of(block: Block) -> str:
    """Return the block's module with ``*`` for numbers of layers: ``blocks.*.attention``."""
    return _NUMBERS.sub("*", block.module)


def shared_module(blocks: Sequence[Block]) -> str:
    """Return the module of alike blocks, with ``*`` for the numbers of layers if the blocks are of several layers."""
    first = blocks[0]
    return first.module if all(block.module == first.module for block in blocks) else module_of(first)


def layerless(stack: Stack) -> Stack:
    """Return a stack with ``*`` for numbers of layers, as predictions have the module in the function's name."""
    return tuple(frame._replace(function=_IN_A_NAME.sub("*", frame.function)) for frame in stack)


class Lines:
    """Finds the user's line of a block, relative to the folder that contains all of a snapshot's lines."""

    def __init__(self, snapshot: Snapshot) -> None:
        # Stacks are shared among blocks, so there are few of them.
        stacks = {id(block.stack): block.stack for block in snapshot.blocks}
        self._folder = common_folder(stacks.values())
        self._known: dict[int, tuple[Stack, str]] = {}

    def __call__(self, block: Block) -> str:
        """Return the line of a block, such as ``model.py:190``; empty if no stack was recorded."""
        known = self._known.get(id(block.stack))
        if known is None:
            known = self._known[id(block.stack)] = block.stack, line_of(block.stack, self._folder)
        return known[1]


class AlikeKeys:
    """Makes the key that alike blocks share: size, stack, category, module and shape, whatever their layer."""

    def __init__(self) -> None:
        # Stacks are shared among blocks, which keep them alive.
        self._stacks: dict[tuple[int, bool], object] = {}

    def __call__(self, block: Block) -> Hashable:
        """Return a key that is equal for two blocks if the blocks are alike."""
        has_module = bool(block.module)
        known = id(block.stack), has_module
        stack = self._stacks.get(known)
        if stack is None:
            stack = self._stacks[known] = layerless(block.stack) if has_module else id(block.stack)
        return block.size_bytes, stack, block.category, module_of(block), block.tensor


def alike(blocks: Iterable[Block]) -> list[Alike]:
    """Group alike blocks, the group with the most bytes first."""
    found: dict[Hashable, list[Block]] = {}
    key = AlikeKeys()
    for block in blocks:
        found.setdefault(key(block), []).append(block)
    same = [Alike(together[0].size_bytes, together) for together in found.values()]
    return sorted(same, key=lambda one: -one.total_bytes)


class Stays(NamedTuple):
    """Alike blocks that were alive when the step that made them had ended."""

    alike: Alike
    steps: int
    """The number of steps that made such blocks and left them alive."""
    left: int
    """The number of these blocks that are alive at the end of the recording."""


def outliving(snapshot: Snapshot) -> list[Stays]:
    """Return groups of blocks that outlive the step that made them, the most bytes first; empty without steps."""
    ends = [step.end for step in snapshot.steps]
    step_of: dict[int, int] = {}
    stay = []
    for block in snapshot.blocks:
        number = bisect_left(ends, block.allocated_at)
        is_within = number < len(ends) and block.allocated_at > snapshot.steps[number].start
        if is_within and block.is_there(ends[number]):
            stay.append(block)
            step_of[id(block)] = number
    return [
        Stays(
            one,
            len({step_of[id(block)] for block in one.blocks}),
            sum(block.freed_at is None for block in one.blocks),
        )
        for one in alike(stay)
    ]
