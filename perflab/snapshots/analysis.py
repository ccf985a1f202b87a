"""Sums over a snapshot: live bytes at every moment, what is alive at one, alike blocks, blocks that stay. Pure.

All sums are exact: at each moment the categories add up to the live bytes, and the parts of the peak to the peak.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from perflab.snapshots.model import UNKNOWN, Block, Snapshot, Stack
from perflab.snapshots.stacks import common_folder, line_of

CATEGORIES = (
    "parameters",
    "buffers",
    "gradients",
    "optimizer state",
    "inputs",
    "activations",
    "temporaries",
    "workspace",
    UNKNOWN,
)
"""In the order in which they are stacked and listed; others come after them by name."""
_Key = TypeVar("_Key", bound=Hashable)
_IN_A_NAME = re.compile(r"(?<=[. ])\d+(?=[. )]|$)")
_NUMBERS = re.compile(r"(?<![^.])\d+(?![^.])")


class Part(NamedTuple):
    """Blocks that share something."""

    size_bytes: int
    blocks: int


class Alike(NamedTuple):
    """Blocks of one size that one stack asked for."""

    size_bytes: int
    """Of each."""
    blocks: Sequence[Block]

    @property
    def total_bytes(self) -> int:
        """Of all of them."""
        return self.size_bytes * len(self.blocks)


def levels(snapshot: Snapshot) -> array[int]:
    """Live bytes at each moment, from 0 on."""
    changes = array("q", bytes(8 * (snapshot.moments + 1)))
    for block in snapshot.blocks:
        changes[block.allocated_at] += block.size_bytes
        if block.freed_at is not None:
            changes[block.freed_at] -= block.size_bytes
    for moment in range(1, len(changes)):
        changes[moment] += changes[moment - 1]
    return changes


def peak_moment(level: Sequence[int]) -> int:
    """The first moment at which the most is alive."""
    return level.index(max(level))


def reserved_at(snapshot: Snapshot, moment: int) -> int | None:
    """What the allocator had taken of the device then; None where that cannot be said.

    From the end backwards: a recording that was cut off lacks its beginning.
    """
    if not snapshot.segments or not snapshot.is_whole:
        return None
    later = sum(change for after, change in snapshot.segment_changes if after >= moment)
    return sum(segment.size_bytes for segment in snapshot.segments) - later


def alive_at(snapshot: Snapshot, moment: int) -> list[Block]:
    """The blocks that are there at a moment, in the order in which they came."""
    return [block for block in snapshot.blocks if block.is_there(moment)]


def parts_by(blocks: Iterable[Block], key: Callable[[Block], _Key]) -> dict[_Key, Part]:
    """Sums of blocks that have the same key, the largest first."""
    found: dict[_Key, Part] = {}
    for block in blocks:
        size, count = found.get(name := key(block), (0, 0))
        found[name] = Part(size + block.size_bytes, count + 1)
    return dict(sorted(found.items(), key=lambda item: -item[1].size_bytes))


def categories_of(snapshot: Snapshot) -> list[str]:
    """The categories that there are, in their order."""
    there = {block.category for block in snapshot.blocks}
    return [*(one for one in CATEGORIES if one in there), *sorted(there - {*CATEGORIES})]


def module_of(block: Block) -> str:
    """The block's module with ``*`` for numbers of layers: ``blocks.*.attention``."""
    return _NUMBERS.sub("*", block.module)


def shared_module(blocks: Sequence[Block]) -> str:
    """The module of all of them, with ``*`` for the numbers of layers where they are of several."""
    first = blocks[0]
    return first.module if all(block.module == first.module for block in blocks) else module_of(first)


def layerless(stack: Stack) -> Stack:
    """With ``*`` for numbers of layers: in predictions the module stands in the function's name."""
    return tuple(frame._replace(function=_IN_A_NAME.sub("*", frame.function)) for frame in stack)


class Lines:
    """The user's line of a block, relative to the folder that all lines of a snapshot lie in."""

    def __init__(self, snapshot: Snapshot) -> None:
        # Stacks are shared among blocks, so there are few of them.
        stacks = {id(block.stack): block.stack for block in snapshot.blocks}
        self._folder = common_folder(stacks.values())
        self._known: dict[int, tuple[Stack, str]] = {}

    def __call__(self, block: Block) -> str:
        """``model.py:190``; empty where no stack was recorded."""
        known = self._known.get(id(block.stack))
        if known is None:
            known = self._known[id(block.stack)] = block.stack, line_of(block.stack, self._folder)
        return known[1]


class AlikeKeys:
    """What alike blocks share: size, stack, category, module and shape; layers count as one place."""

    def __init__(self) -> None:
        # Stacks are shared among blocks, which keep them alive.
        self._stacks: dict[tuple[int, bool], object] = {}

    def __call__(self, block: Block) -> Hashable:
        """The same for two blocks if they are alike."""
        has_module = bool(block.module)
        known = id(block.stack), has_module
        stack = self._stacks.get(known)
        if stack is None:
            stack = self._stacks[known] = layerless(block.stack) if has_module else id(block.stack)
        return block.size_bytes, stack, block.category, module_of(block), block.tensor


def alike(blocks: Iterable[Block]) -> list[Alike]:
    """Alike blocks together, the largest sum first."""
    found: dict[Hashable, list[Block]] = {}
    key = AlikeKeys()
    for block in blocks:
        found.setdefault(key(block), []).append(block)
    same = [Alike(together[0].size_bytes, together) for together in found.values()]
    return sorted(same, key=lambda one: -one.total_bytes)


class Stays(NamedTuple):
    """Alike blocks that were there when the step that made them had ended."""

    alike: Alike
    steps: int
    """In how many steps such blocks were made and left."""
    left: int
    """How many of them are there at the end of the recording."""


def outliving(snapshot: Snapshot) -> list[Stays]:
    """Blocks that outlive the step that made them, the largest sum first; nothing where there are no steps."""
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
