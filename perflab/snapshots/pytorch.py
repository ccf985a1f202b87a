"""Reads PyTorch's own snapshots: the pickle of ``torch.cuda.memory._dump_snapshot``, of every version since 2.3.

Predictions are written in the same form (``perflab.predicted.memory.snapshot``) and read by this module too. Perflab's
own recordings have notes behind the pickle's end (``notes``). Some files lack keys: ``frames`` if no stacks were
recorded, ``user_metadata`` before 2.10, ``category`` except in predictions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from perflab.base.errors import SnapshotError
from perflab.base.grouping import groups_of
from perflab.snapshots.deduced import as_told
from perflab.snapshots.device import Device, number_of
from perflab.snapshots.events import EVENT, Events, Rows
from perflab.snapshots.model import Snapshot
from perflab.snapshots.notes import BEGIN, MOST_BYTES, Notes, notes_of_json
from perflab.snapshots.unpickling import Unpickling
from perflab.snapshots.window import Cut, Progress

MOST_DEVICES = 1024
"""The most devices of a machine; a file that names a higher number is refused."""
PREDICTED = "prediction"
"""The ``kind`` under the key ``perflab`` of a prediction."""


def read_pickle(file: BinaryIO, path: Path, progress: Progress) -> list[Snapshot]:
    """Read the recordings of all devices that did anything.

    Raises:
        SnapshotError: the file is not plain data, or no snapshot of PyTorch's.
    """
    events = Events()
    size = os.fstat(file.fileno()).st_size
    machine = Unpickling(file, size, events, progress)
    notes: list[str] = []
    ours: Notes | None = None
    is_cut = False
    try:
        content = machine.load()
        ours, damage = _ours(file, machine.offset)
        notes += [f"{path.name}: {damage}"] * bool(damage)
    except Cut:
        is_cut = True
        content = _what_is_there(machine)
        notes.append(
            f"{path.name} is cut off at byte {machine.offset:,}: {len(events.rows):,} events were read before that, "
            "and what came after is not known"
        )
    if type(content) is list and content and all(type(one) is dict and "blocks" in one for one in content):
        content = {"segments": content, "device_traces": []}  # torch.cuda.memory_snapshot()
    if type(content) is not dict or not {"segments", "device_traces"} & content.keys():
        raise SnapshotError(
            "it is a pickle, but no memory snapshot: it has neither segments nor device_traces",
            "give a file that torch.cuda.memory._dump_snapshot wrote",
        )
    return list(_devices(content, events.rows, notes, ours, is_cut=is_cut))


def _ours(file: BinaryIO, position: int) -> tuple[Notes | None, str]:
    """Return perflab's notes behind PyTorch's part; or None and a text on the damage, empty if there are no notes."""
    file.seek(position)
    begin = file.read(len(BEGIN))
    if not begin or not BEGIN.startswith(begin):
        return None, ""
    damage = "they are cut off"
    if begin == BEGIN:
        try:
            return notes_of_json(file.read(MOST_BYTES)), ""
        except ValueError as error:
            damage = f"{error}"
    return None, (
        f"the notes of perflab behind PyTorch's part are damaged ({damage}), so that the file is read without them"
    )


def _what_is_there(machine: Unpickling) -> dict[str, Any]:
    """Return the content of a pickle that is cut off: the keys read so far, and the part of the last key's value."""
    stack = machine.stack
    content: dict[str, Any] = dict(stack[0]) if stack and type(stack[0]) is dict else {}
    at = [number for number, value in enumerate(stack) if type(value) is str and value in _KEYS]
    for number, end in zip(at, [*at[1:], len(stack)], strict=False):
        values = stack[number + 1 : end]
        if not values:
            continue
        first, rest = values[0], values[1:]
        if stack[number] == "device_traces":
            traces = [one for one in first if type(one) is list] if type(first) is list else []
            for value in rest:
                if type(value) is list:
                    traces.append(list(value))
                elif value is EVENT and traces:
                    traces[-1].append(EVENT)
                else:
                    break  # an event that is cut off
            content["device_traces"] = traces
        elif type(first) is list:
            content[stack[number]] = [*first, *(value for value in rest if type(value) is dict and value)]
    content.setdefault("device_traces", [])
    return content


_KEYS = ("segments", "device_traces", "external_annotations")


def _devices(
    content: dict[str, Any], rows: Rows, notes: list[str], ours: Notes | None, *, is_cut: bool
) -> Iterator[Snapshot]:
    traces = [trace if type(trace) is list else [] for trace in _list(content, "device_traces")]
    if sum(trace.count(EVENT) for trace in traces) != len(rows):
        raise SnapshotError(
            f"{len(rows):,} events were read, but the traces of all devices have another number of them",
            "record it again with torch.cuda.memory._record_memory_history and _dump_snapshot",
        )
    whole = [one for one in _list(content, "segments") if type(one) is dict and type(one.get("blocks")) is list]
    segments = groups_of(whole, lambda one: number_of(one, "device"))
    about = content.get("perflab")
    is_predicted = type(about) is dict and about.get("kind") == PREDICTED
    settings = content.get("allocator_settings")
    allocator = settings.get("PYTORCH_CUDA_ALLOC_CONF") if type(settings) is dict else None
    if type(allocator) is str and "roundup_power2_divisions" in allocator:
        notes = [
            *notes,
            "the allocator rounded sizes up further (roundup_power2_divisions): blocks took more than is said here, "
            "and fragments are less",
        ]
    start = 0
    devices = sorted({*range(len(traces)), *segments})
    if len(traces) > MOST_DEVICES or devices[-1:] > [MOST_DEVICES]:
        raise SnapshotError(
            f"it names device {devices[-1]:,}, and no machine has as many", "give a file that PyTorch wrote"
        )
    for device in devices:
        count = traces[device].count(EVENT) if device < len(traces) else 0
        if count or device in segments:
            reading = Device(rows, range(start, start + count), segments.get(device, []), is_cut=is_cut)
            reading.read()
            found = reading.snapshot(device, content.get("external_annotations"), is_predicted, notes)
            yield _noted(found, ours) if ours and ours.device == device else found
        start += count


def _noted(found: Snapshot, ours: Notes) -> Snapshot:
    """Add perflab's notes to a snapshot. The recorder keeps the last events, so the first events may be missing."""
    lost = ours.events - found.moments
    if lost < 0:  # other code recorded too, and its events are included
        return found
    notes = [*found.notes]
    if lost:
        notes.append(
            f"the first {lost:,} of {ours.events:,} allocations and frees were not kept: the peak may be there"
        )
    return replace(found, blocks=as_told(ours.since(lost).told(found.blocks)), is_noted=True, notes=notes)


def _list(content: dict[str, Any], key: str) -> list[Any]:
    value = content.get(key)
    return value if type(value) is list else []
