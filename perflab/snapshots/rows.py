"""The events of PyTorch's snapshot as columns of numbers: 50 bytes per event, instead of a thousand as dictionaries."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from perflab.base.errors import SnapshotError
from perflab.snapshots.model import Frame, Stack

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
_NUMBER = {name: number for number, name in enumerate(ACTIONS)}
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
        length = len(self.actions)
        try:
            stack = self.stack_of(frames)
            # Types are checked before anything is hashed: the hash of tuples within tuples may take for ever.
            for text in labels:
                if type(text) is not str and text is not None:
                    raise TypeError("a category, module, phase or mark is to be text")
            label = self._labels.get(labels)
            if label is None:
                label = self._label_of(labels)
            number = _NUMBER.get(text_of(action), OTHER)
            self.addresses.append(numbers[0])
            self.sizes.append(numbers[1])
            self.streams.append(numbers[2])
            self.times_us.append(numbers[3])
            self.stacks.append(stack)
            self.labels.append(label)
            self.actions.append(number)
        except (TypeError, ValueError, OverflowError) as error:
            for column in (self.addresses, self.sizes, self.streams, self.times_us, self.stacks, self.labels):
                del column[length:]
            raise SnapshotError(
                f"event {length:,} of the snapshot has a value that no event has: {error}",
                "record it again with torch.cuda.memory._record_memory_history and _dump_snapshot",
            ) from error

    def _label_of(self, labels: tuple[Any, ...]) -> int:
        texts = tuple("" if text is None else text for text in labels)
        number = self._labels.get(texts)
        if number is None:
            number = self._labels[texts] = len(self.label_table)
            self.label_table.append(texts)
        self._labels[labels] = number
        return number

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
