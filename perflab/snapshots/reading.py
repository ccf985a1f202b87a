"""Reads memory snapshots of PyTorch and of perflab."""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path
from typing import BinaryIO

from perflab.base.errors import SnapshotError
from perflab.base.files import open_regular
from perflab.snapshots.model import Snapshot
from perflab.snapshots.pytorch import read_pickle
from perflab.snapshots.recorded import read_json
from perflab.units import format_bytes

MOST_GIVEN = 2**62
"""The most bytes of all blocks of a recording together; a file with more is damaged."""
_QUIET_S = 2.0
"""Seconds of reading after which progress is shown."""


def read_snapshots(path: Path) -> list[Snapshot]:
    """Read the recordings in a file, one for each device that did anything.

    Raises:
        SnapshotError: the file is no snapshot, is damaged, or holds anything but plain data.
        OSError: the file cannot be opened.
    """
    try:
        found = _read(path)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, AttributeError, RecursionError) as error:
        raise SnapshotError(
            f"{path} is damaged: {type(error).__name__}: {error}", "record it again, or give another file"
        ) from error
    for one in found:
        # The sum over all blocks is limited, so that no sum over some of them overflows.
        sizes = [block.size_bytes for block in one.blocks]
        if sum(sizes) > MOST_GIVEN or min(sizes, default=0) < 0:
            raise SnapshotError(
                f"{path} is damaged: blocks of {one.device} have sizes that no device has",
                "record it again, or give another file",
            )
    return found


def _read(path: Path) -> list[Snapshot]:
    with open_regular(path) as file:
        first = file.read(1)
        file.seek(0)
        if not first:
            raise SnapshotError(f"{path} is empty", "record it again: the program may have ended before it was written")
        was_on = gc.isenabled()
        gc.disable()  # millions of objects are made, and none of them is garbage
        try:
            if first == b"{" or first.isspace():
                found = [read_json(file, path, _Progress(path).show)]
            else:
                found = _of_pickle(file, path)
        finally:
            if was_on:
                gc.enable()
    if not found:
        raise SnapshotError(
            f"{path} has no events and no memory in use",
            "call torch.cuda.memory._record_memory_history() before the part that is to be seen",
        )
    return found


def _of_pickle(file: BinaryIO, path: Path) -> list[Snapshot]:
    try:
        return read_pickle(file, path, _Progress(path).show)
    except SnapshotError as error:
        raise SnapshotError(f"{path}: {error.problem}", error.remedy) from error


class _Progress:
    """Shows the progress of reading on standard error, once reading has taken ``_QUIET_S`` seconds."""

    def __init__(self, path: Path) -> None:
        self.path, self.start, self.shown = path, time.monotonic(), -1

    def show(self, done: int, size: int) -> None:
        """Show the share of the file that is read, in steps of at least 5%; ``done`` and ``size`` are bytes."""
        percent = 100 * done // max(size, 1)
        if time.monotonic() - self.start > _QUIET_S and percent >= self.shown + 5:
            self.shown = percent
            print(f"{self.path.name}: {percent}% of {format_bytes(size)} read", file=sys.stderr, flush=True)
