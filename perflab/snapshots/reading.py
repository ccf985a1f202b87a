"""Reads memory snapshots of PyTorch and of perflab, and chooses the device to show, or the devices to compare."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perflab.attribution.reachable import collector_off
from perflab.base.errors import SnapshotError
from perflab.base.files import open_regular
from perflab.snapshots.analysis import levels
from perflab.snapshots.model import Snapshot
from perflab.snapshots.pytorch import read_pickle
from perflab.snapshots.recorded import read_json
from perflab.snapshots.unpickling import Progress
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
    with open_regular(path) as file, collector_off():  # millions of objects are made, and none of them is garbage
        first = file.read(1)
        file.seek(0)
        if not first:
            raise SnapshotError(f"{path} is empty", "record it again: the program may have ended before it was written")
        if first == b"{" or first.isspace():
            return [read_json(file, path, _progress_of(path))]
        try:
            found = read_pickle(file, path, _progress_of(path))
        except SnapshotError as error:
            raise SnapshotError(f"{path}: {error.problem}", error.remedy) from error
    if not found:
        raise SnapshotError(
            f"{path} has no events and no memory in use",
            "call torch.cuda.memory._record_memory_history() before the part that is to be seen",
        )
    return found


def _progress_of(path: Path) -> Progress:
    """Return a function that shows the share of the file that is read, in steps of at least 5%, on standard error.

    Nothing is shown until reading has taken ``_QUIET_S`` seconds.
    """
    start, shown = time.monotonic(), -1

    def show(done: int, size: int) -> None:
        nonlocal shown
        percent = 100 * done // max(size, 1)
        if time.monotonic() - start > _QUIET_S and percent >= shown + 5:
            shown = percent
            print(f"{path.name}: {percent}% of {format_bytes(size)} read", file=sys.stderr, flush=True)

    return show


def choose(found: Sequence[Snapshot], device: str | None, path: Path) -> Snapshot:
    """Return the recording of the named device, else of one that ran out of memory, else of the one with most events.

    Raises:
        SnapshotError: the file has no recording of the named device.
    """
    if device is None:
        return max(found, key=lambda one: (bool(one.out_of_memory), one.moments, len(one.blocks)))
    for one in found:
        if device.removeprefix("cuda:") == one.device.removeprefix("cuda:"):
            return one
    raise SnapshotError(
        f"{path} has nothing of device {device}", f"choose of {', '.join(one.device for one in found)}: --device"
    )


def choose_two(
    before: Sequence[Snapshot], after: Sequence[Snapshot], device: str | None, paths: tuple[Path, Path]
) -> tuple[Snapshot, Snapshot]:
    """Return the recordings of one device in two files.

    If no device is named and each file has only one recording, the devices of the recordings may differ.

    Args:
        before, after: all recordings of each file.
        device: the device to compare, or two devices with a comma between. None: of the devices in both files, one that
            ran out of memory, else the device with most events.
        paths: the paths of the files.

    Raises:
        SnapshotError: a file has no recording of the device, or no device is in both files.
    """
    if device is not None:
        first, _, second = device.partition(",")
        return choose(before, first, paths[0]), choose(after, second or first, paths[1])
    if len(before) == len(after) == 1:
        return before[0], after[0]
    later = {one.device: one for one in after}
    both = [(one, later[one.device]) for one in before if one.device in later]
    if both:
        return max(both, key=lambda two: (any(one.out_of_memory for one in two), sum(one.moments for one in two)))
    have = " and ".join(
        f"{path} has {', '.join(one.device for one in found)}"
        for path, found in zip(paths, (before, after), strict=True)
    )
    raise SnapshotError(
        f"no device is in both: {have}",
        f"name one of each: --device={before[0].device.removeprefix('cuda:')},{after[0].device.removeprefix('cuda:')}",
    )


def with_others_named(chosen: Snapshot, found: Sequence[Snapshot]) -> Snapshot:
    """Return a recording with a note on the other devices of its file."""
    others = [
        f"{one.device} with a peak of {format_bytes(max(levels(one)))}" + ", out of memory" * bool(one.out_of_memory)
        for one in found
        if one is not chosen
    ]
    if not others:
        return chosen
    note = f"only {chosen.device} is shown; the file also has {'; '.join(others)} (--device)"
    return replace(chosen, notes=[*chosen.notes, note])
