"""Reads perflab's own JSON: recordings of ``memory_snapshot`` on a CPU, as ``measure/memory/histories.py`` writes them.

Schema 3 has ``events`` of ``[time, bytes, block, place]``, each on its own line (``event_lines``). Before the events
come ``places``; ``before`` with ``[block, bytes, place]`` of blocks that were alive already; and ``looks`` with the
blocks at known addresses (``notes``). Schema 1, of a recording whose blocks nobody can tell apart, has only
``[time, bytes]``.
"""

from __future__ import annotations

import json
import re
import reprlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from perflab.base.errors import SnapshotError
from perflab.base.event_lines import EventLines, head_of
from perflab.snapshots.deduced import as_told, deduced, of_marks, steps_of
from perflab.snapshots.model import Block, Frame, Snapshot, Stack
from perflab.snapshots.notes import notes_of
from perflab.snapshots.window import Progress
from perflab.units import format_bytes

MOST_BYTES = 2**26
"""The most bytes of JSON that is read as a whole, which may take 22 times its size in memory. Larger files must have
one event per line."""
MOST_EVENTS = 3_000_000
"""The most events of a file: an event takes up to 500 bytes of memory, so all events fit into 2 GB."""
_SCHEMAS = (1, 3)
_SPACE, _BETWEEN = re.compile(r"\s*"), re.compile(r"[\s,:]*")


@dataclass(frozen=True)
class _Place:
    stack: Stack
    module: str
    phase: str
    category: str


_NOWHERE = _Place((), "", "", "")


def read_json(file: BinaryIO, path: Path, progress: Progress) -> Snapshot:
    """Read a recording.

    Raises:
        SnapshotError: the file is damaged, too large, or not written by perflab.
    """
    text = file.read(MOST_BYTES + 1)
    lines: EventLines | None = None
    cut_at = 0
    try:
        if len(text) > MOST_BYTES:
            head = head_of(text)
            if head is None:
                raise SnapshotError(
                    f"{path} is JSON of more than {format_bytes(MOST_BYTES)}, and no recording with an event a line",
                    "record it again with this version, or record a shorter part of the program",
                )
            del text
            content, lines = head[0], EventLines(file, head[1], progress)
        else:
            content, cut_at = _what_is_there(text)
        if type(content) is not dict or type(content.get("events")) is not list:
            raise ValueError("it has no events")
        if content.get("schema") not in _SCHEMAS:
            raise ValueError(f"its schema is {content.get('schema')!r}, and 1 and 3 are known")
        found = _snapshot(content, content["events"] if lines is None else lines)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, AttributeError, RecursionError) as error:
        raise SnapshotError(
            f"{path} is no recording of memory_snapshot: {error}",
            "record it again, or give another file",
        ) from error
    cut_at = cut_at if lines is None else lines.cut_at
    if not cut_at:
        return found
    note = (
        f"{path.name} is cut off or damaged at character {cut_at:,}: {found.moments:,} events were read before that, "
        "and what came after is not known"
    )
    return replace(found, notes=[note, *found.notes], is_whole=False)


def _what_is_there(text: bytes) -> tuple[Any, int]:
    """Return the content of JSON, and the character at which the JSON is cut off; 0: the JSON is whole."""
    try:
        return json.loads(text), 0
    except json.JSONDecodeError:
        return _whole_items(text.decode("utf-8", "replace"))


def _whole_items(text: str) -> tuple[dict[str, Any], int]:
    """Return the whole values by key, with the whole items of a list that is cut off; and the character of the cut."""
    decode, content = json.JSONDecoder().raw_decode, dict[str, Any]()
    start = position = _behind(text, _SPACE, 0) + 1
    key = ""
    while True:
        try:
            key, end = decode(text, _behind(text, _BETWEEN, position))
            start = _behind(text, _BETWEEN, end)
            content[key], position = decode(text, start)
        except json.JSONDecodeError:
            break
    if text[start : start + 1] != "[" or key in content:
        return content, position
    items: list[Any] = []
    position = start + 1
    while True:
        try:
            item, end = decode(text, _behind(text, _BETWEEN, position))
        except json.JSONDecodeError:
            content[key] = items
            return content, position
        items.append(item)
        position = end


def _behind(text: str, what: re.Pattern[str], position: int) -> int:
    found = what.match(text, position)
    assert found is not None
    return found.end()


def _snapshot(content: dict[str, Any], listed: Iterable[Any]) -> Snapshot:
    has_blocks = content["schema"] > 1
    stacks: dict[Stack, Stack] = {}
    places = [_place(one, stacks) for one in content.get("places", [])]
    reading = _Reading()
    for block, size, place in content.get("before", []):
        reading.give(_whole(block), _whole(size), places[_index(place)], 0)
    phases: list[str] = []
    times = array("q")
    for event in listed:
        time, size, block, number = event if has_blocks else (*event, None, None)
        times.append(_whole(time))
        moment = len(times)
        if moment > MOST_EVENTS:
            raise ValueError(f"it has more than {MOST_EVENTS:,} events: record a shorter part of the program")
        place = _NOWHERE if number is None else places[_index(number)]
        phases.append(place.phase)
        if block is not None:
            _whole(block)
        if _whole(size) >= 0:
            reading.give(block, size, place, moment)
        else:
            reading.take(block, -size, place, moment)
    stages = of_marks(phases)
    blocks = list(deduced(reading.all_blocks(), stages))
    return Snapshot(
        source="perflab",
        device="cpu",
        blocks=as_told(notes_of(content).told(blocks) if has_blocks else blocks),
        times_ns=times,
        moments=len(times),
        stages=stages,
        steps=steps_of(stages),
        is_deduced=has_blocks,
        is_noted=has_blocks,
        notes=list(_notes(content, has_blocks=has_blocks)),
    )


def _notes(content: dict[str, Any], *, has_blocks: bool) -> Iterator[str]:
    if not has_blocks:
        yield "the file (schema 1) names no blocks: each free is taken for the latest block of its size"
    unseen = _whole(content.get("let_go_unseen_bytes", 0))
    if unseen:
        yield (
            f"{unseen:,} bytes that were there before were let go within; a CPU's profiler does not say when, so they "
            "are left out"
        )


class _Reading:
    def __init__(self) -> None:
        self.before: list[Block] = []
        self.blocks: list[Block] = []
        self.open: dict[int, list[int]] = {}
        """Numbers of the blocks that are alive, by address; by size if the file names no blocks."""

    def give(self, block: int | None, size: int, place: _Place, moment: int) -> None:
        """Add a block for an allocation."""
        self.open.setdefault(size if block is None else block, []).append(len(self.blocks))
        self.blocks.append(_block(size, block, place, moment, None))

    def take(self, block: int | None, size: int, place: _Place, moment: int) -> None:
        """Mark a block as freed; a block whose allocation was not seen was alive before the recording."""
        numbers = self.open.get(key := size if block is None else block)
        # For a block from before the recording, the allocator's size is more exact than the size of its tensors.
        if numbers and (self.blocks[numbers[-1]].size_bytes == size or not self.blocks[numbers[-1]].allocated_at):
            number = numbers.pop()
            if not numbers:
                del self.open[key]
            self.blocks[number] = self.blocks[number]._replace(
                size_bytes=size, requested_bytes=size, freed_at=moment, freed_by=place.stack
            )
        else:
            self.before.append(_block(size, block, _NOWHERE, 0, moment)._replace(freed_by=place.stack))

    def all_blocks(self) -> list[Block]:
        """Return all blocks, those from before the recording first."""
        held = [block for block in self.blocks if not block.allocated_at]
        return [*held, *self.before, *(block for block in self.blocks if block.allocated_at)]


def _block(size: int, block: int | None, place: _Place, since: int, until: int | None) -> Block:
    return Block(size, size, block or 0, 0, place.stack, place.category, place.module, place.phase, since, until)


def _place(found: dict[str, Any], stacks: dict[Stack, Stack]) -> _Place:
    """Read a place of the file. Equal stacks become one object, by whose identity blocks of one stack are found."""
    frames = tuple(Frame(str(file), _whole(line), str(function)) for file, line, function in found.get("frames", []))
    texts = (str(found.get(key) or "") for key in ("module", "phase", "category"))
    return _Place(stacks.setdefault(frames, frames), *texts)


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{reprlib.repr(value)} is no whole number")
    return value


def _index(value: object) -> int:
    number = _whole(value)
    if number < 0:
        raise IndexError(f"there is no place {number}")
    return number
