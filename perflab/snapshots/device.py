"""Turns the events of one device in PyTorch's snapshot into blocks, the cache's counts and the state at the end."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

from perflab.base.errors import SnapshotError
from perflab.snapshots.analysis import Thread, root_of
from perflab.snapshots.deduced import as_told, deduced, of_annotations, of_threads, steps_of, without_stacks_of_frees
from perflab.snapshots.events import ACTIONS, Rows, text_of
from perflab.snapshots.model import Block, Cache, OutOfMemory, Segment, Snapshot, Stack

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
                self._alloc(row)
            elif action == frees:
                self._free(row, requested_by.pop(rows.addresses[row], row))
            elif action == _REQUESTED:
                requested_by[rows.addresses[row]] = row
            elif action in (_TAKEN, _MAPPED):
                self._count(0, rows.sizes[row], retry=given_back_before)
                self.segment_changes.append((len(self.times_us), rows.sizes[row]))
            elif action in (_GIVEN, _UNMAPPED):
                self._count(2, rows.sizes[row])
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

    def _count(self, which: int, size: int, retry: bool = False) -> None:
        self.cache[which] += 1
        self.cache[which + 1] += size
        self.cache[4] += retry

    def _moment(self, row: int, *, is_free: bool) -> int:
        self.times_us.append(self.rows.times_us[row])
        self.stacks.append(~self.rows.stacks[row] if is_free else self.rows.stacks[row])
        self.marks.append(self.rows.label_table[self.rows.labels[row]][3])
        return len(self.times_us)

    def _alloc(self, row: int) -> None:
        moment, address = self._moment(row, is_free=False), self.rows.addresses[row]
        if address in self.open:  # the old block's free was not recorded (``skip_actions``): the block ends here
            number, earlier, since = self.open.pop(address)
            self.blocks[number] = self._block(earlier, since, moment, ())
        self.let_go.discard(address)
        self.open[address] = len(self.blocks), row, moment
        self.blocks.append(None)

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
                if address not in self.open:
                    self._was_before(block, address, number_of(block, "requested_size", size), stream)
                elif (known := self.blocks[number := self.open[address][0]]) is not None and not known.stack:
                    # ``context="state"`` records no stacks of events, but those of blocks that are alive at the end
                    self.blocks[number] = known._replace(stack=self._stack(block))
            address += size

    def _was_before(self, found: dict[str, Any], address: int, asked: int, stream: int) -> None:
        if self.is_cut:
            self.left_out_bytes += rounded(asked)
            return
        category, module, phase, tensor = (text_of(found.get(key)) for key in ("category", "module", "phase", "tensor"))
        size, stack = rounded(asked), self._stack(found)
        self.before.append(Block(size, asked, address, stream, stack, category, module, phase, 0, None, (), tensor))

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

    def _threads(self, *, are_frees_known: bool) -> Iterator[Thread | None]:
        """Yield the file and function with which each moment's thread begins; None if unknown."""
        roots = [root_of(stack) for stack in self.rows.stack_table]
        for stack in self.stacks:
            if stack >= 0:
                yield roots[stack]
            else:
                yield roots[~stack] if are_frees_known else None

    def snapshot(self, device: int, annotations: object, is_predicted: bool, notes: list[str]) -> Snapshot:
        """Return the device's recording as a snapshot, after ``read``."""
        blocks = [*self.before, *(block for block in self.blocks if block is not None)]
        has_categories = any(block.category for block in blocks)
        missing = list(self._missing())
        bare = None if has_categories else without_stacks_of_frees(blocks)
        if bare is not None:
            blocks = bare
            missing.append('who let blocks go was not recorded (context="alloc"), so that less is known of them')
        stages, is_guessed = of_threads(self.marks, list(self._threads(are_frees_known=bare is None)))
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
