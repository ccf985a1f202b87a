"""The events of PyTorch's snapshot as columns of numbers: 50 bytes per event, instead of a thousand as dictionaries.

Each event of the pickle is read as a whole, by its bytes: one match replaces a hundred opcodes. All events of a
recording are written alike: the same keys in the same order, each by its number in the memo. After one event was read
opcode by opcode, a regular expression is made that matches the bytes of the next events, with a group for each value.
An event that does not match, such as one with a call that was not met before, is read opcode by opcode again; the
result is the same, and tests compare both ways."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from perflab.base.errors import SnapshotError
from perflab.snapshots.model import Frame, Stack
from perflab.snapshots.unpickling import Content, Unpickling

ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
)
"""Actions of ``TraceEntry::Action`` in ``c10/cuda/CUDACachingAllocator.h``; others become ``OTHER`` and are skipped."""
OTHER = len(ACTIONS)
_ACTION_NUMBERS = {name: number for number, name in enumerate(ACTIONS)}
NUMBERS = ("addr", "size", "stream", "time_us")
LABELS = ("category", "module", "phase", "user_metadata", "tensor")
"""Keys of the texts that an event may have: category, module, phase, mark (``user_metadata``) and tensor."""


class StackNumber(int):
    """The number of a call stack, in place of its frames once the stack was read. No number of a file has this type."""


class Rows:
    """Events in the order of the file. Each call stack and each set of labels is stored once, under a number."""

    def __init__(self) -> None:
        self.actions = array("b")
        self.addresses = array("Q")
        self.sizes = array("q")
        self.streams = array("Q")
        self.times_us = array("q")
        self.stacks = array("i")
        self.labels = array("i")
        self.device_free: dict[int, int] = {}
        """Free bytes of the device, by row, for rows whose action is ``oom``."""
        self.has_times = False
        self.stack_table: list[Stack] = [()]
        self.stack_numbers = [StackNumber(0)]
        self.label_table: list[tuple[str, ...]] = [("",) * len(LABELS)]
        self._stacks: dict[Stack, int] = {(): 0}
        self._labels: dict[tuple[str, ...], int] = {("",) * len(LABELS): 0}
        self._frames: dict[Frame, Frame] = {}

    def __len__(self) -> int:
        return len(self.actions)

    def add(self, event: dict[str, Any]) -> None:
        """Add one event in the form that PyTorch writes.

        Raises:
            SnapshotError: a value has a type or size that no event has.
        """
        numbers = [event.get(key) or 0 for key in NUMBERS]
        self.add_values(event["action"], numbers, event.get("frames"), tuple(event.get(key) for key in LABELS))
        self.has_times = self.has_times or "time_us" in event
        if event["action"] == "oom":
            free = event.get("device_free")
            self.device_free[len(self) - 1] = free if type(free) is int else 0

    def add_values(self, action: Any, numbers: Sequence[Any], frames: Any, labels: tuple[Any, ...]) -> None:
        """Add one event, given the values of ``NUMBERS`` and ``LABELS``. ``frames``: a list, or a ``StackNumber``.

        Raises:
            SnapshotError: a value has a type or size that no event has.
        """
        try:
            stack = self.stack_of(frames)
            # Types are checked before anything is hashed: the hash of tuples within tuples may take for ever.
            for text in labels:
                if type(text) is not str and text is not None:
                    raise TypeError("a category, module, phase or mark is to be text")
            label = self._labels.get(labels)
            if label is None:
                texts = tuple("" if text is None else text for text in labels)
                label = self._labels.setdefault(texts, len(self.label_table))
                if label == len(self.label_table):
                    self.label_table.append(texts)
                self._labels[labels] = label
            number = _ACTION_NUMBERS.get(text_of(action), OTHER)
            self.addresses.append(numbers[0])
            self.sizes.append(numbers[1])
            self.streams.append(numbers[2])
            self.times_us.append(numbers[3])
            self.stacks.append(stack)
            self.labels.append(label)
            self.actions.append(number)
        except (TypeError, ValueError, OverflowError) as error:
            raise SnapshotError(
                f"event {len(self):,} of the snapshot has a value that no event has: {error}",
                "record it again with torch.cuda.memory._record_memory_history and _dump_snapshot",
            ) from error

    def stack_of(self, frames: Any) -> StackNumber:
        """Return the number of a call stack, given the list that PyTorch writes or the ``StackNumber`` in its place.

        Raises:
            TypeError: ``frames`` is no such list.
        """
        if type(frames) is StackNumber:
            return frames
        if not frames:
            return self.stack_numbers[0]
        if type(frames) is not list:
            raise TypeError("a stack is to be a list of frames")
        stack = tuple(self._frame(frame) for frame in frames)
        number = self._stacks.get(stack)
        if number is None:
            number = self._stacks[stack] = len(self.stack_table)
            self.stack_table.append(stack)
            self.stack_numbers.append(StackNumber(number))
        return self.stack_numbers[number]

    def _frame(self, found: Any) -> Frame:
        if type(found) is not dict:
            raise TypeError("a frame is to be a dictionary")
        line = found.get("line") or 0
        if type(line) is not int:
            raise TypeError("the line of a frame is to be a whole number")
        frame = Frame(text_of(found.get("filename")), line, text_of(found.get("name")))
        return self._frames.setdefault(frame, frame)


def text_of(value: Any) -> str:
    """Return a text of the file; empty for None.

    Other values are not converted, because the text of lists within lists can be endless.

    Raises:
        TypeError: the value is neither a text nor None.
    """
    if value is None:
        return ""
    if type(value) is not str:
        raise TypeError(f"a text is wanted, and a {type(value).__name__} is there")
    return value


EVENT = object()
"""The object that replaces an event once the event is a row; no value of a file is this object."""
MOST_LAYOUTS = 6
"""The most orders of keys that are tried; the order that matched last is tried first."""

MOST_KNOWN = 500_000
"""The most distinct values whose bytes are remembered."""

# All groups are atomic: the first byte decides between alternatives, so no bytes cause backtracking.
_PUT = rb"(?>\x94|q.|r.{4})"
_GET = rb"(?>h.|j.{4})"
_SMALL = rb"(?>K.|M..|J.{4})"
_NUMBER = rb"\x8a(?>\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}|\x09.{9})"
_TEXT = rb"\x8c.[ -~]*+\x94"
_LIST = rb"\]" + _PUT + rb"(?>\((?:" + _GET + rb")++e|" + _GET + rb"a|)"
_VALUE = rb"((?>" + b"|".join((_GET, _SMALL + rb"(?>" + _SMALL + rb"\x86" + _PUT + rb"|)", _NUMBER)) + rb"|[N\x88\x89]|"
_VALUE += _TEXT + rb"))"
_FRAMES = rb"((?>" + _LIST + b"|" + _GET + rb"|N))"
_ONE_GET = re.compile(_GET, re.DOTALL)
_ONE_NUMBER = re.compile(_SMALL, re.DOTALL)
_IS_PUT = re.compile(_PUT, re.DOTALL)


@dataclass(frozen=True)
class _Layout:
    """The form of events that have certain keys in a certain order."""

    pattern: re.Pattern[bytes]
    """The bytes of an event: one group stores the dictionary in the memo, and each value has one group."""
    numbers: Callable[[list[Any]], tuple[Any, ...]]
    """A function that picks the values of ``NUMBERS`` from an event's values."""
    action: int
    frames: int
    """The index of the call stack among the values; -1: no stack was recorded."""
    labels: Callable[[list[Any]], tuple[Any, ...]]
    """A function that picks the texts of ``LABELS``; a missing label gets the last value, which is empty."""


class Events(Content):
    """Turns the events of a PyTorch snapshot into rows, wherever the events stand in the file."""

    def __init__(self) -> None:
        self.rows = Rows()
        self._layouts: list[_Layout] = []
        self._seen: set[tuple[str, ...]] = set()
        self._known: dict[bytes, tuple[Any, int]] = {}
        """The value that bytes stand for, and the offset in the bytes at which the value is stored in the memo; 0: the
        value is not stored."""
        self._known_stacks: dict[bytes, tuple[Any, int]] = {}
        """The same mapping as ``_known``, for bytes that stand for a call stack."""

    def finished(self, found: dict[str, Any], machine: Unpickling) -> Any:
        """Add an event to the rows and return ``EVENT``; return any other dictionary unchanged."""
        if "action" not in found:
            return found
        self.rows.add(found)
        keys = tuple(found)
        if keys not in self._seen and len(self._seen) < 10 * MOST_LAYOUTS:
            self._seen.add(keys)
            self._learn(keys, machine.memo)
        machine.forget(2 * len(found))
        found.clear()  # the memo still holds this dictionary
        return EVENT

    def at_once(self, machine: Unpickling) -> bool:
        """Read the event at the machine's position if the event has a known form; return whether it was read."""
        for number, layout in enumerate(self._layouts):
            match = layout.pattern.match(machine.buffer, machine.position)
            if match is not None:
                if number:
                    self._layouts.insert(0, self._layouts.pop(number))
                return self._take(machine, match, layout)
        return False

    def _learn(self, keys: tuple[str, ...], memo: list[Any]) -> None:
        """Make a regular expression for events with these keys, if all of the keys are in the memo."""
        if not {*NUMBERS} <= {*keys} or "device_free" in keys:
            return
        # Keys are compared by identity: a mark of the same letters is another object, of which a million may exist.
        wanted = {*map(id, keys)}
        numbers = {id(text): number for number, text in enumerate(memo) if id(text) in wanted}
        if len(numbers) == len(keys):
            parts = []
            for key in keys:
                number = numbers[id(key)]  # the opcode by which a pickle takes the key from the memo
                got = bytes((0x68, number)) if number < 256 else b"j" + number.to_bytes(4, "little")
                parts.append(re.escape(got) + (_FRAMES if key == "frames" else _VALUE))
            layout = _Layout(
                re.compile(rb"\}(" + _PUT + rb")\(" + b"".join(parts) + b"u", re.DOTALL),
                itemgetter(*(keys.index(key) for key in NUMBERS)),
                keys.index("action"),
                keys.index("frames") if "frames" in keys else -1,
                itemgetter(*(keys.index(key) if key in keys else -1 for key in LABELS)),
            )
            self._layouts = [layout, *self._layouts][:MOST_LAYOUTS]

    def _take(self, machine: Unpickling, match: re.Match[bytes], layout: _Layout) -> bool:
        """Add a match to the rows, and store its objects in the memo. Return False if the event has another form."""
        put, *tokens = match.groups()
        memoizes = put == b"\x94"
        puts: list[tuple[bytes, int]] = [(put, 0)]
        made: list[Any] = [EVENT]
        values: list[Any] = []
        for number, token in enumerate(tokens):
            if token[0] == 0x8A:
                values.append(int.from_bytes(token[2:], "little", signed=True))
                continue
            is_stack = number == layout.frames
            known = self._known_stacks if is_stack else self._known
            found = known.get(token)
            if found is None:
                found = self._stack(machine, token) if is_stack else self._read(machine, token)
                if found is None:
                    return False
                if len(known) >= MOST_KNOWN:
                    known.clear()
                known[token] = found  # the same bytes always mean the same: a number of the memo is given only once
            value, place = found
            values.append(value)
            if place:
                if memoizes != (token[place] == 0x94):
                    return False  # no pickler mixes both ways to give numbers
                made.append(value)
                puts.append((token, place))
        values.append("")
        self.rows.add_values(
            values[layout.action], layout.numbers(values), values[layout.frames], layout.labels(values)
        )
        if memoizes:
            machine.memo += made
        else:
            for (token, place), value in zip(puts, made, strict=True):
                named = _IS_PUT.match(token, place)
                assert named is not None
                machine.put(int.from_bytes(named[0][1:], "little"), value)
        machine.position = match.end()
        machine.stack.append(EVENT)
        return True

    def _stack(self, machine: Unpickling, token: bytes) -> tuple[Any, int]:
        head = token[0]
        if head in (0x68, 0x6A):
            value = machine.get(int.from_bytes(token[1:], "little"))
            return (self.rows.stack_of(value) if type(value) in (list, StackNumber) else value), 0
        if head == 0x4E:
            return None, 0
        put = _IS_PUT.match(token, 1)  # the same bytes take the same frames from the memo
        assert put is not None
        gets = _ONE_GET.findall(token, put.end())
        return self.rows.stack_of([machine.get(int.from_bytes(one[1:], "little")) for one in gets]), 1

    def _read(self, machine: Unpickling, token: bytes) -> tuple[Any, int] | None:
        head = token[0]
        if head in (0x68, 0x6A):
            return machine.get(int.from_bytes(token[1:], "little")), 0
        if head == 0x8C:
            return (token[2:-1].decode("ascii"), len(token) - 1) if len(token) == token[1] + 3 else None
        if head in (0x4E, 0x88, 0x89):
            return {0x4E: None, 0x88: True, 0x89: False}[head], 0
        first = _ONE_NUMBER.match(token)
        assert first is not None
        value = int.from_bytes(first[0][1:], "little", signed=head == 0x4A)
        second = _ONE_NUMBER.match(token, first.end())
        if second is None:
            return value, 0
        pair = value, int.from_bytes(second[0][1:], "little", signed=second[0][0] == 0x4A)
        return pair, second.end() + 1
