"""Writes a prediction as a PyTorch memory snapshot.

Two forms, those of the ``memory_snapshot`` fixture. ``write_snapshot``: PyTorch's own pickle, which
https://pytorch.org/memory_viz and ``torch.cuda._memory_viz`` read; its addresses and segments are the model's
(``replay``), so they are an estimate. ``write_timeline``: blocks without addresses, as JSON, as on a CPU; exact.

Both begin with the call, as a recording does: what is held is there already. The pickle is of the last round of the
replay, when the cache is warm, or of the one that ran out of memory.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from perflab.event_lines import as_lines
from perflab.predicted.memory.caching_allocator import BlockState, Segment, round_size
from perflab.predicted.memory.replay import WORKSPACES, Replay, replay
from perflab.predicted.trace.trace import Alloc, Free, Op, Trace

PROTOCOL = 4
"""Of the pickle: the viewer's own reader (``unpickle`` in ``torch/utils/viz/MemoryViz.js``) knows 2 to 4."""
NO_LIMIT = -1
"""``max_split_size`` where there is none, as a snapshot has it: the largest ``size_t`` as a signed number."""

TimeOf = Callable[[Op], float]
"""An operator's time in nanoseconds."""


def write_snapshot(
    trace: Trace,
    path: Path,
    *,
    capacity_bytes: int | None = None,
    workspace_bytes: int = 0,
    time_of: TimeOf | None = None,
) -> Path:
    """Write PyTorch's memory snapshot of the call, as ``torch.cuda.memory._dump_snapshot`` would.

    A block's frame is the line that asked for it, with the operator and the module as the function's name. Its
    ``category``, by which the viewer colours, is its kind (``predicted.records.KINDS``); of what was held before, the
    viewer heeds none and shows ``unknown``, but the frame says it. There is nothing in the file but plain containers,
    numbers and text. Beside PyTorch's keys, blocks have ``module`` and ``phase``, for ``perflab.snapshots``.

    Args:
        trace: the call.
        path: where to write, without the ending ``.pickle``.
        capacity_bytes, workspace_bytes: as in ``replay``. A snapshot of a call that does not fit ends with ``oom``.
        time_of: an operator's time; ``time_us`` is then the predicted time. None: it is the number of the event.

    Raises:
        OSError: the file cannot be written.
    """
    played = replay(trace, capacity_bytes=capacity_bytes, workspace_bytes=workspace_bytes)
    target = path.with_name(path.name + ".pickle")
    _write_whole(target, pickle.dumps(_Snapshot(trace, played, capacity_bytes, time_of).content(), protocol=PROTOCOL))
    return target


def write_timeline(trace: Trace, path: Path, *, rounded: bool = False, time_of: TimeOf | None = None) -> Path:
    """Write the rise and fall of memory during the call, as ``record_memory`` writes it on a CPU.

    ``events`` are ``[time, bytes, block, place]``, bytes negative for a free; ``peak_bytes`` is the highest rise above
    the beginning; the further key ``time`` says what the times are: ``predicted ns``, or ``event``, the number of the
    event in the trace. ``before`` are ``[block, bytes, place]`` of what was held, ``marks`` are ``[event, phase]``
    where a phase begins.

    Args:
        trace: the call.
        path: where to write, without the ending ``.json``.
        rounded: blocks as CUDA's allocator rounds them, to 512 B; else as they were asked for, as on a CPU.
        time_of: an operator's time; None: times are numbers of events.

    Raises:
        OSError: the file cannot be written.
    """
    sizes = {block.block: block.size_bytes for block in (*trace.held, *trace.events) if isinstance(block, Alloc)}
    if rounded:
        sizes = {block: round_size(size) if size else 0 for block, size in sizes.items()}
    places: dict[tuple[Any, ...], int] = {}
    place_of: dict[int, int] = {}
    for block in (*trace.held, *trace.events):
        if isinstance(block, Alloc):
            file, line = _split(block.place.line)
            use = trace.uses.get(block.block)
            kind = use.kind if use else ""
            place = (block.operator, _module(block), block.place.phase, kind, file, line, _tensor(trace, block))
            place_of[block.block] = places.setdefault(place, len(places))
    history: list[list[int]] = []
    marks, level, peak = [[0, ""]], 0, 0
    for event, time, phase in zip(trace.events, _times(trace, time_of), _phases(trace), strict=True):
        if not isinstance(event, Op) and sizes[event.block]:
            change = sizes[event.block] if isinstance(event, Alloc) else -sizes[event.block]
            history.append([time, change, event.block, place_of[event.block]])
            level += change
            peak = max(peak, level)
            if phase != marks[-1][1]:
                marks.append([len(history) - 1, phase])
    head = {
        "schema": 3,
        "device": "cuda" if rounded else "cpu",
        "source": "perflab, predicted",
        "peak_bytes": peak,
        "time": "event" if time_of is None else "predicted ns",
        "marks": marks,
        "places": [
            {
                "operator": operator,
                "module": module,
                "phase": phase,
                "category": kind,
                "frames": [[file, line, operator]],
                "tensor": tensor,
            }
            for operator, module, phase, kind, file, line, tensor in places
        ],
        "before": [[held.block, sizes[held.block], place_of[held.block]] for held in trace.held if sizes[held.block]],
    }
    target = path.with_name(path.name + ".json")
    _write_whole(target, b"".join(as_lines(head, history)))
    return target


class _Snapshot:
    def __init__(self, trace: Trace, played: Replay, capacity_bytes: int | None, time_of: TimeOf | None) -> None:
        self.trace = trace
        self.played = played
        self.capacity_bytes = capacity_bytes
        self.times = list(_times(trace, time_of))
        self.phases = list(_phases(trace))
        self.unit = 1.0 if time_of is None else 1e3
        self.frames: dict[tuple[str, int, str], list[dict[str, Any]]] = {}

    def content(self) -> dict[str, Any]:
        """What ``_memory_snapshot_pickled`` in ``torch/csrc/cuda/memory_snapshot.cpp`` writes."""
        return {
            "segments": [self._segment(segment) for segment in self.played.segments],
            "device_traces": [list(self._trace())],
            "allocator_settings": {
                "PYTORCH_CUDA_ALLOC_CONF": "",
                "max_split_size": NO_LIMIT,
                "garbage_collection_threshold": 0.0,
                "expandable_segments": False,
                "pinned_num_register_threads": 1,
                "release_lock_on_cudamalloc": False,
                "pinned_use_cuda_host_register": False,
                "roundup_power2_divisions": {},
            },
            "external_annotations": [],
            "perflab": {"kind": "prediction", "times": "event" if self.unit == 1.0 else "predicted us"},
        }

    def _trace(self) -> Iterator[dict[str, Any]]:
        time_us = 0
        for entry in self.played.log:
            time_us = int(self.times[entry.event] / self.unit) if entry.event >= 0 else 0
            common = {
                "size": entry.size_bytes,
                "stream": 0,
                "time_us": time_us,
                "frames": self._frames(entry.block) if entry.block else [],
            }
            if entry.action == "oom":
                yield {"action": "oom", "device_free": self._room(), **common}
                continue
            common["addr"] = entry.address
            if entry.action in ("alloc", "free") and entry.block is not None:
                common |= self._labels(entry.block)
            if entry.event >= 0 and self.phases[entry.event]:
                common["user_metadata"] = self.phases[entry.event]
            for action in ("free_requested", "free_completed") if entry.action == "free" else (entry.action,):
                yield {"action": action, **common}
        # A recording ends so as well. Older viewers want an event of category "unknown" where there are others.
        active = sum(
            block.size_bytes for segment in self.played.segments for block in segment.blocks if block.allocated
        )
        yield {
            "action": "snapshot",
            "addr": 0,
            "size": active,
            "stream": 0,
            "time_us": time_us,
            "frames": [],
            "category": "unknown",
        }

    def _segment(self, segment: Segment) -> dict[str, Any]:
        in_use = [block for block in segment.blocks if block.allocated]
        taken = sum(block.size_bytes for block in in_use)
        return {
            "device": 0,
            "address": segment.address,
            "total_size": segment.size_bytes,
            "allocated_size": taken,
            "active_size": taken,
            "requested_size": sum(block.requested_bytes for block in in_use),
            "stream": 0,
            "segment_type": "small" if segment.small else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": [self._block(block) for block in segment.blocks],
        }

    def _block(self, block: BlockState) -> dict[str, Any]:
        alive = self.played.alive.get(block.address)
        return {
            "address": block.address,
            "size": block.size_bytes,
            "requested_size": block.requested_bytes,
            "state": "active_allocated" if block.allocated else "inactive",
            "frames": self._frames(alive) if alive else [],
            **(self._labels(alive) if alive else {}),
        }

    def _labels(self, block: Alloc) -> dict[str, str]:
        labels = {"category": self._kind(block), "module": _module(block), "phase": block.place.phase}
        return {**labels, "tensor": _tensor(self.trace, block)}

    def _frames(self, block: Alloc) -> list[dict[str, Any]]:
        """One list for all blocks of one place, which the pickle then holds once."""
        key = *_split(block.place.line), self._name(block)
        if key not in self.frames:
            self.frames[key] = [{"filename": key[0], "line": key[1], "name": key[2]}]
        return self.frames[key]

    def _name(self, block: Alloc) -> str:
        """``aten::mm in blocks.17.attention (forward)``; of what was held before, its kind in the operator's place."""
        module = _module(block)
        name = block.operator or self._kind(block)
        if module:
            name += f" in {module}"
        return f"{name} ({block.place.phase})" if block.place.phase else name

    def _kind(self, block: Alloc) -> str:
        if block.block in WORKSPACES:
            return "workspace"
        use = self.trace.uses.get(block.block)
        return use.kind if use else "unknown"

    def _room(self) -> int:
        reserved = sum(segment.size_bytes for segment in self.played.segments)
        return (self.capacity_bytes or 0) - reserved


def _tensor(trace: Trace, block: Alloc) -> str:
    """``(4, 1024, 2560) float32`` of what autograd saved; of other blocks shapes are not known."""
    use = trace.uses.get(block.block)
    return f"{use.saved.shape} {use.saved.dtype}" if use is not None and use.saved is not None else ""


def _module(block: Alloc) -> str:
    """With the layer's number, where it is known."""
    module = block.place.module
    if block.layer is not None:
        module = module.replace(f"{block.layer.stack}.*", f"{block.layer.stack}.{block.layer.number}", 1)
    return module


def _split(line: str) -> tuple[str, int]:
    """``model.py:12`` as file and line."""
    file, _, number = line.rpartition(":")
    return (file, int(number)) if number.isdecimal() else (line, 0)


def _phases(trace: Trace) -> Iterator[str]:
    """The phase at each event: what is let go has none of its own."""
    phase = ""
    for event in trace.events:
        if not isinstance(event, Free):
            phase = event.place.phase
        yield phase


def _times(trace: Trace, time_of: TimeOf | None) -> Iterator[int]:
    """When each event is: after the operators before it, an operator itself at its beginning."""
    if time_of is None:
        yield from range(len(trace.events))
        return
    passed_ns = 0.0
    for event in trace.events:
        yield round(passed_ns)
        if isinstance(event, Op):
            passed_ns += time_of(event)


def _write_whole(path: Path, content: bytes) -> None:
    """To a file beside it, then renamed: a reader meets the old file or the new one, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
