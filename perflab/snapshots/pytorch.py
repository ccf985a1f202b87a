"""PyTorch's own snapshots: the pickle of ``torch.cuda.memory._dump_snapshot``, of every version since 2.3.

Predictions are written in the same form (``perflab.predicted.memory.snapshot``) and read here too; recordings of our
own have notes behind the pickle's end (``notes``). Keys that a version does not have are left out of it: ``frames``
where none were recorded, ``user_metadata`` before 2.10, ``category`` but in predictions.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from perflab.errors import SnapshotError
from perflab.snapshots.at_once import EVENT, Events
from perflab.snapshots.model import UNKNOWN, Block, Cache, OutOfMemory, Segment, Snapshot, Stack, Stage
from perflab.snapshots.notes import MOST_BYTES, Notes, notes_behind
from perflab.snapshots.rows import ACTIONS, Rows
from perflab.snapshots.stacks import Facts, deduced_category, facts_of
from perflab.snapshots.stages import of_annotations, of_marks, steps_of
from perflab.snapshots.unpickling import Cut, Progress, Unpickling

BLOCK_BYTES = 512
"""CUDA's caching allocator gives out multiples of it."""
PREDICTED = "prediction"
"""Stands under the key ``perflab`` of a prediction."""
_ALLOC, _REQUESTED, _COMPLETED, _TAKEN, _GIVEN, _MAPPED, _UNMAPPED, _SNAPSHOT, _OOM = range(len(ACTIONS))
_IN_USE = ("active_allocated", "active_awaiting_free", "active_pending_free")


def read_pickle(file: BinaryIO, path: Path, progress: Progress = lambda *_: None) -> list[Snapshot]:
    """The recordings of all devices that did anything.

    Raises:
        SnapshotError: it is no plain data, or no snapshot of PyTorch's.
    """
    events = Events()
    size = os.fstat(file.fileno()).st_size
    machine = Unpickling(file, size, events, progress)
    notes: list[str] = []
    ours: tuple[int, Notes] | None = None
    try:
        content = machine.load()
        file.seek(machine.offset)
        ours = notes_behind(file.read(MOST_BYTES))
    except Cut:
        content = _what_is_there(machine)
        notes.append(
            f"{path.name} is cut off at byte {machine.offset:,}: {len(events.rows):,} events were read before that, "
            "and what came after is not known"
        )
    if type(content) is not dict or not {"segments", "device_traces"} & content.keys():
        raise SnapshotError(
            f"{path} is a pickle, but no memory snapshot: it has neither segments nor device_traces",
            "give a file that torch.cuda.memory._dump_snapshot wrote",
        )
    return list(_devices(content, events.rows, notes, ours))


def _what_is_there(machine: Unpickling) -> dict[str, Any]:
    """What the stack of an unpickling holds that did not come to its end: the keys so far, and the last one's value."""
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
                elif value == EVENT and traces:
                    traces[-1].append(EVENT)
                else:
                    break  # an event of which only a part is there
            content["device_traces"] = traces
        elif type(first) is list:
            content[stack[number]] = [*first, *(value for value in rest if type(value) is dict and value)]
    content.setdefault("device_traces", [])
    return content


_KEYS = ("segments", "device_traces", "external_annotations")


def _devices(
    content: dict[str, Any], rows: Rows, notes: list[str], ours: tuple[int, Notes] | None
) -> Iterator[Snapshot]:
    traces = [trace if type(trace) is list else [] for trace in _list(content, "device_traces")]
    if sum(trace.count(EVENT) for trace in traces) != len(rows):
        raise SnapshotError(
            f"{len(rows):,} events were read, but the traces of all devices have another number of them",
            "record it again with torch.cuda.memory._record_memory_history and _dump_snapshot",
        )
    segments: dict[int, list[dict[str, Any]]] = {}
    for one in _list(content, "segments"):
        if type(one) is dict and type(one.get("blocks")) is list:
            segments.setdefault(_number(one, "device"), []).append(one)
    about = content.get("perflab")
    is_predicted = type(about) is dict and about.get("kind") == PREDICTED
    start = 0
    for device in range(max(len(traces), max(segments, default=-1) + 1)):
        count = len(traces[device]) if device < len(traces) else 0
        if count or device in segments:
            reading = _Device(rows, range(start, start + count), segments.get(device, []), is_cut=bool(notes))
            reading.read()
            found = reading.snapshot(device, content.get("external_annotations"), is_predicted, notes)
            yield _noted(found, *ours) if ours and found.moments else found
        start += count


def _noted(found: Snapshot, events: int, ours: Notes) -> Snapshot:
    """With what we know of it. The recorder keeps the last events, so the first of them may be missing."""
    if found.moments > events:  # other recordings are in it as well
        return found
    return replace(found, blocks=ours.since(events - found.moments).told(found.blocks), is_noted=True)


class _Device:
    """The recording of one device on its way from rows to blocks."""

    def __init__(self, rows: Rows, span: range, segments: list[dict[str, Any]], *, is_cut: bool) -> None:
        self.rows, self.span, self.raw_segments, self.is_cut = rows, span, segments, is_cut
        self.before: list[Block] = []
        self.blocks: list[Block | None] = []
        self.open: dict[int, tuple[int, int, int]] = {}
        """By address: the number among blocks, the row and the moment of what is there."""
        self.times_us = array("q")
        self.marks: list[str] = []
        self.out_of_memory: list[OutOfMemory] = []
        self.cache = [0] * 5
        self.segment_changes: list[tuple[int, int]] = []
        self.left_out_bytes = 0

    def read(self) -> None:
        """Walk through the events, then look at what is there at the end."""
        rows, actions = self.rows, self.rows.actions
        frees = _COMPLETED if _COMPLETED in actions[self.span.start : self.span.stop] else _REQUESTED
        given_back_before = False
        requested_by: dict[int, int] = {}
        for row in self.span:
            action = actions[row]
            if action == _ALLOC:
                self._alloc(row)
            elif action == frees:
                self._free(row, requested_by.pop(rows.addresses[row], row))
            elif action == _REQUESTED:
                requested_by[rows.addresses[row]] = row
            elif action in (_TAKEN, _MAPPED):
                self._count(0, rows.sizes[row], retry=given_back_before and action == _TAKEN)
                self.segment_changes.append((len(self.times_us), rows.sizes[row]))
            elif action in (_GIVEN, _UNMAPPED):
                self._count(2, rows.sizes[row])
                self.segment_changes.append((len(self.times_us), -rows.sizes[row]))
            elif action == _OOM:
                stack = rows.stack_table[rows.stacks[row]]
                free = rows.device_free.get(row, 0)
                self.out_of_memory.append(OutOfMemory(len(self.times_us), rows.sizes[row], free, stack))
            given_back_before = action == _GIVEN
        for number, row, moment in self.open.values():
            self.blocks[number] = self._block(row, moment, None, ())
        for segment in self.raw_segments:
            self._left_in(segment)

    def _count(self, which: int, size: int, retry: bool = False) -> None:
        self.cache[which] += 1
        self.cache[which + 1] += size
        self.cache[4] += retry

    def _moment(self, row: int) -> int:
        self.times_us.append(self.rows.times_us[row])
        self.marks.append(self.rows.label_table[self.rows.labels[row]][3])
        return len(self.times_us)

    def _alloc(self, row: int) -> None:
        moment, address = self._moment(row), self.rows.addresses[row]
        if address in self.open:  # its free was not recorded (``skip_actions``), and it is gone now at the latest
            number, earlier, since = self.open.pop(address)
            self.blocks[number] = self._block(earlier, since, moment, ())
        self.open[address] = len(self.blocks), row, moment
        self.blocks.append(None)

    def _free(self, row: int, requested: int) -> None:
        moment, address = self._moment(row), self.rows.addresses[row]
        freed_by = self.rows.stack_table[self.rows.stacks[requested]]
        if address in self.open:
            number, allocated, since = self.open.pop(address)
            self.blocks[number] = self._block(allocated, since, moment, freed_by)
        else:
            labels = self.rows.label_table[self.rows.labels[row]]
            # A prediction's free has the block's own place; PyTorch's has that of the free.
            stack = freed_by if labels[0] else ()
            self.before.append(self._block(row, 0, moment, freed_by)._replace(stack=stack))

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

    def _left_in(self, segment: dict[str, Any]) -> None:
        """Blocks that are there at the end and were not seen to come: they were there before."""
        address = _number(segment, "address")
        for block in segment["blocks"]:
            if type(block) is not dict:
                continue
            address = _number(block, "address", address)
            size, state = _number(block, "size"), block.get("state")
            if state in _IN_USE and address not in self.open:
                asked = _number(block, "requested_size", size)
                if self.is_cut:
                    self.left_out_bytes += rounded(asked)
                else:
                    stack = self.rows.stack_table[self._stack(block)]
                    keys = ("category", "module", "phase", "tensor")
                    category, module, phase, tensor = (str(block.get(key) or "") for key in keys)
                    stream = _number(segment, "stream")
                    self.before.append(
                        Block(
                            rounded(asked), asked, address, stream, stack, category, module, phase, 0, None, (), tensor
                        )
                    )
            address += size

    def _stack(self, block: dict[str, Any]) -> int:
        try:
            return self.rows.stack_of(block.get("frames"))
        except (TypeError, ValueError) as error:
            raise SnapshotError(
                f"a block of the snapshot has no stack: {error}", "record it again, or give another file"
            ) from error

    def snapshot(self, device: int, annotations: object, is_predicted: bool, notes: list[str]) -> Snapshot:
        """What was read, as a snapshot."""
        blocks = [*self.before, *(block for block in self.blocks if block is not None)]
        has_categories = any(block.category for block in blocks)
        stages = of_marks(self.marks)
        spans, steps = of_annotations(annotations, device, self.times_us) if self.rows.has_times else ([], [])
        stages = stages or spans
        more = []
        if self.left_out_bytes:
            more.append(
                f"{self.left_out_bytes:,} bytes that are allocated at the end are left out: the events that tell "
                "since when are cut off"
            )
        taken, taken_bytes, given, given_bytes, retries = self.cache
        return Snapshot(
            source="perflab, predicted" if is_predicted else "PyTorch",
            device=f"cuda:{device}",
            blocks=[_told(block) for block in blocks] if has_categories else list(_deduced(blocks, stages)),
            times_ns=array("q", (1000 * time for time in self.times_us)) if self.rows.has_times else (),
            moments=len(self.times_us),
            rounding_bytes=BLOCK_BYTES,
            segments=[_segment(one) for one in self.raw_segments],
            segment_changes=self.segment_changes,
            is_whole=not self.left_out_bytes,
            stages=stages,
            steps=steps or steps_of(stages),
            cache=Cache(taken, taken_bytes, given, given_bytes, retries),
            out_of_memory=self.out_of_memory,
            is_deduced=not has_categories,
            notes=[*notes, *more],
        )


def rounded(size: int) -> int:
    """What a request takes of the allocator; nothing takes nothing."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def _told(block: Block) -> Block:
    return block if block.category else block._replace(category=UNKNOWN)


def _deduced(blocks: list[Block], stages: list[Stage]) -> Iterator[Block]:
    """Blocks with the category that follows from stacks, and from marked backwards: CUDA's run where no stack is."""
    backward = [stage for stage in stages if "backward" in stage.name.lower()]
    starts = [stage.start for stage in backward]
    facts: dict[int, Facts] = {}

    def seen(stack: Stack, moment: int | None) -> Facts:
        found = facts.get(id(stack))
        if found is None:
            found = facts[id(stack)] = facts_of(stack)
        if not stack and moment:
            number = bisect_left(starts, moment) - 1
            if number >= 0 and moment <= backward[number].end:
                return replace(found, is_backward=True)
        return found

    for block in blocks:
        given, taken = seen(block.stack, block.allocated_at), seen(block.freed_by, block.freed_at)
        yield block._replace(category=deduced_category(given, taken, is_freed=block.freed_at is not None))


def _segment(found: dict[str, Any]) -> Segment:
    blocks = [block for block in found["blocks"] if type(block) is dict]
    in_use = [block for block in blocks if block.get("state") in _IN_USE]
    free = [_number(block, "size") for block in blocks if block.get("state") not in _IN_USE]
    used = sum(_number(block, "size") for block in in_use)
    return Segment(
        address=_number(found, "address"),
        size_bytes=_number(found, "total_size"),
        stream=_number(found, "stream"),
        kind=f"{found.get('segment_type', '')}{', expandable' * bool(found.get('is_expandable'))}",
        in_use_bytes=used,
        requested_bytes=sum(_number(block, "requested_size", _number(block, "size")) for block in in_use),
        free_bytes=sum(free),
        largest_free_bytes=max(free, default=0),
    )


def _number(found: dict[str, Any], key: str, otherwise: int = 0) -> int:
    value = found.get(key, otherwise)
    return value if type(value) is int and value >= 0 else otherwise


def _list(content: dict[str, Any], key: str) -> list[Any]:
    value = content.get(key)
    return value if type(value) is list else []
