"""Writes a prediction as a PyTorch memory snapshot.

The pickle has PyTorch's format, which https://pytorch.org/memory_viz and ``torch.cuda._memory_viz`` read. Addresses and
segments come from the allocator's model (``replay``), so they are estimates. The snapshot begins with the call, as a
recording does: held blocks exist already. It shows the last round of the replay, when the cache is warm.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from perflab.base.files import write_whole
from perflab.predicted.memory.caching_allocator import BlockState, Segment
from perflab.predicted.memory.replay import WORKSPACES, Replay, replay
from perflab.predicted.trace.trace import Alloc, Free, Op, Trace
from perflab.results.peak import UNKNOWN

PROTOCOL = 4
"""The pickle's protocol: the viewer's own reader (``unpickle`` in ``torch/utils/viz/MemoryViz.js``) knows 2 to 4."""
NO_LIMIT = -1
"""The ``max_split_size`` of a snapshot without a limit: the largest ``size_t`` as a signed number."""

TimeOf = Callable[[Op], float]
"""An operator's time in nanoseconds."""


def write_snapshot(trace: Trace, path: Path, *, workspace_bytes: int = 0, time_of: TimeOf) -> Path:
    """Write PyTorch's memory snapshot of the call, as ``torch.cuda.memory._dump_snapshot`` would.

    A block's frame is the line that requested the block, with the operator and the module as the function's name. A
    block's ``category`` (``results.peak.CATEGORIES``) is what the viewer colours by. The viewer
    ignores the category of blocks held before the call and shows ``unknown``; the frame states it. The file
    contains only plain containers, numbers and text. Beside PyTorch's keys, blocks have ``module``, ``phase`` and
    ``tensor``, for ``perflab.snapshots``.

    Args:
        trace: the trace of the call.
        path: the path to write to, without the ending ``.pickle``.
        workspace_bytes: bytes for each thread that computes products, as in ``replay``.
        time_of: returns an operator's time in nanoseconds.

    Raises:
        OSError: the file cannot be written.
    """
    target = path.with_name(path.name + ".pickle")
    content = _Snapshot(trace, replay(trace, workspace_bytes), time_of).content()
    write_whole(target, pickle.dumps(content, protocol=PROTOCOL))
    return target


class _Snapshot:
    def __init__(self, trace: Trace, played: Replay, time_of: TimeOf) -> None:
        self.trace = trace
        self.played = played
        self.moments = list(_moments(trace, time_of))
        self.frames: dict[tuple[str, int, str], list[dict[str, Any]]] = {}

    def content(self) -> dict[str, Any]:
        """Return the snapshot as ``_memory_snapshot_pickled`` in ``torch/csrc/cuda/memory_snapshot.cpp`` writes it."""
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
            "perflab": {"kind": "prediction", "times": "predicted us"},
        }

    def _trace(self) -> Iterator[dict[str, Any]]:
        time_us = 0
        for entry in self.played.log:
            time_us, phase = self.moments[entry.event]
            common = {
                "size": entry.size_bytes,
                "stream": 0,
                "time_us": time_us,
                "frames": self._frames(entry.block),
                "addr": entry.address,
            }
            if entry.action != "segment_alloc":
                common |= self._labels(entry.block)
            if phase:
                common["user_metadata"] = phase
            for action in ("free_requested", "free_completed") if entry.action == "free" else (entry.action,):
                yield {"action": action, **common}
        # A recording ends with this event too. Older viewers require a category "unknown" if there are others.
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
        labels = {"category": self._category(block), "module": _module(block), "phase": block.place.phase}
        return {**labels, "tensor": _tensor(self.trace, block)}

    def _frames(self, block: Alloc) -> list[dict[str, Any]]:
        """Return the block's frames: one list object for all blocks of one place, which the pickle then holds once."""
        key = *_split(block.place.line), self._name(block)
        if key not in self.frames:
            self.frames[key] = [{"filename": key[0], "line": key[1], "name": key[2]}]
        return self.frames[key]

    def _name(self, block: Alloc) -> str:
        """Return ``aten::mm in blocks.17.attention (forward)``; a held block has its category for an operator."""
        module = _module(block)
        name = block.operator or self._category(block)
        if module:
            name += f" in {module}"
        return f"{name} ({block.place.phase})" if block.place.phase else name

    def _category(self, block: Alloc) -> str:
        if block.block in WORKSPACES:
            return "workspace"
        use = self.trace.uses.get(block.block)
        return use.category if use else UNKNOWN


def _tensor(trace: Trace, block: Alloc) -> str:
    """Return ``(4, 1024, 2560) float32`` for a block that autograd saved; empty for others, whose shape is unknown."""
    use = trace.uses.get(block.block)
    return f"{use.saved.shape} {use.saved.dtype}" if use is not None and use.saved is not None else ""


def _module(block: Alloc) -> str:
    """Return the block's module, with the layer's number in place of ``*`` if the number is known."""
    module = block.place.module
    if block.layer is not None:
        module = module.replace(f"{block.layer.stack}.*", f"{block.layer.stack}.{block.layer.number}", 1)
    return module


def _split(line: str) -> tuple[str, int]:
    """Split a line such as ``model.py:12`` into file and number; the number is 0 if the line has none."""
    file, _, number = line.rpartition(":")
    return (file, int(number)) if number.isdecimal() else (line, 0)


def _moments(trace: Trace, time_of: TimeOf) -> Iterator[tuple[int, str]]:
    """Yield the time of each event in microseconds, and its phase.

    The time is the sum of the times of all operators before the event. A free, which has no phase of its own, has the
    phase of the event before.
    """
    passed_ns, phase = 0.0, ""
    for event in trace.events:
        if not isinstance(event, Free):
            phase = event.place.phase
        yield int(round(passed_ns) / 1e3), phase
        if isinstance(event, Op):
            passed_ns += time_of(event)
