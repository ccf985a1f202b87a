"""A file seen a piece at a time: what lies ahead of a position. Lengths are checked before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

CHUNK_BYTES = 4 * 2**20
"""Read at a time; a form that is read at once lies within this."""
LONGEST_OPERAND = 300
"""Bytes of an opcode with the operands of fixed length, and of texts whose length is one byte."""
Progress = Callable[[int, int], None]
"""Is called with how many bytes were read, and how many there are."""


class Cut(Exception):  # noqa: N818 - it is an end, and no error of this module's callers
    """The file ended in the middle."""


class Window:
    """The part of a file around a position. Who cannot afford a call for each byte uses ``buffer`` and ``position``."""

    def __init__(self, file: BinaryIO, size: int, progress: Progress = lambda *_: None) -> None:
        self.buffer = b""
        self.position = 0
        self.at_end = False
        """Whether the buffer goes on to the file's end."""
        self.limit = -1
        """Up to this position an opcode lies in the buffer whole, with its operands of fixed length."""
        self._file, self._size, self._progress = file, size, progress
        self._before = 0

    @property
    def offset(self) -> int:
        """Where in the file it is."""
        return self._before + self.position

    def ensure(self, count: int) -> None:
        """Have so many bytes from the position on in the buffer.

        Raises:
            Cut: there are not as many left.
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
        """Let go of what lies behind the position, and have so many bytes more."""
        more = self._file.read(count)
        self._before += self.position
        self.buffer = self.buffer[self.position :] + more
        self.position = 0
        self.at_end = not more or self._before + len(self.buffer) >= self._size
        self.limit = len(self.buffer) - (0 if self.at_end else LONGEST_OPERAND)
        self._progress(self._before, self._size)

    def counted(self, width: int) -> bytes:
        """Bytes behind their length, which is checked against the rest of the file before it is believed."""
        self.ensure(1 + width)
        length = int.from_bytes(self.buffer[self.position + 1 : self.position + 1 + width], "little")
        self.ensure(1 + width + length)
        start = self.position + 1 + width
        self.position = start + length
        return self.buffer[start : self.position]

    def operand_is_whole(self, width: int) -> None:
        """See that so many bytes from the position on are there, where it is too late to read more.

        Raises:
            Cut: the file ends within them.
        """
        if self.at_end and self.position + width > len(self.buffer):
            raise Cut
