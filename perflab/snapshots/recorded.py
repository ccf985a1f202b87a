"""Our own JSON: what ``memory_snapshot`` records on a CPU, and ``write_timeline`` predicts.

Schema 1 has ``events`` alone, ``[time, bytes]``. Schema 2 adds ``blocks``, ``[block, place]`` for each event,
``places``, ``before``, ``[block, bytes, place]`` of what was there already, and ``marks``, ``[event, phase]`` where a
phase begins; without marks, an event has the phase of its place. ``looks`` say what lay where (``notes``).
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perflab.errors import SnapshotError
from perflab.snapshots.categories import deduced
from perflab.snapshots.model import UNKNOWN, Block, Frame, Snapshot, Stack
from perflab.snapshots.notes import notes_of
from perflab.snapshots.stages import of_marks, steps_of

MOST_BYTES = 2**30
"""JSON is read as a whole."""


@dataclass(frozen=True)
class _Place:
    stack: Stack
    module: str
    phase: str
    category: str
    operator: str
    tensor: str


_NOWHERE = _Place((), "", "", "", "", "")


def read_json(text: bytes, path: Path) -> Snapshot:
    """The recording.

    Raises:
        SnapshotError: it is damaged, or none of ours.
    """
    try:
        content = json.loads(text)
        if type(content) is not dict or type(content.get("events")) is not list:
            raise ValueError("it has no events")
        if content.get("schema") not in (1, 2):
            raise ValueError(f"its schema is {content.get('schema')!r}, and 1 and 2 are known")
        return _snapshot(content)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, AttributeError, RecursionError) as error:
        raise SnapshotError(
            f"{path} is no recording of memory_snapshot: {error}",
            "record it again; a file that was cut off cannot be read, since JSON has its end last",
        ) from error


def _snapshot(content: dict[str, Any]) -> Snapshot:
    events = [(_whole(time), _whole(size)) for time, size in content["events"]]
    has_blocks = content["schema"] == 2
    places = [_place(one) for one in content.get("places", [])]
    marks = content["blocks"] if has_blocks else [(None, None)] * len(events)
    if len(marks) != len(events):
        raise ValueError(f"{len(events)} events have {len(marks)} blocks")
    reading = _Reading(has_addresses=has_blocks)
    for block, size, place in content.get("before", []):
        reading.give(_whole(block), _whole(size), places[_index(place)], 0)
    phases: list[str] = []
    begins = {_whole(event): str(mark) for event, mark in content.get("marks", [])}
    for moment, ((_, size), (block, number)) in enumerate(zip(events, marks, strict=True), start=1):
        place = _NOWHERE if number is None else places[_index(number)]
        is_given = size >= 0
        if "marks" in content:
            phases.append(begins.get(moment - 1, phases[-1] if phases else ""))
        else:
            phases.append(place.phase)
        if is_given:
            reading.give(block, size, place, moment)
        else:
            reading.take(block, -size, place, moment)
    is_predicted = "time" in content
    blocks = reading.all_blocks()
    is_noted = "looks" in content
    has_categories = not is_noted and any(block.category for block in blocks)
    stages = of_marks(phases)
    return Snapshot(
        source="perflab, predicted" if is_predicted else "perflab",
        device="cuda" if content.get("device") == "cuda" else "cpu",
        blocks=[block._replace(category=block.category or UNKNOWN) for block in blocks]
        if has_categories
        else _noted(content, list(deduced(blocks, stages))),
        times_ns=() if content.get("time") == "event" else array("q", (time for time, _ in events)),
        moments=len(events),
        rounding_bytes=512 if content.get("device") == "cuda" else 1,
        stages=stages,
        steps=steps_of(stages),
        is_deduced=not has_categories and has_blocks,
        is_noted=is_noted,
        notes=list(_notes(content)),
    )


def _notes(content: dict[str, Any]) -> Iterator[str]:
    if content["schema"] == 1:
        yield "the file (schema 1) names no blocks: each free is taken for the latest block of its size"
    unseen = _whole(content.get("let_go_unseen_bytes", 0))
    if unseen:
        yield (
            f"{unseen:,} bytes that were there before were let go within; a CPU's profiler does not say when, so they "
            "are left out"
        )


def _noted(content: dict[str, Any], blocks: list[Block]) -> list[Block]:
    return notes_of(content).told(blocks) if "looks" in content else blocks


class _Reading:
    def __init__(self, *, has_addresses: bool) -> None:
        self.has_addresses = has_addresses
        self.before: list[Block] = []
        self.blocks: list[Block] = []
        self.open: dict[int, list[int]] = {}
        """Numbers of blocks that are there, by address; in schema 1 by size."""

    def give(self, block: int | None, size: int, place: _Place, moment: int) -> None:
        """A block comes to be."""
        self.open.setdefault(size if block is None else block, []).append(len(self.blocks))
        self.blocks.append(_block(size, block, place, moment, None))

    def take(self, block: int | None, size: int, place: _Place, moment: int) -> None:
        """It goes; one that was not seen to come was there before."""
        numbers = self.open.get(size if block is None else block)
        # Of what was held before, the allocator knows the size better than the tensors that lie in it.
        if numbers and (self.blocks[numbers[-1]].size_bytes == size or not self.blocks[numbers[-1]].allocated_at):
            number = numbers.pop()
            self.blocks[number] = self.blocks[number]._replace(
                size_bytes=size, requested_bytes=size, freed_at=moment, freed_by=place.stack
            )
        else:
            self.before.append(_block(size, block, _NOWHERE, 0, moment)._replace(freed_by=place.stack))

    def all_blocks(self) -> list[Block]:
        """Those that were there before first."""
        held = [block for block in self.blocks if not block.allocated_at]
        return [*held, *self.before, *(block for block in self.blocks if block.allocated_at)]


def _block(size: int, block: int | None, place: _Place, since: int, until: int | None) -> Block:
    stack, category, module, phase, tensor = place.stack, place.category, place.module, place.phase, place.tensor
    return Block(size, size, block or 0, 0, stack, category, module, phase, since, until, (), tensor)


def _place(found: dict[str, Any]) -> _Place:
    frames = tuple(Frame(str(file), _whole(line), str(function)) for file, line, function in found.get("frames", []))
    texts = (str(found.get(key) or "") for key in ("module", "phase", "category", "operator", "tensor"))
    return _Place(frames, *texts)


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def _index(value: object) -> int:
    number = _whole(value)
    if number < 0:
        raise IndexError(f"there is no place {number}")
    return number
