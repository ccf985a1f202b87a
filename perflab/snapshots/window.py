"""Reads a file piece by piece, ahead of a position. Lengths are checked before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

CHUNK_BYTES = 4 * 2**20
"""Bytes that are read at a time; a dictionary that is read at once lies within so many bytes."""
LONGEST_OPERAND = 300
"""The most bytes of an opcode with operands of fixed length, or with a text whose length takes one byte."""
Progress = Callable[[int, int], None]
"""A function that is called with the bytes read so far and the size of the file, in bytes."""


class Cut(Exception):  # noqa: N818 - it is an end, and no error of this module's callers
    """The file ended before its content did."""


class Window:
    """The part of a file around a position. Fast loops use ``buffer`` and ``position`` directly, without calls."""

    def __init__(self, file: BinaryIO, size: int, progress: Progress) -> None:
        self.buffer = b""
        self.position = 0
        self.at_end = False
        """Whether the buffer reaches the end of the file."""
        self.limit = -1
        """The last position at which the buffer surely holds a whole opcode with its operands of fixed length; the end
        of the buffer if ``at_end`` is True."""
        self._file, self._size, self._progress = file, size, progress
        self._before = 0

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
