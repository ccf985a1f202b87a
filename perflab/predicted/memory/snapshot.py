"""Writes a prediction as a PyTorch memory snapshot.

The pickle is PyTorch's own, which https://pytorch.org/memory_viz and ``torch.cuda._memory_viz`` read; its addresses and
segments are the model's (``replay``), so they are an estimate. It begins with the call, as a recording does: what is
held is there already. It is of the last round of the replay, when the cache is warm.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from perflab.files import write_whole
from perflab.predicted.memory.caching_allocator import BlockState, Segment
from perflab.predicted.memory.replay import WORKSPACES, Replay, replay
from perflab.predicted.trace.trace import Alloc, Free, Op, Trace

PROTOCOL = 4
"""Of the pickle: the viewer's own reader (``unpickle`` in ``torch/utils/viz/MemoryViz.js``) knows 2 to 4."""
NO_LIMIT = -1
"""``max_split_size`` where there is none, as a snapshot has it: the largest ``size_t`` as a signed number."""

TimeOf = Callable[[Op], float]
"""An operator's time in nanoseconds."""


def write_snapshot(trace: Trace, path: Path, *, workspace_bytes: int = 0, time_of: TimeOf) -> Path:
    """Write PyTorch's memory snapshot of the call, as ``torch.cuda.memory._dump_snapshot`` would.

    A block's frame is the line that asked for it, with the operator and the module as the function's name. Its
    ``category``, by which the viewer colours, is its kind (``predicted.records.KINDS``); of what was held before, the
    viewer heeds none and shows ``unknown``, but the frame says it. There is nothing in the file but plain containers,
    numbers and text. Beside PyTorch's keys, blocks have ``module`` and ``phase``, for ``perflab.snapshots``.

    Args:
        trace: the call.
        path: where to write, without the ending ``.pickle``.
        workspace_bytes: as in ``replay``.
        time_of: an operator's time.

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
        self.times_us = list(_times_us(trace, time_of))
        self.phases = list(_phases(trace))
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
            "perflab": {"kind": "prediction", "times": "predicted us"},
        }

    def _trace(self) -> Iterator[dict[str, Any]]:
        time_us = 0
        for entry in self.played.log:
            time_us = self.times_us[entry.event]
            common = {
                "size": entry.size_bytes,
                "stream": 0,
                "time_us": time_us,
                "frames": self._frames(entry.block),
                "addr": entry.address,
            }
            if entry.action != "segment_alloc":
                common |= self._labels(entry.block)
            if self.phases[entry.event]:
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


def _times_us(trace: Trace, time_of: TimeOf) -> Iterator[int]:
    """When each event is: after the operators before it, an operator itself at its beginning."""
    passed_ns = 0.0
    for event in trace.events:
        yield int(round(passed_ns) / 1e3)
        if isinstance(event, Op):
            passed_ns += time_of(event)
