"""Reads pickles of plain data: containers, numbers, text, bytes, None and bools; protocols 0 to 5.

The module is an interpreter of its own and does not use ``pickle``. The interpreter has no opcode that looks up, builds
or calls anything, so a file can reach nothing: other opcodes are refused by name, with their offset in the file. The
size of the file bounds the memory: a length is checked against the rest of the file before anything is allocated, and
objects of the memo are numbered in their order. A file is refused if it makes more objects or containers, leaves more
objects outside of containers, or nests deeper than any snapshot. No references are followed, so a structure that
contains itself does no harm.

A reader that knows the content of the pickle provides hooks by ``Content``: one may replace a finished dictionary by
something smaller, and another may read a whole dictionary at once if its bytes have a known form.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, BinaryIO, NoReturn

from perflab.base.errors import SnapshotError

CHUNK_BYTES = 4 * 2**20
"""Bytes that are read at a time; a dictionary that is read at once lies within so many bytes."""
LONGEST_OPERAND = 300
"""The most bytes of an opcode with operands of fixed length, or with a text whose length takes one byte."""
Progress = Callable[[int, int], None]
"""A function that is called with the bytes read so far and the size of the file, in bytes."""


class Cut(Exception):  # noqa: N818 - it is an end, and no error of this module's callers
    """The file ended before its content did."""


MOST_OBJECTS = 25_000_000
"""The most opcodes that are executed one by one, each of which may make an object. Events do not count."""
FEW_CONTAINERS, CONTAINER_BYTES = 10_000, 6
"""A file with more than ``FEW_CONTAINERS`` lists, dictionaries and tuples must have ``CONTAINER_BYTES`` bytes for each;
a frame of a call stack takes 16."""
MOST_LYING = 1_000_000
"""The most objects that no container has taken yet; a pickler adds a thousand at a time to a container."""
DEEPEST = 100
"""The most containers that are open within each other at a time; a snapshot has six."""
LONGEST_NUMBER = 16
"""The most bytes of an integer."""
LONGEST_LINE = 2**20
"""The most bytes of a line in protocol 0, whose operands end with a line."""

_REFUSED = {
    "c": "GLOBAL, which looks up a class or function",
    "i": "INST, which makes an object",
    "o": "OBJ, which makes an object",
    "R": "REDUCE, which calls a function",
    "b": "BUILD, which sets an object's state",
    "P": "PERSID, which asks for an object from elsewhere",
    "Q": "BINPERSID, which asks for an object from elsewhere",
    "\x81": "NEWOBJ, which makes an object",
    "\x82": "EXT1, which looks up a registered class",
    "\x83": "EXT2, which looks up a registered class",
    "\x84": "EXT4, which looks up a registered class",
    "\x92": "NEWOBJ_EX, which makes an object",
    "\x93": "STACK_GLOBAL, which looks up a class or function",
}
_TEXT_LENGTHS = {0x8C: 1, 0x58: 4, 0x8D: 8}
"""Bytes of the length that follows SHORT_BINUNICODE, BINUNICODE and BINUNICODE8."""
_BYTES_LENGTHS = {0x43: 1, 0x42: 4, 0x8E: 8}
_CONTAINERS = b"])\x85\x86\x87tld"
"""Opcodes that make a container: EMPTY_LIST, EMPTY_TUPLE, TUPLE1 to TUPLE3, TUPLE, LIST, DICT. EMPTY_DICT is handled
separately."""


class Content:
    """Hooks with which a reader changes the content of a pickle during reading; this base class changes nothing."""

    def finished(self, found: dict[str, Any], machine: Unpickling) -> Any:
        """Return the object that replaces a dictionary that has just been filled."""
        return found

    def at_once(self, machine: Unpickling) -> bool:
        """Read the whole dictionary at ``machine.position`` and advance the position; return whether it was read."""
        return False


class Unpickling:
    """The interpreter of one pickle. ``stack``, ``marks`` and ``memo`` have the same meaning as in any unpickler.

    The file is read piece by piece, ahead of a position. Fast loops use ``buffer`` and ``position`` without calls.
    """

    def __init__(self, file: BinaryIO, size: int, content: Content, progress: Progress = lambda *_: None) -> None:
        self.buffer = b""
        self.position = 0
        self.at_end = False
        """Whether the buffer reaches the end of the file."""
        self.limit = -1
        """The last position at which the buffer surely holds a whole opcode with its operands of fixed length; the end
        of the buffer if ``at_end`` is True."""
        self._file, self._size, self._progress, self._before = file, size, progress, 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []
        self._content, self._objects, self._containers = content, 0, 0

    @property
    def offset(self) -> int:
        """The position's offset in the file, in bytes."""
        return self._before + self.position

    def ensure(self, count: int) -> None:
        """Read on until the buffer holds ``count`` bytes from the position on.

        Raises:
            Cut: the file has fewer bytes left.
        """
        if self.position + count > len(self.buffer):
            if self._before + self.position + count > self._size:
                self.at_end = True
                self.position = len(self.buffer)
                raise Cut
            self.read(max(count, CHUNK_BYTES))
            if self.position + count > len(self.buffer):
                raise Cut

    def read(self, count: int) -> None:
        """Drop the buffer's bytes before the position, and read at most ``count`` more bytes."""
        more = self._file.read(count)
        self._before += self.position
        self.buffer = self.buffer[self.position :] + more
        self.position = 0
        self.at_end = not more or self._before + len(self.buffer) >= self._size
        self.limit = len(self.buffer) - (0 if self.at_end else LONGEST_OPERAND)
        self._progress(self._before, self._size)

    def counted(self, width: int) -> bytes:
        """Return the bytes that follow a length of ``width`` bytes, and move behind them.

        The length is first checked against the rest of the file.
        """
        self.ensure(1 + width)
        length = int.from_bytes(self.buffer[self.position + 1 : self.position + 1 + width], "little")
        self.ensure(1 + width + length)
        start = self.position + 1 + width
        self.position = start + length
        return self.buffer[start : self.position]

    def operand_is_whole(self, width: int) -> None:
        """Check that ``width`` bytes from the position on are in the buffer, once the buffer reaches the file's end.

        Raises:
            Cut: the file ends within these bytes.
        """
        if self.at_end and self.position + width > len(self.buffer):
            raise Cut

    def refuse(self, why: str) -> NoReturn:
        """Refuse the pickle, with an error that names the offset in the file.

        Raises:
            SnapshotError: always.
        """
        raise SnapshotError(
            f"byte {self.offset:,} of the pickle: {why}",
            "a memory snapshot is plain data, and this is none; do not load the file with pickle either",
        )

    def forget(self, objects: int) -> None:
        """Subtract objects that no longer exist from the count of objects."""
        self._objects -= objects

    def _contain(self) -> None:
        """Count a container, and refuse too many: an empty one takes 1 byte of the file and 80 bytes of memory."""
        self._containers += 1
        if self._containers > FEW_CONTAINERS and CONTAINER_BYTES * self._containers > self.offset:
            self.refuse(f"{self._containers:,} containers in so few bytes, which no snapshot has")

    def get(self, number: int) -> Any:
        """Return the object with a number in the memo."""
        if number < len(self.memo):
            return self.memo[number]
        self.operand_is_whole(5 if self.buffer[self.position] == 0x6A else 2)
        self.refuse(f"object {number} of the memo is used, and there is none")

    def put(self, number: int, value: Any) -> None:
        """Store an object in the memo. Picklers count objects, so each number is given once, and none is left out."""
        if number != len(self.memo):
            how = "twice" if number < len(self.memo) else f"before object {len(self.memo)}"
            self.refuse(f"object {number} of the memo is given {how}")
        self.memo.append(value)

    def load(self) -> Any:
        """Read the pickle and return its object.

        Raises:
            SnapshotError: the file is not plain data, or no pickle at all.
            Cut: the file ends before the pickle does; ``stack`` holds the objects read so far.
        """
        try:
            return self._load()
        except IndexError:
            if self.at_end and self.position + 1 >= len(self.buffer):
                raise Cut from None
            self.refuse("it takes more from the stack than there is")
        except (ValueError, OverflowError, struct.error) as error:  # invalid UTF-8, invalid digits
            self.refuse(str(error))

    def _load(self) -> Any:
        stack, marks, memo = self.stack, self.marks, self.memo
        append = stack.append
        while True:
            position = self.position
            if position > self.limit and not self.at_end:
                self.read(CHUNK_BYTES)
                position = 0
                if len(stack) > MOST_LYING:
                    self.refuse(f"{len(stack):,} objects are in no container, which no snapshot has")
            buffer = self.buffer
            code = buffer[position]
            if code == 0x68:  # BINGET
                append(self.get(buffer[position + 1]))
                self.position += 2
            elif code == 0x6A:  # LONG_BINGET
                append(self.get(int.from_bytes(buffer[position + 1 : position + 5], "little")))
                self.position += 5
            elif code == 0x94:  # MEMOIZE
                memo.append(stack[-1])
                self.position += 1
            elif code == 0x4B:  # BININT1
                append(buffer[position + 1])
                self.position += 2
            elif code == 0x8A:  # LONG1
                length = buffer[position + 1]
                if length > LONGEST_NUMBER:
                    self.refuse(f"a number of {length} bytes")
                append(int.from_bytes(buffer[position + 2 : position + 2 + length], "little", signed=True))
                self.position += 2 + length
            elif code == 0x28:  # MARK
                if len(marks) >= DEEPEST:
                    self.refuse(f"more than {DEEPEST} containers within each other")
                marks.append(len(stack))
                self.position += 1
            elif code == 0x7D:  # EMPTY_DICT
                if self._content.at_once(self):
                    continue
                self._contain()
                append({})
                self.position += 1
            elif code in (0x71, 0x72):  # BINPUT, LONG_BINPUT
                width = 1 if code == 0x71 else 4
                self.operand_is_whole(1 + width)
                self.put(int.from_bytes(buffer[position + 1 : position + 1 + width], "little"), stack[-1])
                self.position += 1 + width
            elif code == 0x2E:  # STOP
                self.position += 1
                if len(stack) != 1 or marks:
                    self.refuse("it ends with more or less than one object")
                return stack[0]
            else:
                self._rarer(code)
            self._objects += 1
            if self._objects > MOST_OBJECTS:
                self.refuse(f"more than {MOST_OBJECTS:,} objects beside its events, which no snapshot has")

    def _rarer(self, code: int) -> None:
        stack, buffer, position = self.stack, self.buffer, self.position
        if code in _TEXT_LENGTHS:
            stack.append(_sayable(self.counted(_TEXT_LENGTHS[code]).decode("utf-8", "surrogatepass")))
            return
        if code in _BYTES_LENGTHS:
            stack.append(self.counted(_BYTES_LENGTHS[code]))
            return
        width = 1
        if code in _CONTAINERS:
            self._contain()
        if code == 0x4D:  # BININT2
            stack.append(int.from_bytes(buffer[position + 1 : position + 3], "little"))
            width = 3
        elif code == 0x4A:  # BININT
            stack.append(int.from_bytes(buffer[position + 1 : position + 5], "little", signed=True))
            width = 5
        elif code == 0x47:  # BINFLOAT
            self.ensure(9)
            stack.append(struct.unpack_from(">d", self.buffer, self.position + 1)[0])
            width = 9
        elif code in (0x4E, 0x88, 0x89):  # NONE, NEWTRUE, NEWFALSE
            stack.append({0x4E: None, 0x88: True, 0x89: False}[code])
        elif code == 0x5D:  # EMPTY_LIST
            stack.append([])
        elif code == 0x29:  # EMPTY_TUPLE
            stack.append(())
        elif code in (0x85, 0x86, 0x87):  # TUPLE1, TUPLE2, TUPLE3
            self._tuple(len(stack) - (code - 0x84))
        elif code == 0x74:  # TUPLE
            self._tuple(self._mark())
        elif code == 0x6C:  # LIST
            start = self._mark()
            stack[start:] = [[self._item(one) for one in stack[start:]]]
        elif code == 0x64:  # DICT
            start = self._mark()
            pairs = stack[start:]
            stack[start:] = [{}]
            self._fill(pairs)
        elif code in (0x61, 0x65):  # APPEND, APPENDS
            start = len(stack) - 1 if code == 0x61 else self._mark()
            if start - 1 < self._floor() or type(stack[start - 1]) is not list:
                self.refuse("it appends to what is no list")
            target = stack[start - 1]
            target.extend([self._item(one) for one in stack[start:]])
            del stack[start:]
        elif code in (0x73, 0x75):  # SETITEM, SETITEMS
            start = len(stack) - 2 if code == 0x73 else self._mark()
            pairs = stack[start:]
            if start - 1 < self._floor() or type(stack[start - 1]) is not dict:
                self.refuse("it sets items of what is no dictionary")
            del stack[start:]
            self._fill(pairs, whole=code == 0x75)
        elif code == 0x95:  # FRAME: its length is of no use here
            width = 9
        elif code == 0x80:  # PROTO
            if buffer[position + 1] > 5:
                self.refuse(f"protocol {buffer[position + 1]}, and the newest known is 5")
            width = 2
        elif code in b"ILFVpg":
            self._line(chr(code))
            return
        else:
            self.refuse(_REFUSED.get(chr(code)) or f"opcode {code:#04x}, which plain data does not need")
        self.position += width

    def _line(self, code: str) -> None:
        """Read an opcode of protocol 0, whose operand ends with the line."""
        end = self.buffer.find(b"\n", self.position + 1)
        if end < 0 and not self.at_end:
            self.read(LONGEST_LINE)
            end = self.buffer.find(b"\n", self.position + 1)
        if end < 0:
            if self.at_end:
                self.position = len(self.buffer)
                raise Cut
            self.refuse(f"a line of more than {LONGEST_LINE:,} bytes")
        text = self.buffer[self.position + 1 : end]
        if code != "V" and len(text) > 100:
            self.refuse(f"a number of {len(text)} digits")
        if code == "V":
            self.stack.append(_sayable(text.decode("raw-unicode-escape")))
        elif code == "F":
            self.stack.append(float(text))
        elif code == "p":
            self.put(int(text), self.stack[-1])
        elif code == "g":
            self.stack.append(self.get(int(text)))
        else:
            self.stack.append(
                {b"00": False, b"01": True}.get(text) if text in (b"00", b"01") else int(text.rstrip(b"L"))
            )
        self.position = end + 1

    def _floor(self) -> int:
        """Return the stack index of the last mark; objects below this index belong to containers still open."""
        return self.marks[-1] if self.marks else 0

    def _mark(self) -> int:
        if not self.marks:
            self.refuse("a container ends that has not begun")
        return self.marks.pop()

    def _tuple(self, start: int) -> None:
        if start < self._floor():
            self.refuse("it takes more from the stack than there is")
        self.stack[start:] = [tuple(self.stack[start:])]

    def _item(self, value: Any) -> Any:
        return self._content.finished(value, self) if type(value) is dict else value

    def _fill(self, pairs: list[Any], whole: bool = False) -> None:
        """Set items of the dictionary on top of the stack. ``whole``: these are all items of the dictionary."""
        keys = pairs[::2]
        # Keys must be texts: the hashes of texts are salted, so no file can choose keys that collide.
        if len(pairs) % 2 or not all(type(key) is str for key in keys):
            self.refuse("a dictionary's keys are to be texts")
        target = self.stack[-1]
        target.update(zip(keys, pairs[1::2], strict=True))
        if whole:
            self.stack[-1] = self._content.finished(target, self)


def _sayable(text: str) -> str:
    """Escape lone surrogates: names of files that are not UTF-8 contain them, and surrogates cannot be printed."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
