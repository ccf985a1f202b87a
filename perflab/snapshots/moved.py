"""Matches the lines of two snapshots, whose folders differ and whose lines are moved by edits above. Pure.

Sums do not depend on the match: it only decides which blocks share a row of a comparison.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from difflib import SequenceMatcher

from perflab.snapshots.analysis import Lines
from perflab.snapshots.model import Block, Snapshot
from perflab.snapshots.stacks import user_frame

_Function = tuple[str, str]
"""File and name of a function."""


def lines_of_both(
    old: Sequence[Block], new: Sequence[Block], snapshots: tuple[Snapshot, Snapshot]
) -> tuple[Callable[[Block], str], Callable[[Block], str]]:
    """Return a function for each side that names a block's line; an old line gets its new name if it still exists.

    An old line that is gone, and whose number now belongs to another old line, is named ``model.py:11 (before)``.
    """
    line_before, line_now = (Lines(snapshot) for snapshot in snapshots)
    shown = {_place(block): line_now(block) for block in new}
    files = _same_files({file for file, _, _ in map(_place, old)}, {file for file, _, _ in shown})
    then, now = _lines_by_function(old, files), _lines_by_function(new, {})
    moved = {
        (function, line): other
        for function in then.keys() & now.keys()
        for line, other in _aligned(then[function], now[function])
    }
    names_of_moved = {shown[*function, other] for (function, line), other in moved.items() if other != line}

    def named(block: Block) -> str:
        file, name, line = _place(block)
        function = files.get(file, file), name
        found = shown.get((*function, moved.get((function, line), line))) or line_before(block)
        if found in names_of_moved and (function, line) not in moved:  # another line has this number now
            return f"{line_before(block)} (before)"
        return found

    return named, line_now


def _place(block: Block) -> tuple[str, str, int]:
    frame = user_frame(block.stack)
    return (frame.file, frame.function, frame.line) if frame else ("", "", 0)


def _same_files(old: Iterable[str], new: Iterable[str]) -> dict[str, str]:
    """Map each old file that moved to the new file of its name that shares the most folders, counted from the end."""
    by_name: dict[str, list[str]] = defaultdict(list)
    there = {*new}
    for file in sorted(there):
        by_name[file.rsplit("/", 1)[-1]].append(file)
    found = {}
    for file in old:
        others = by_name[file.rsplit("/", 1)[-1]]
        if file not in there and others:
            found[file] = max(others, key=lambda other: _shared(file, other))
    return found


def _shared(file: str, other: str) -> int:
    count = 0
    for one, two in zip(reversed(file.split("/")), reversed(other.split("/")), strict=False):
        if one != two:
            break
        count += 1
    return count


_Lines = dict[int, Counter[tuple[str, int]]]
"""The number of blocks by category and size, for each line."""


def _lines_by_function(blocks: Iterable[Block], files: dict[str, str]) -> dict[_Function, _Lines]:
    found: dict[_Function, _Lines] = defaultdict(lambda: defaultdict(Counter))
    for block in blocks:
        file, name, line = _place(block)
        found[files.get(file, file), name][line][block.category, block.size_bytes] += 1
    return found


def _aligned(old: _Lines, new: _Lines) -> Iterable[tuple[int, int]]:
    """Pair the lines of a function on both sides: by the blocks that each line made, then by the order of the lines."""
    if old.keys() == new.keys():
        return [(line, line) for line in old]
    before, now = sorted(old), sorted(new)
    made, makes = ([frozenset(lines[one].items()) for one in order] for lines, order in ((old, before), (new, now)))
    pairs: list[tuple[int, int]] = []
    for _, start, end, other, other_end in SequenceMatcher(None, made, makes, autojunk=False).get_opcodes():
        if end - start == other_end - other:
            pairs += zip(before[start:end], now[other:other_end], strict=True)
    return pairs
