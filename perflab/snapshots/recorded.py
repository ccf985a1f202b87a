"""Reads perflab's own JSON: recordings of ``memory_snapshot`` on a CPU, as ``measure/memory/histories.py`` writes them.

Schema 3 has ``events`` of ``[time, bytes, block, place]``, each on its own line (``event_lines``). Before the events
come ``places``; ``before`` with ``[block, bytes, place]`` of blocks that were alive already; and ``looks`` with the
blocks at known addresses. Schema 1, of a recording whose blocks nobody can tell apart, has only ``[time, bytes]``.

Perflab's notes, in its own recordings, are categories of blocks, known by pointer, and the module that ran. A look
lists what lies at some addresses at a moment: parameters, gradients, optimizer state and so on, each with its module.
An entry holds for the block that is alive at the address at that moment, over the block's whole life. The categories of
other blocks are deduced from call stacks, as in files that perflab did not write.
"""

from __future__ import annotations

import contextlib
import json
import re
import reprlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from perflab.base.errors import SnapshotError
from perflab.base.event_lines import EventLines, head_of
from perflab.base.grouping import groups_of
from perflab.snapshots.deduced import as_told, deduced, of_marks, steps_of
from perflab.snapshots.model import Block, Frame, Snapshot, Stack
from perflab.snapshots.unpickling import Progress
from perflab.units import format_bytes

BEGIN = b"\nperflab notes 1\n"
"""The separator between PyTorch's pickle and the notes, written by ``perflab.measure.memory.histories``."""
_WEAK = "inputs"
"""The category of memory that a callable reaches and nothing else owns; any other category takes precedence."""


@dataclass(frozen=True)
class Look:
    """The memory at some addresses at a moment."""

    moment: int
    at: Mapping[int, tuple[str, str]]
    """Category and module of the memory, by address."""


@dataclass(frozen=True)
class Notes:
    """Perflab's notes on one recording."""

    looks: Sequence[Look] = ()
    modules: Sequence[tuple[int, str]] = ()
    """The moment from which on each module ran, and the module's name; an empty name: no module ran."""
    events: int = 0
    """The number of moments of the recording, including those that the recorder did not keep."""
    device: int = 0
    """The number of the device that was recorded."""
    returned: tuple[int, frozenset[int]] | None = None
    """The moment at which the call had returned, and the addresses of its result."""

    def since(self, moments: int) -> Notes:
        """Return the notes for a recording without its first ``moments`` moments."""
        return replace(
            self,
            looks=[replace(one, moment=one.moment - moments) for one in self.looks if one.moment >= moments],
            modules=[(max(moment - moments, 0), name) for moment, name in self.modules],
            returned=(self.returned[0] - moments, self.returned[1]) if self.returned else None,
        )

    def told(self, blocks: Sequence[Block]) -> list[Block]:
        """Return the blocks with the categories and modules that the notes give."""
        if not self.looks and not self.modules:
            return list(blocks)
        seen = self._seen(blocks)
        found = [
            block if number in seen else block._replace(category=self._let_go_with_result(block) or block.category)
            for number, block in enumerate(blocks)
        ]
        for number, (category, module) in seen.items():
            found[number] = found[number]._replace(category=category, module=module or found[number].module)
        starts = [moment for moment, _ in self.modules]
        for number, block in enumerate(found):
            ran = bisect_left(starts, block.allocated_at) - 1 if block.allocated_at else -1
            if ran >= 0 and not block.module:
                found[number] = block._replace(module=self.modules[ran][1])
        return found

    def _let_go_with_result(self, block: Block) -> str:
        """Return the category of a block that the call made and that was freed after the call had returned.

        The result itself is ``temporaries``; a block kept for a backward is ``activations``. Empty: any other block.
        """
        if self.returned is None or block.freed_at is None:
            return ""
        moment, addresses = self.returned
        if not 0 < block.allocated_at <= moment < block.freed_at:
            return ""
        return "temporaries" if block.address in addresses else "activations"

    def _seen(self, blocks: Sequence[Block]) -> dict[int, tuple[str, str]]:
        """Return category and module of each block that a look lists, by the block's number."""
        addresses = {address for look in self.looks for address in look.at}
        noted = (number for number, block in enumerate(blocks) if block.address in addresses)
        lying = groups_of(noted, lambda number: blocks[number].address)
        said: dict[int, tuple[str, str]] = {}
        for look in self.looks:
            for address, what in look.at.items():
                for number in lying.get(address, ()):
                    if blocks[number].is_there(look.moment) and said.get(number, (_WEAK,))[0] == _WEAK:
                        said[number] = what
        return said


def notes_of(content: dict[str, Any]) -> Notes:
    """Read notes from content in the form that ``perflab.measure.memory.histories`` writes.

    Raises:
        ValueError, TypeError: the content has another form.
    """
    looks = []
    for moment, parts in content["looks"]:
        at = {}
        for address, category, module in parts:
            if type(address) is not int or type(category) is not str or type(module) is not str:
                raise ValueError(f"a look says {reprlib.repr([address, category, module])}")
            at[address] = category, module
        looks.append(Look(_count(moment), at))
    returned = None
    if "returned" in content:
        moment, addresses = content["returned"]
        returned = _count(moment), frozenset(map(_count, addresses))
    modules = [(_count(moment), str(name)) for moment, name in content.get("modules", ())]
    return Notes(looks, modules, returned=returned)


def notes_of_json(text: bytes) -> Notes:
    """Read the notes that follow ``BEGIN``.

    Raises:
        ValueError: the notes are damaged.
    """
    try:
        content = json.loads(text)
        return replace(notes_of(content), events=_count(content["events"]), device=_count(content["device"]))
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{reprlib.repr(value)} is no whole number of 0 or more")
    return value


MOST_BYTES = 2**26
"""The most bytes of JSON, or of notes, that are read as a whole, which may take 22 times their size in memory. Larger
files must have one event per line."""
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
            f"{path} is no recording of memory_snapshot: {error}", "record it again, or give another file"
        ) from error
    cut_at = cut_at if lines is None else lines.cut_at
    if not cut_at:
        return found
    note = (
        f"{path.name} is cut off or damaged at character {cut_at:,}: {found.moments:,} events were read before that, "
        "and what came after is not known"
    )
    return replace(found, notes=[note, *found.notes], is_whole=False)


def _what_is_there(whole: bytes) -> tuple[Any, int]:
    """Return the content of JSON, and the character at which the JSON is cut off; 0: the JSON is whole.

    Of JSON that is cut off, the content has the whole values by key, with the whole items of a list that is cut off.
    """
    with contextlib.suppress(json.JSONDecodeError):
        return json.loads(whole), 0
    text = whole.decode("utf-8", "replace")
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
        reading.give(_whole(block), _whole(size), places[_count(place)], 0)
    phases: list[str] = []
    times = array("q")
    for event in listed:
        time, size, block, number = event if has_blocks else (*event, None, None)
        times.append(_whole(time))
        moment = len(times)
        if moment > MOST_EVENTS:
            raise ValueError(f"it has more than {MOST_EVENTS:,} events: record a shorter part of the program")
        place = _NOWHERE if number is None else places[_count(number)]
        phases.append(place.phase)
        if block is not None:
            _whole(block)
        if _whole(size) >= 0:
            reading.give(block, size, place, moment)
        else:
            reading.take(block, -size, place, moment)
    stages = of_marks(phases)
    held = [block for block in reading.blocks if not block.allocated_at]  # those from before the recording come first
    later = [block for block in reading.blocks if block.allocated_at]
    blocks = list(deduced([*held, *reading.before, *later], stages))
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
