"""Recordings of memory as JSON with one event a line, readable without loading the whole file.

Imports no other module of perflab.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO

_BEGIN, _END = b'"events": [\n', b"]}"
_LONGEST_BYTES = 1000
"""The longest line of an event that is read; a typical one has 100 bytes."""
_A_WHILE = 2**16
"""Number of events between two progress reports."""


def as_lines(head: Mapping[str, Any], events: Iterable[object]) -> Iterator[bytes]:
    """Yield JSON: the keys of ``head``, then ``events``, one event a line."""
    start = json.dumps(head).encode("ascii")
    yield start[:-1] + (b", " if head else b"") + _BEGIN
    comma = b""
    for event in events:
        yield comma + json.dumps(event).encode("ascii")
        comma = b",\n"
    yield b"\n" + _END + b"\n"


def head_of(text: bytes) -> tuple[dict[str, Any], int] | None:
    """Return the keys before the events, and the byte at which the events begin; None unless ``as_lines`` wrote it."""
    at = text.find(_BEGIN)
    if at < 0:
        return None
    try:
        head = json.loads(text[:at] + _BEGIN + _END)
    except (ValueError, RecursionError):
        return None
    return head, at + len(_BEGIN)


class EventLines:
    """The events of a file, read one by one. ``progress`` receives the bytes read and the file's size."""

    def __init__(self, file: BinaryIO, start: int, progress: Callable[[int, int], None]) -> None:
        self._file, self._start, self._progress = file, start, progress
        self.cut_at = 0
        """Once the events are read: the byte from which the file is unreadable; 0 if it is whole."""

    def __iter__(self) -> Iterator[Any]:
        size = os.fstat(self._file.fileno()).st_size
        self._file.seek(self._start)
        at = self._start
        for number in itertools.count():
            line = self._file.readline(_LONGEST_BYTES)
            text = line.strip()
            if text == _END:
                return
            try:
                event = json.loads(text.removesuffix(b","))
            except (ValueError, RecursionError):
                break
            at += len(line)
            if number % _A_WHILE == 0:
                self._progress(at, size)
            yield event
        self.cut_at = at
