"""Tables of what the caching allocator did: what it had reserved, segments, the cache, out of memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from perflab.snapshots.analysis import alive_at, parts_by, reserved_at
from perflab.snapshots.model import Segment, Snapshot
from perflab.snapshots.stacks import shown_stack
from perflab.snapshots.tables import Column, Table, Value, largest, whole

_SIZE = Column("bytes", "size", "bytes")


def reserved(snapshot: Snapshot, peak: int, alive_bytes: int) -> Iterator[Table]:
    """What the categories leave of what the allocator had taken: its rests and what it has cached."""
    reserved_bytes = reserved_at(snapshot, peak)
    if reserved_bytes is None or reserved_bytes < alive_bytes:  # events of segments were left out of the recording
        return
    rows: tuple[tuple[Value, ...], ...] = (
        ("alive, all categories", alive_bytes),
        ("fragments: free space within segments", reserved_bytes - alive_bytes),
        ("reserved", reserved_bytes),
    )
    columns = (Column("what", "what"), _SIZE)
    yield Table("reserved", "Reserved by the allocator at the peak", columns, rows)


def segments(snapshot: Snapshot, most: int) -> Iterator[Table]:
    """Each segment at the end: what is in use of it, and what of it is cached."""
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
        for one in sorted(snapshot.segments, key=_cached)
    ]
    if rows:
        summed = ("bytes", "in_use_bytes", "asked_bytes", "free_bytes")
        total: tuple[Value, ...] = (
            "all segments",
            *(sum(whole(row[number]) for row in rows) for number in range(1, 5)),
            None,
        )
        listed = largest(rows, columns, most, summed=summed)
        listed = tuple((*row[:5], None) if str(row[0]).endswith("smaller rows") else row for row in listed)
        yield Table("segments", "Segments at the end, the most cached first", columns, (*listed, total))


def _cached(segment: Segment) -> tuple[int, int]:
    return -segment.free_bytes, segment.address


def cache(snapshot: Snapshot) -> Iterator[Table]:
    """How often the allocator asked the device for memory, and gave some back."""
    did = snapshot.cache
    if did.taken or did.given_back:
        columns = (Column("what", "the allocator"), Column("times", "times", "count"), Column("bytes", "size", "bytes"))
        rows: tuple[tuple[Value, ...], ...] = (
            ("asked the device for memory (cudaMalloc)", did.taken, did.taken_bytes),
            ("gave memory back to it (cudaFree)", did.given_back, did.given_back_bytes),
            ("gave memory back and asked again at once (a retry, or empty_cache)", did.retries, None),
        )
        yield Table("cache", "Cache", columns, rows)


def out_of_memory(snapshot: Snapshot) -> Iterator[Table]:
    """Each time that there was no room: what was asked for, and what was alive then."""
    for number, one in enumerate(snapshot.out_of_memory[:3], start=1):
        parts = parts_by(alive_at(snapshot, one.moment), lambda block: block.category)
        columns = (Column("what", "what"), _SIZE)
        rows: list[tuple[Value, ...]] = [
            ("asked for", one.asked_bytes),
            ("free on the device", one.free_bytes),
            *((f"alive: {category}", part.size_bytes) for category, part in parts.items()),
        ]
        where = shown_stack(one.stack) or "no stack was recorded"
        title = f"Out of memory at moment {one.moment:,}"
        yield Table(f"out_of_memory_{number}", title, columns, tuple(rows), f"asked by {where}")
