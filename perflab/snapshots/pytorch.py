"""Reads PyTorch's own snapshots: the pickle of ``torch.cuda.memory._dump_snapshot``, of every version since 2.3.

Predictions are written in the same form (``perflab.predicted.memory.snapshot``) and read by this module too. Perflab's
own recordings have notes behind the pickle's end (``notes``). Some files lack keys: ``frames`` if no stacks were
recorded, ``user_metadata`` before 2.10, ``category`` except in predictions.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from perflab.base.errors import SnapshotError
from perflab.base.grouping import groups_of
from perflab.snapshots.analysis import Thread, root_of
from perflab.snapshots.deduced import as_told, deduced, of_annotations, of_threads, steps_of, without_stacks_of_frees
from perflab.snapshots.events import ACTIONS, EVENT, Events, Rows, text_of
from perflab.snapshots.model import Block, Cache, OutOfMemory, Segment, Snapshot, Stack
from perflab.snapshots.recorded import BEGIN, MOST_BYTES, Notes, notes_of_json
from perflab.snapshots.unpickling import Cut, Progress, Unpickling

BLOCK_BYTES = 512
"""The number of bytes of which all blocks of CUDA's caching allocator are multiples."""
_ALLOC, _REQUESTED, _COMPLETED, _TAKEN, _GIVEN, _MAPPED, _UNMAPPED, _SNAPSHOT, _OOM = range(len(ACTIONS))
_IN_USE = ("active_allocated", "active_awaiting_free", "active_pending_free")


class Device:
    """Builds the recording of one device from rows."""

    def __init__(self, rows: Rows, span: range, segments: list[dict[str, Any]], *, is_cut: bool) -> None:
        self.rows, self.span, self.raw_segments, self.is_cut = rows, span, segments, is_cut
        self.before: list[Block] = []
        self.blocks: list[Block | None] = []
        self.open: dict[int, tuple[int, int, int]] = {}
        """The block alive at each address: its number among ``blocks``, and the row and moment of its allocation."""
        self.times_us = array("q")
        self.marks: list[str] = []
        self.stacks = array("i")
        """The number of each moment's call stack; for a free, the bitwise complement, which is negative."""
        self.out_of_memory: list[OutOfMemory] = []
        self.cache = [0] * 5
        """The values of a ``Cache``, in the order of its fields."""
        self.segment_changes: list[tuple[int, int]] = []
        self.left_out_bytes = 0
        self.let_go: set[int] = set()
        """Addresses at which a block was freed and none was allocated since."""
        self.unseen: list[int] = []
        """Bytes of each block that was freed at an address in ``let_go``: its allocation was not recorded."""
        self.left_addresses: set[int] = set()
        """Addresses of the blocks that are alive at the end."""

    def read(self) -> None:
        """Read the events, then the blocks that are alive at the end."""
        rows, actions = self.rows, self.rows.actions
        frees = _COMPLETED if _COMPLETED in actions[self.span.start : self.span.stop] else _REQUESTED
        given_back_before = False
        requested_by: dict[int, int] = {}
        for row in self.span:
            action = actions[row]
            if action == _ALLOC:
                moment, address = self._moment(row, is_free=False), rows.addresses[row]
                # The old block's free was not recorded (``skip_actions``): the block ends here.
                if address in self.open:
                    number, earlier, since = self.open.pop(address)
                    self.blocks[number] = self._block(earlier, since, moment, ())
                self.let_go.discard(address)
                self.open[address] = len(self.blocks), row, moment
                self.blocks.append(None)
            elif action == frees:
                self._free(row, requested_by.pop(rows.addresses[row], row))
            elif action == _REQUESTED:
                requested_by[rows.addresses[row]] = row
            elif action in (_TAKEN, _MAPPED):
                self.cache[0] += 1
                self.cache[1] += rows.sizes[row]
                self.cache[4] += given_back_before
                self.segment_changes.append((len(self.times_us), rows.sizes[row]))
            elif action in (_GIVEN, _UNMAPPED):
                self.cache[2] += 1
                self.cache[3] += rows.sizes[row]
                self.segment_changes.append((len(self.times_us), -rows.sizes[row]))
            elif action == _OOM:
                self.cache[4] += given_back_before
                stack = rows.stack_table[rows.stacks[row]]
                free = rows.device_free.get(row, 0)
                self.out_of_memory.append(OutOfMemory(len(self.times_us), rows.sizes[row], free, stack))
            given_back_before = action in (_GIVEN, _UNMAPPED)
        for number, row, moment in self.open.values():
            self.blocks[number] = self._block(row, moment, None, ())
        for segment in self.raw_segments:
            self._at_the_end(segment)

    def _moment(self, row: int, *, is_free: bool) -> int:
        self.times_us.append(self.rows.times_us[row])
        self.stacks.append(~self.rows.stacks[row] if is_free else self.rows.stacks[row])
        self.marks.append(self.rows.label_table[self.rows.labels[row]][3])
        return len(self.times_us)

    def _free(self, row: int, requested: int) -> None:
        moment, address = self._moment(row, is_free=True), self.rows.addresses[row]
        freed_by = self.rows.stack_table[self.rows.stacks[requested]]
        if address in self.open:
            number, allocated, since = self.open.pop(address)
            self.blocks[number] = self._block(allocated, since, moment, freed_by)
        else:
            labels = self.rows.label_table[self.rows.labels[row]]
            # In a prediction, a free has the stack of the block's allocation; in PyTorch's files, that of the free.
            stack = freed_by if labels[0] else ()
            self.before.append(self._block(row, 0, moment, freed_by)._replace(stack=stack))
            if address in self.let_go:
                self.unseen.append(self.before[-1].size_bytes)
        self.let_go.add(address)

    def _block(self, row: int, since: int, until: int | None, freed_by: Stack) -> Block:
        rows = self.rows
        category, module, phase, mark, tensor = rows.label_table[rows.labels[row]]
        stack = rows.stack_table[rows.stacks[row]]
        return Block(
            rounded(rows.sizes[row]),
            rows.sizes[row],
            rows.addresses[row],
            rows.streams[row],
            stack,
            category,
            module,
            phase or mark,
            since,
            until,
            freed_by,
            tensor,
        )

    def _at_the_end(self, segment: dict[str, Any]) -> None:
        """Read a segment's blocks that are alive at the end. A block without an event is from before the recording."""
        address, stream = number_of(segment, "address"), number_of(segment, "stream")
        for block in segment["blocks"]:
            if type(block) is not dict:
                continue
            address = number_of(block, "address", address)
            size = number_of(block, "size")
            if block.get("state") in _IN_USE:
                self.left_addresses.add(address)
                if address not in self.open and self.is_cut:
                    self.left_out_bytes += rounded(number_of(block, "requested_size", size))
                elif address not in self.open:
                    asked, stack = number_of(block, "requested_size", size), self._stack(block)
                    said = (text_of(block.get(key)) for key in ("category", "module", "phase", "tensor"))
                    category, module, phase, tensor = said
                    found = rounded(asked), asked, address, stream, stack, category, module, phase
                    self.before.append(Block(*found, 0, None, (), tensor))
                elif (known := self.blocks[number := self.open[address][0]]) is not None and not known.stack:
                    # ``context="state"`` records no stacks of events, but those of blocks that are alive at the end
                    self.blocks[number] = known._replace(stack=self._stack(block))
            address += size

    def _stack(self, found: dict[str, Any]) -> Stack:
        try:
            return self.rows.stack_table[self.rows.stack_of(found.get("frames"))]
        except (TypeError, ValueError) as error:
            raise SnapshotError(
                f"a block of the snapshot has no stack: {error}", "record it again, or give another file"
            ) from error

    def _missing(self) -> Iterator[str]:
        """Yield sentences on what was not recorded."""
        if self.left_out_bytes:
            yield (
                f"{self.left_out_bytes:,} bytes that are allocated at the end are left out: the events that tell since "
                "when are cut off"
            )
        if self.is_cut:
            return
        if self.unseen:
            yield (
                f"blocks that came without an event (skip_actions): {len(self.unseen):,}, {sum(self.unseen):,} bytes; "
                "they count from the beginning, and the peak may be too high"
            )
        open_blocks = ((address, self.blocks[number]) for address, (number, *_) in self.open.items())
        gone = [block.size_bytes for address, block in open_blocks if block and address not in self.left_addresses]
        if gone and self.raw_segments:
            yield (
                f"blocks that were let go without an event (skip_actions): {len(gone):,}, {sum(gone):,} bytes; they "
                "count to the end, and the peak may be too high"
            )

    def snapshot(self, device: int, annotations: object, is_predicted: bool, notes: list[str]) -> Snapshot:
        """Return the device's recording as a snapshot, after ``read``."""
        blocks = [*self.before, *(block for block in self.blocks if block is not None)]
        has_categories = any(block.category for block in blocks)
        missing = list(self._missing())
        bare = None if has_categories else without_stacks_of_frees(blocks)
        if bare is not None:
            blocks = bare
            missing.append('who let blocks go was not recorded (context="alloc"), so that less is known of them')
        # The file and function with which each moment's thread begins; None if unknown.
        roots: list[Thread | None] = [root_of(stack) for stack in self.rows.stack_table]
        frees = roots if bare is None else [None] * len(roots)
        threads = [roots[stack] if stack >= 0 else frees[~stack] for stack in self.stacks]
        stages, is_guessed = of_threads(self.marks, threads)
        if is_guessed:
            missing.append(
                "no stacks were recorded with the marks: what bears none between two runs of one mark may be of "
                "autograd's threads, and counts as marked"
            )
        spans, steps = of_annotations(annotations, device, self.times_us) if self.rows.has_times else ([], [])
        stages = stages or spans
        return Snapshot(
            source="perflab, predicted" if is_predicted else "PyTorch",
            device=f"cuda:{device}",
            blocks=as_told(blocks) if has_categories else list(deduced(blocks, stages)),
            times_ns=array("q", (1000 * time for time in self.times_us)) if self.rows.has_times else (),
            moments=len(self.times_us),
            rounding_bytes=BLOCK_BYTES,
            segments=[_segment(one) for one in self.raw_segments],
            segment_changes=self.segment_changes,
            is_whole=not self.left_out_bytes,
            stages=stages,
            steps=steps or steps_of(stages),
            cache=Cache(*self.cache),
            out_of_memory=self.out_of_memory,
            is_deduced=not has_categories,
            notes=[*notes, *missing],
        )


def rounded(size: int) -> int:
    """Round a request's bytes up to the bytes that the allocator gives; 0 stays 0."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def _segment(found: dict[str, Any]) -> Segment:
    blocks = [block for block in found["blocks"] if type(block) is dict]
    in_use = [block for block in blocks if block.get("state") in _IN_USE]
    free = [number_of(block, "size") for block in blocks if block.get("state") not in _IN_USE]
    used = sum(number_of(block, "size") for block in in_use)
    return Segment(
        address=number_of(found, "address"),
        size_bytes=number_of(found, "total_size"),
        stream=number_of(found, "stream"),
        kind=text_of(found.get("segment_type")) + ", expandable" * bool(found.get("is_expandable")),
        in_use_bytes=used,
        requested_bytes=sum(number_of(block, "requested_size", number_of(block, "size")) for block in in_use),
        free_bytes=sum(free),
        largest_free_bytes=max(free, default=0),
    )


def number_of(found: dict[str, Any], key: str, otherwise: int = 0) -> int:
    """Return the value of a key if it is a whole number, zero or more; else ``otherwise``."""
    value = found.get(key, otherwise)
    return value if type(value) is int and value >= 0 else otherwise


MOST_DEVICES = 1024
"""The most devices of a machine; a file that names a higher number is refused."""
PREDICTED = "prediction"
"""The ``kind`` under the key ``perflab`` of a prediction."""


def read_pickle(file: BinaryIO, path: Path, progress: Progress) -> list[Snapshot]:
    """Read the recordings of all devices that did anything.

    Raises:
        SnapshotError: the file is not plain data, or no snapshot of PyTorch's.
    """
    events = Events()
    size = os.fstat(file.fileno()).st_size
    machine = Unpickling(file, size, events, progress)
    notes: list[str] = []
    ours: Notes | None = None
    is_cut = False
    try:
        content = machine.load()
        ours, damage = _ours(file, machine.offset)
        notes += [f"{path.name}: {damage}"] * bool(damage)
    except Cut:
        is_cut = True
        content = _what_is_there(machine)
        notes.append(
            f"{path.name} is cut off at byte {machine.offset:,}: {len(events.rows):,} events were read before that, "
            "and what came after is not known"
        )
    if type(content) is list and content and all(type(one) is dict and "blocks" in one for one in content):
        content = {"segments": content, "device_traces": []}  # torch.cuda.memory_snapshot()
    if type(content) is not dict or not {"segments", "device_traces"} & content.keys():
        raise SnapshotError(
            "it is a pickle, but no memory snapshot: it has neither segments nor device_traces",
            "give a file that torch.cuda.memory._dump_snapshot wrote",
        )
    return list(_devices(content, events.rows, notes, ours, is_cut=is_cut))


def _ours(file: BinaryIO, position: int) -> tuple[Notes | None, str]:
    """Return perflab's notes behind PyTorch's part; or None and a text on the damage, empty if there are no notes."""
    file.seek(position)
    begin = file.read(len(BEGIN))
    if not begin or not BEGIN.startswith(begin):
        return None, ""
    damage = "they are cut off"
    if begin == BEGIN:
        try:
            return notes_of_json(file.read(MOST_BYTES)), ""
        except ValueError as error:
            damage = f"{error}"
    return None, (
        f"the notes of perflab behind PyTorch's part are damaged ({damage}), so that the file is read without them"
    )


def _what_is_there(machine: Unpickling) -> dict[str, Any]:
    """Return the content of a pickle that is cut off: the keys read so far, and the part of the last key's value."""
    stack = machine.stack
    content: dict[str, Any] = dict(stack[0]) if stack and type(stack[0]) is dict else {}
    at = [number for number, value in enumerate(stack) if type(value) is str and value in _KEYS]
    for number, end in zip(at, [*at[1:], len(stack)], strict=False):
        values = stack[number + 1 : end]
        if not values:
            continue
        first, rest = values[0], values[1:]
        if stack[number] == "device_traces":
            traces = [one for one in first if type(one) is list] if type(first) is list else []
            for value in rest:
                if type(value) is list:
                    traces.append(list(value))
                elif value is EVENT and traces:
                    traces[-1].append(EVENT)
                else:
                    break  # an event that is cut off
            content["device_traces"] = traces
        elif type(first) is list:
            content[stack[number]] = [*first, *(value for value in rest if type(value) is dict and value)]
    content.setdefault("device_traces", [])
    return content


_KEYS = ("segments", "device_traces", "external_annotations")


def _devices(
    content: dict[str, Any], rows: Rows, notes: list[str], ours: Notes | None, *, is_cut: bool
) -> Iterator[Snapshot]:
    traces = [trace if type(trace) is list else [] for trace in _list(content, "device_traces")]
    if sum(trace.count(EVENT) for trace in traces) != len(rows):
        raise SnapshotError(
            f"{len(rows):,} events were read, but the traces of all devices have another number of them",
            "record it again with torch.cuda.memory._record_memory_history and _dump_snapshot",
        )
    whole = [one for one in _list(content, "segments") if type(one) is dict and type(one.get("blocks")) is list]
    segments = groups_of(whole, lambda one: number_of(one, "device"))
    about = content.get("perflab")
    is_predicted = type(about) is dict and about.get("kind") == PREDICTED
    settings = content.get("allocator_settings")
    allocator = settings.get("PYTORCH_CUDA_ALLOC_CONF") if type(settings) is dict else None
    if type(allocator) is str and "roundup_power2_divisions" in allocator:
        notes = [
            *notes,
            "the allocator rounded sizes up further (roundup_power2_divisions): blocks took more than is said here, "
            "and fragments are less",
        ]
    start = 0
    devices = sorted({*range(len(traces)), *segments})
    if len(traces) > MOST_DEVICES or devices[-1:] > [MOST_DEVICES]:
        raise SnapshotError(
            f"it names device {devices[-1]:,}, and no machine has as many", "give a file that PyTorch wrote"
        )
    for device in devices:
        count = traces[device].count(EVENT) if device < len(traces) else 0
        if count or device in segments:
            reading = Device(rows, range(start, start + count), segments.get(device, []), is_cut=is_cut)
            reading.read()
            found = reading.snapshot(device, content.get("external_annotations"), is_predicted, notes)
            yield _noted(found, ours) if ours and ours.device == device else found
        start += count


def _noted(found: Snapshot, ours: Notes) -> Snapshot:
    """Add perflab's notes to a snapshot. The recorder keeps the last events, so the first events may be missing."""
    lost = ours.events - found.moments
    if lost < 0:  # other code recorded too, and its events are included
        return found
    notes = [*found.notes]
    if lost:
        notes.append(
            f"the first {lost:,} of {ours.events:,} allocations and frees were not kept: the peak may be there"
        )
    return replace(found, blocks=as_told(ours.since(lost).told(found.blocks)), is_noted=True, notes=notes)


def _list(content: dict[str, Any], key: str) -> list[Any]:
    value = content.get(key)
    return value if type(value) is list else []
