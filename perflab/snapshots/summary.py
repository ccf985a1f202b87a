"""Summarises one snapshot in facts and tables: the peak's composition, stages, blocks that stay, the cache. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from perflab.snapshots import analysis
from perflab.snapshots.model import Block, Snapshot
from perflab.snapshots.report import Column, Fact, Report, Table, Value, largest, sum_of
from perflab.units import format_count

MOST_ROWS = 12
"""Rows of a table before smaller rows are summed up."""
_SIZE, _SHARE = Column("bytes", "size", "bytes"), Column("share", "share", "share")
_BLOCKS = Column("blocks", "blocks", "count")
_SUMMED = ("bytes", "share", "blocks")
_ALIKE = (
    Column("blocks", "blocks", "count"),
    Column("each_bytes", "each", "bytes"),
    Column("bytes", "size", "bytes"),
    Column("category", "category"),
    Column("module", "module"),
    Column("line", "line"),
    Column("tensor", "tensor"),
    Column("stack", "stack"),
)


def summarize(snapshot: Snapshot, name: str, most: int = MOST_ROWS) -> Report:
    """Summarise a snapshot as facts, tables and notes.

    Args:
        snapshot: the recording.
        name: the name of the file.
        most: rows of a table before smaller rows are summed up.
    """
    level = analysis.levels(snapshot)
    peak = analysis.peak_moment(level)
    blocks, line = analysis.alive_at(snapshot, peak), analysis.lines_in(snapshot)
    times = snapshot.times_ns
    workspace = sum(block.size_bytes for block in blocks if block.category == "workspace")
    facts = [
        Fact("source", "recorded by", snapshot.source),
        Fact("device", "device", snapshot.device),
        Fact("moments", "allocations and frees", snapshot.moments, "count"),
        Fact("duration_ns", "duration", times[-1] - times[0] if len(times) else None, "ns"),
        Fact("peak_bytes", "peak", level[peak], "exact"),
        *([Fact("of_workspace_bytes", "of that cuBLAS's workspace", workspace, "exact")] if workspace else []),
        Fact("peak_moment", "peak at moment", peak, "count"),
        Fact("peak_time_ns", "peak after", analysis.elapsed_ns(snapshot, peak), "ns"),
        Fact("peak_stage", "peak in stage", stage_at(snapshot, peak)),
        Fact("begin_bytes", "alive at the beginning", level[0], "exact"),
        Fact("end_bytes", "alive at the end", level[-1], "exact"),
    ]
    tables = [
        _parts("category", "Alive at the peak, by category", blocks, lambda block: block.category, most),
        _parts(
            "module", "Alive at the peak, by module", blocks, lambda block: analysis.module_of(block) or "(none)", most
        ),
        _parts("line", "Alive at the peak, by line", blocks, lambda block: line(block.stack) or "(not recorded)", most),
        _largest(blocks, line, most),
        *_reserved(snapshot, peak, level[peak]),
        *_stages(snapshot, level),
        *_staying(snapshot, line, most),
        *_segments(snapshot, most),
        *_cache(snapshot),
        *_out_of_memory(snapshot),
    ]
    return Report(name, tuple(facts), tuple(tables), tuple(_notes(snapshot, workspace)))


def stage_at(snapshot: Snapshot, moment: int) -> str:
    """Return the name of a moment's stage; ``unmarked`` if the moment is in no stage."""
    return next((stage.name for stage in snapshot.stages if stage.start < moment <= stage.end), "unmarked")


def _parts(key: str, title: str, blocks: Sequence[Block], of: Callable[[Block], str], most: int) -> Table:
    parts = analysis.parts_by(blocks, of)
    total = sum(part.size_bytes for part in parts.values())
    columns = (Column(key, key), _SIZE, _SHARE, _BLOCKS)
    rows = [
        (name, part.size_bytes, part.size_bytes / total if total else 0.0, part.blocks) for name, part in parts.items()
    ]
    return Table(f"by_{key}", title, columns, largest(rows, columns, most, summed=_SUMMED))


def _row(blocks: Sequence[Block], line: analysis.Line) -> tuple[Value, ...]:
    """Return the row of a group of alike blocks, for the columns of ``_ALIKE``."""
    first = blocks[0]
    return (
        len(blocks),
        first.size_bytes,
        first.size_bytes * len(blocks),
        first.category,
        analysis.shared_module(blocks),
        line(first.stack),
        first.tensor,
        analysis.shown_stack(analysis.layerless(first.stack) if first.module else first.stack),
    )


def _largest(blocks: Sequence[Block], line: analysis.Line, most: int) -> Table:
    rows = largest((_row(one, line) for one in analysis.alike(blocks)), _ALIKE, most, summed=("bytes", "blocks"))
    return Table("largest", "Alive at the peak: blocks of one size and stack", _ALIKE, rows)


def _stages(snapshot: Snapshot, level: Sequence[int]) -> Iterator[Table]:
    columns = (
        Column("stage", "stage"),
        Column("start", "from moment", "count"),
        Column("end", "to", "count"),
        Column("start_ns", "after", "ns"),
        Column("peak_bytes", "peak", "bytes"),
        Column("end_bytes", "at its end", "bytes"),
    )
    rows = [
        (
            stage.name,
            stage.start,
            stage.end,
            analysis.elapsed_ns(snapshot, stage.start),
            max(level[stage.start : stage.end + 1]),
            level[stage.end],
        )
        for stage in snapshot.stages
    ]
    if rows:
        kept = tuple(rows[:MOST_STAGES])
        note = f"left out: {format_count(len(rows) - len(kept), 'later stage')}" if len(rows) > len(kept) else ""
        yield Table("stages", "Stages", columns, kept, note)


MOST_STAGES = 24
"""The most stages that are listed."""


def _staying(snapshot: Snapshot, line: analysis.Line, most: int) -> Iterator[Table]:
    columns = (Column("steps", "in steps", "count"), Column("left", "left at the end", "count"), *_ALIKE)
    found = analysis.outliving(snapshot)
    rows = [(steps, left, *_row(blocks, line)) for blocks, steps, left in found[:most]]
    if rows:
        note = (
            f"of {len(snapshot.steps)} steps; what stays in every one of them, and of which about as many are left at "
            "the end, grows without end; the next step lets go of the rest"
        )
        if len(found) > most:
            note += f"; left out: {format_count(len(found) - most, 'smaller row')}"
        yield Table("outliving", "Blocks that outlive the step that made them", columns, tuple(rows), note)


def _reserved(snapshot: Snapshot, peak: int, alive_bytes: int) -> Iterator[Table]:
    """Yield a table of the reserved bytes at the peak: live bytes, and free space within segments (rests and cache)."""
    reserved_bytes = analysis.reserved_at(snapshot, peak)
    if reserved_bytes is None or reserved_bytes < alive_bytes:  # events of segments were left out of the recording
        return
    rows: tuple[tuple[Value, ...], ...] = (
        ("alive, all categories", alive_bytes),
        ("fragments: free space within segments", reserved_bytes - alive_bytes),
        ("reserved", reserved_bytes),
    )
    columns = (Column("what", "what"), _SIZE)
    yield Table("reserved", "Reserved by the allocator at the peak", columns, rows)


def _segments(snapshot: Snapshot, most: int) -> Iterator[Table]:
    """Yield a table of the segments at the end, with the bytes of each that are in use and that are cached."""
    columns = (
        Column("segment", "segment"),
        Column("bytes", "size", "bytes"),
        Column("in_use_bytes", "in use", "bytes"),
        Column("asked_bytes", "asked for", "bytes"),
        Column("free_bytes", "cached", "bytes"),
        Column("largest_free_bytes", "largest piece", "bytes"),
    )
    rows: list[tuple[Value, ...]] = [
        (
            f"{one.address:#x} {one.kind}, stream {one.stream}",
            one.size_bytes,
            one.in_use_bytes,
            one.requested_bytes,
            one.free_bytes,
            one.largest_free_bytes,
        )
        for one in sorted(snapshot.segments, key=lambda segment: (-segment.free_bytes, segment.address))
    ]
    if rows:
        summed = ("bytes", "in_use_bytes", "asked_bytes", "free_bytes")
        total = sum_of(rows, columns, "all segments", summed=summed)
        listed = (*largest(rows, columns, most, summed=summed), total)
        yield Table("segments", "Segments at the end, the most cached first", columns, listed)


def _cache(snapshot: Snapshot) -> Iterator[Table]:
    """Yield a table of how often the allocator asked the device for memory, and gave some back."""
    did = snapshot.cache
    if did.taken or did.given_back:
        columns = (Column("what", "the allocator"), Column("times", "times", "count"), Column("bytes", "size", "bytes"))
        rows: tuple[tuple[Value, ...], ...] = (
            ("asked the device for memory (cudaMalloc)", did.taken, did.taken_bytes),
            ("gave memory back to it (cudaFree)", did.given_back, did.given_back_bytes),
            ("gave memory back and asked again at once (a retry, or empty_cache)", did.retries, None),
        )
        yield Table("cache", "Cache", columns, rows)


def _out_of_memory(snapshot: Snapshot) -> Iterator[Table]:
    """Yield a table for each of the first three failed allocations: the bytes asked for, and the blocks alive then."""
    for number, one in enumerate(snapshot.out_of_memory[:3], start=1):
        parts = analysis.parts_by(analysis.alive_at(snapshot, one.moment), lambda block: block.category)
        columns = (Column("what", "what"), _SIZE)
        rows: list[tuple[Value, ...]] = [
            ("asked for", one.asked_bytes),
            ("free on the device", one.free_bytes),
            *((f"alive: {category}", part.size_bytes) for category, part in parts.items()),
        ]
        where = analysis.shown_stack(one.stack) or "no stack was recorded"
        title = f"Out of memory at moment {one.moment:,}"
        yield Table(f"out_of_memory_{number}", title, columns, tuple(rows), f"asked by {where}")


def _notes(snapshot: Snapshot, workspace_bytes: int) -> Iterator[str]:
    yield from snapshot.notes
    if workspace_bytes and snapshot.source != "PyTorch":
        yield (
            "The peak of the prediction's own table leaves out the workspace of cuBLAS, which stands beside it there: "
            "what the code allocates is gated."
        )
    if snapshot.rounding_bytes > 1:
        yield f"Sizes are what was asked for, rounded up to {snapshot.rounding_bytes} B as the allocator does."
    if snapshot.is_noted:
        yield (
            "Parameters, gradients, optimizer state, buffers and inputs were known by pointer between phases; other "
            "categories follow from the stacks that gave and took each block, and what no stack tells is unknown."
        )
    elif snapshot.is_deduced and analysis.categories_of(snapshot):
        yield (
            "The file has no categories: they follow from the stacks that gave and took each block; what no stack "
            "tells is unknown."
        )
    if snapshot.source == "perflab" and len(snapshot.times_ns):
        yield ("Times are the profiler's, which notes each call of Python; the program alone takes a fraction of them.")
    if not snapshot.stages:
        yield (
            "Stages are unmarked: call torch.cuda.memory._set_memory_metadata, or torch.profiler.record_function "
            "with global_record_annotations=True, where each begins."
        )
    if len(snapshot.out_of_memory) > 3:
        yield f"It ran out of memory {format_count(len(snapshot.out_of_memory), 'time')}; the first three are shown."
