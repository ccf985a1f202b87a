"""Compares two snapshots: the blocks alive at one peak and not at the other peak, to the byte. Pure.

Their lines are matched, since folders differ and edits above move lines. Sums do not depend on the match: it only
decides which blocks share a row.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from difflib import SequenceMatcher

from perflab.base.files import shared_end
from perflab.base.grouping import groups_of
from perflab.snapshots import analysis
from perflab.snapshots.model import Block, Snapshot, Stack
from perflab.snapshots.report import Column, Fact, Report, Table, Value, largest
from perflab.snapshots.summary import stage_at

_Function = tuple[str, str]
"""File and name of a function."""


def lines_of_both(
    old: Sequence[Block], new: Sequence[Block], snapshots: tuple[Snapshot, Snapshot]
) -> tuple[analysis.Line, analysis.Line]:
    """Return a function for each side that names lines; an old line gets its new name if it still exists.

    An old line that is gone, and whose number now belongs to another old line, is named ``model.py:11 (before)``.
    """
    line_before, line_now = (analysis.lines_in(snapshot) for snapshot in snapshots)
    shown = {_place(block.stack): line_now(block.stack) for block in new}
    files = _same_files({_place(block.stack)[0] for block in old}, {file for file, _, _ in shown})
    then, now = _lines_by_function(old, files), _lines_by_function(new, {})
    moved = {
        (function, line): other
        for function in then.keys() & now.keys()
        for line, other in _aligned(then[function], now[function])
    }
    names_of_moved = {shown[*function, other] for (function, line), other in moved.items() if other != line}

    def named(stack: Stack) -> str:
        file, name, line = _place(stack)
        function = files.get(file, file), name
        found = shown.get((*function, moved.get((function, line), line))) or line_before(stack)
        if found in names_of_moved and (function, line) not in moved:  # another line has this number now
            return f"{line_before(stack)} (before)"
        return found

    return analysis.once_a_stack(named), line_now


def _place(stack: Stack) -> tuple[str, str, int]:
    frame = analysis.user_frame(stack)
    return (frame.file, frame.function, frame.line) if frame else ("", "", 0)


def _same_files(old: Iterable[str], new: Iterable[str]) -> dict[str, str]:
    """Map each old file that moved to the new file of its name that shares the most folders, counted from the end."""
    there = {*new}
    by_name = groups_of(sorted(there), lambda file: file.rsplit("/", 1)[-1])
    found = {}
    for file in old:
        others = by_name.get(file.rsplit("/", 1)[-1], [])
        if file not in there and others:
            found[file] = max(others, key=lambda other: shared_end(file, other))
    return found


_Lines = dict[int, Counter[tuple[str, int]]]
"""The number of blocks by category and size, for each line."""


def _lines_by_function(blocks: Iterable[Block], files: dict[str, str]) -> dict[_Function, _Lines]:
    found: dict[_Function, _Lines] = defaultdict(lambda: defaultdict(Counter))
    for block in blocks:
        file, name, line = _place(block.stack)
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


MOST_ROWS = 20
_CHANGES = (
    Column("change_bytes", "change", "change"),
    Column("before_bytes", "before", "bytes"),
    Column("after_bytes", "after", "bytes"),
)
_SUMMED = ("change_bytes", "before_bytes", "after_bytes", "before_blocks", "after_blocks")


def compare(before: Snapshot, after: Snapshot, names: tuple[str, str], most: int = MOST_ROWS) -> Report:
    """Report why one peak is higher than the other. The changes in each table add up to the difference of the peaks.

    Args:
        before, after: the recordings.
        names: the names of the recordings' files.
        most: rows of a table before smaller rows are summed up.
    """
    sides = []
    for snapshot in (before, after):
        level = analysis.levels(snapshot)
        peak = analysis.peak_moment(level)
        sides.append((level[peak], stage_at(snapshot, peak), analysis.alive_at(snapshot, peak)))
    (old, old_stage, old_blocks), (new, new_stage, new_blocks) = sides
    old_line, new_line = lines_of_both(old_blocks, new_blocks, (before, after))
    has_modules = all(any(block.module for block in blocks) for blocks in (old_blocks, new_blocks))
    facts = (
        Fact("before", "before", f"{names[0]} ({before.source}, {before.device})"),
        Fact("after", "after", f"{names[1]} ({after.source}, {after.device})"),
        Fact("before_peak_bytes", "peak before", old, "exact"),
        Fact("before_stage", "in stage", old_stage),
        Fact("after_peak_bytes", "peak after", new, "exact"),
        Fact("after_stage", "in stage", new_stage),
        Fact("change_bytes", "change", new - old, "change"),
    )

    category, module, line = (Column(key, key) for key in ("category", "module", "line"))
    sides_at = ((old_blocks, old_line), (new_blocks, new_line))

    def table(key: str, title: str, of: Callable[[Block, analysis.Line], tuple[str, ...]], *named: Column) -> Table:
        then = analysis.parts_by(old_blocks, lambda block: of(block, old_line))
        now = analysis.parts_by(new_blocks, lambda block: of(block, new_line))
        columns = (
            *named,
            *_CHANGES,
            Column("before_blocks", "blocks", "count"),
            Column("after_blocks", "after", "count"),
            *([Column("stack", "stack")] if line in named else ()),
        )
        stacks = {of(block, at): block.stack for some, at in sides_at for block in some} if line in named else {}
        rows: list[tuple[Value, ...]] = []
        for name in {**then, **now}:
            size, count = then.get(name, (0, 0))
            new_size, new_count = now.get(name, (0, 0))
            if (size, count) != (new_size, new_count):
                stack = [analysis.shown_stack(stacks[name])] if stacks else []
                rows.append((*name, new_size - size, size, new_size, count, new_count, *stack))
        rows.sort(key=lambda row: -abs(int(row[len(named)] or 0)))
        return Table(key, title, columns, largest(rows, columns, most, summed=_SUMMED))

    tables = (
        table("by_category", "Change by category", lambda block, _: (block.category,), category),
        *(
            [table("by_module", "Change by module", lambda block, _: (analysis.module_of(block) or "(none)",), module)]
            if has_modules
            else []
        ),
        table(
            "changes",
            "Change by line, module and category",
            lambda block, at: (
                at(block.stack) or "(not recorded)",
                analysis.module_of(block) if has_modules else "",
                block.category,
            ),
            line,
            module,
            category,
        ),
    )
    notes = _notes(before, after, names)
    if not has_modules and any(block.module for block in (*old_blocks, *new_blocks)):
        notes = (*notes, "One of them has no modules, so changes are not listed by module.")
    return Report(f"{names[0]} → {names[1]}", facts, tables, notes)


def _notes(before: Snapshot, after: Snapshot, names: tuple[str, str]) -> tuple[str, ...]:
    notes = [f"{name}: {note}" for name, one in zip(names, (before, after), strict=True) for note in one.notes]
    if before.rounding_bytes != after.rounding_bytes:
        notes.append(
            f"Sizes of one are rounded up to {max(before.rounding_bytes, after.rounding_bytes)} B and those of the "
            "other are not: blocks differ by that."
        )
    if len({one.is_deduced and not one.is_noted for one in (before, after)}) == 2:
        notes.append(
            "Categories of one are deduced from stacks, and those of the other were recorded: names may differ."
        )
    return tuple(notes)
