"""Computes sums over a snapshot: live bytes by moment, blocks alive at a moment, alike blocks, blocks that stay. Pure.

All sums are exact: at each moment the categories add up to the live bytes, and the parts of the peak to the peak.
Blocks are named by the user's line in their call stack.
"""

from __future__ import annotations

import os.path
import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

from perflab.base.grouping import groups_of
from perflab.base.user_lines import own_rooms
from perflab.results.peak import CATEGORIES
from perflab.snapshots.model import Block, Frame, Snapshot, Stack

MOST_FRAMES = 5
"""The most frames of a call stack that are shown."""
_NOT_THE_USER_S = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages|lib/python3[.\d]*)/"
    r"|(?:^|/)torch/(?:nn|optim|autograd|utils|_\w+|cuda|distributed|amp|profiler)/|(?:^|/)torch/\w+\.py$"
    rf"|(?:^|/)perflab/(?:{'|'.join(room.name for room in own_rooms())})/"
    r"|(?:^|/)(?:_pytest|pluggy)/"
    r"|^<|^\?\?|\.(?:cpp|cc|cxx|c|cu|cuh|h|hpp)$|\.[sS]$|\.so(?:[.\d]*)$|^$|importlib"
    r"|(?:^|/)bin/[\w.-]+(?<!\.py)$"
)
_OPERATOR = re.compile(r"\bat::_ops::(\w+)::")


@lru_cache(maxsize=100_000)
def is_user_s(file: str) -> bool:
    """Whether a file is the user's: outside of Python, PyTorch, installed packages and perflab's harness."""
    return _NOT_THE_USER_S.search(file) is None


def user_frame(stack: Stack) -> Frame | None:
    """Return the innermost frame of the user's code; without one, the innermost frame of Python, else of C++.

    None: the stack is empty.
    """
    first = None
    for frame in stack:
        if is_user_s(frame.file):
            return frame
        if first is None and frame.file.endswith(".py"):
            first = frame
    return first or (stack[0] if stack else None)


Thread = tuple[str, str]
"""The identity of a thread: file and function of its outermost call of Python."""


def root_of(stack: Stack) -> Thread | None:
    """Return the file and function with which a stack's thread begins; None if the stack has no call of Python."""
    for frame in reversed(stack):
        if frame.file.endswith(".py") or frame.file.startswith("<"):
            return frame.file, frame.function
    return None


def line_of(stack: Stack, folder: str = "") -> str:
    """Return the user's line, such as ``model.py:190``, relative to ``folder``; empty if no line is known.

    For a stack of C++ frames alone, return the operator or the function, such as ``aten::add (C++)``.
    """
    frame = user_frame(stack)
    if frame is None or not frame.file:
        return ""
    if not is_user_s(frame.file) and not frame.file.endswith(".py"):  # only C++ frames, as in autograd's threads
        operator = next((found[1] for one in stack if (found := _OPERATOR.search(one.function))), "")
        return f"aten::{operator} (C++)" if operator else f"{frame.function} (C++)" if frame.function else ""
    file = frame.file.removeprefix(folder)
    return f"{file}:{frame.line}" if frame.line else file


def shown_stack(stack: Stack) -> str:
    """Format the user's calls, the innermost first: ``model.py:190 forward < train.py:12 main``."""
    frames = [frame for frame in stack if is_user_s(frame.file)]
    if not frames and not any(frame.file.endswith(".py") for frame in stack[:1]) and len(stack) > 1:
        return line_of(stack)
    frames = frames or list(stack)
    calls = [_call(frame) for frame in frames[:MOST_FRAMES]]
    return " < ".join(calls) + (" < …" if len(frames) > MOST_FRAMES else "")


def other_calls(stack: Stack) -> list[str]:
    """Return the calls that ``line_of`` does not name: the user's other calls, then those of libraries."""
    named = user_frame(stack)
    frames = [frame for frame in stack if frame is not named]
    return [_call(frame) for frame in sorted(frames, key=lambda frame: not is_user_s(frame.file))]


def _call(frame: Frame) -> str:
    place = f"{frame.file.rsplit('/', 1)[-1]}:{frame.line} " if frame.file else ""
    return f"{place}{frame.function}".strip()


_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")
_IN_A_NAME = re.compile(r"(?<=[. ])\d+(?=[. )]|$)")
_NUMBERS = re.compile(r"(?<![^.])\d+(?![^.])")


class Part(NamedTuple):
    """The sum over blocks that share a key: their bytes and their number."""

    size_bytes: int
    blocks: int


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


def elapsed_ns(snapshot: Snapshot, moment: int) -> int | None:
    """Return the nanoseconds from the first allocation or free to a moment; None if the file has no times."""
    if not len(snapshot.times_ns):
        return None
    return snapshot.times_ns[moment - 1] - snapshot.times_ns[0] if moment else 0


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


def once_a_stack(of: Callable[[Stack], _Value]) -> Callable[[Stack], _Value]:
    """Return a function of call stacks that keeps its values: stacks are shared among blocks, so there are few."""
    known: dict[int, tuple[Stack, _Value]] = {}

    def value(stack: Stack) -> _Value:
        found = known.get(id(stack))
        if found is None:
            found = known[id(stack)] = stack, of(stack)
        return found[1]

    return value


Line = Callable[[Stack], str]
"""A function that names the user's line of a call stack, such as ``model.py:190``; empty for an empty stack."""


def lines_in(snapshot: Snapshot) -> Line:
    """Return a function that names lines relative to the folder that contains all of the snapshot's lines.

    If paths are relative or share no folder, lines have whole paths.
    """
    stacks = {id(block.stack): block.stack for block in snapshot.blocks}.values()
    files = {frame.file for stack in stacks for frame in stack if is_user_s(frame.file)}
    folder = ""
    if files and all(file.startswith("/") for file in files):
        folder = os.path.commonpath([os.path.dirname(file) for file in files]).rstrip("/") + "/"
    return once_a_stack(lambda stack: line_of(stack, folder if folder != "/" else ""))


def alike_keys() -> Callable[[Block], Hashable]:
    """Return a function whose values are equal for alike blocks: of one size, stack, category, module and shape.

    Their layers may differ.
    """
    stack_of = once_a_stack(layerless)

    def key(block: Block) -> Hashable:
        stack = stack_of(block.stack) if block.module else id(block.stack)
        return block.size_bytes, stack, block.category, module_of(block), block.tensor

    return key


def alike(blocks: Iterable[Block]) -> list[list[Block]]:
    """Group alike blocks, which have one size and were allocated by one call stack; the most bytes come first."""
    same = groups_of(blocks, alike_keys()).values()
    return sorted(same, key=lambda together: -together[0].size_bytes * len(together))


def outliving(snapshot: Snapshot) -> list[tuple[list[Block], int, int]]:
    """Return groups of alike blocks that were alive when the step that made them had ended, the most bytes first.

    Each group comes with the number of steps that made such blocks and left them alive, and the number of these blocks
    that are alive at the end of the recording. Empty without steps.
    """
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
        (ones, len({step_of[id(block)] for block in ones}), sum(block.freed_at is None for block in ones))
        for ones in alike(stay)
    ]
