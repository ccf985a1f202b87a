"""Chooses the device of a snapshot to show, or the devices of two snapshots to compare. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perflab.base.errors import SnapshotError
from perflab.snapshots.analysis import levels
from perflab.snapshots.model import Snapshot
from perflab.units import format_bytes


def choose(found: Sequence[Snapshot], device: str | None, path: Path) -> Snapshot:
    """Return the recording of the named device, else of one that ran out of memory, else of the one with most events.

    Raises:
        SnapshotError: the file has no recording of the named device.
    """
    if device is None:
        return max(found, key=lambda one: (bool(one.out_of_memory), one.moments, len(one.blocks)))
    for one in found:
        if device.removeprefix("cuda:") == _name(one).removeprefix("cuda:") or device == one.device:
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
    later = {_name(one): one for one in after}
    both = [(one, later[_name(one)]) for one in before if _name(one) in later]
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


def _name(one: Snapshot) -> str:
    """Return the device's name; ``cuda``, the device of a prediction, is ``cuda:0``."""
    return "cuda:0" if one.device == "cuda" else one.device
