"""What the memory study says of one snapshot: its peak and what makes it, its timeline, the residual stream. Pure."""

from __future__ import annotations

import torch

from perflab.lab.models import size_config
from perflab.snapshots.analysis import alive_at, levels, module_of, parts_by, peak_moment
from perflab.snapshots.model import Block, Snapshot
from perflab.snapshots.picture import by_category, thinned
from perflab.units import format_bytes

from .memory_timelines import BATCH_SIZE, Case

PARTS = ("parameters", "optimizer state", "gradients", "activations", "temporaries")
"""The categories that every engine knows."""
WIDTH = 56
"""Letters of a timeline."""
_HEIGHTS = " ▁▂▃▄▅▆▇█"
_IN_A_BLOCK = "blocks.*"


def peak_cells(case: Case, snapshot: Snapshot) -> list[str]:
    """A row: the peak in bytes, where it is, and what it is made of."""
    parts, peak = known_parts(snapshot), peak_bytes(snapshot)
    sizes = [format_bytes(parts[one]) if parts[one] else "–" for one in PARTS]
    return [case.title, f"{peak:,}", stage_of(snapshot), *sizes, format_bytes(peak - sum(parts.values()))]


def stage_of(snapshot: Snapshot) -> str:
    """Where in a stage the peak is, by allocations and frees: ``end of backward``."""
    peak = peak_moment(levels(snapshot))
    for stage in snapshot.stages:
        if stage.start < peak <= stage.end:
            share = (peak - stage.start) / (stage.end - stage.start)
            return f"{'beginning of ' if share < 0.05 else 'end of ' if share > 0.95 else ''}{stage.name}"
    return "forward"


def timeline(snapshot: Snapshot) -> str:
    """Live bytes as letters, with a bar where the second stage and those after it begin."""
    peak = peak_bytes(snapshot)
    starts = [stage.start for stage in snapshot.stages[1:]]
    letters = ""
    for point in thinned(snapshot, WIDTH, by_category(snapshot)):
        if starts and point.end >= starts[0]:
            starts.pop(0)
            letters += "│"
        letters += _HEIGHTS[round(sum(point.by_band) / peak * (len(_HEIGHTS) - 1))]
    return letters.ljust(WIDTH + 2)


def residual_bytes(model: str, length: int) -> int:
    """Of one activation of the residual stream, by the formula."""
    return BATCH_SIZE * length * size_config(model).d_model * torch.float32.itemsize


def of_the_stream(snapshot: Snapshot, size: int) -> list[Block]:
    """What the blocks themselves made, and not the modules in them."""
    end = max(block.allocated_at for block in snapshot.blocks)
    return [
        one
        for one in alive_at(snapshot, end)
        if one.allocated_at and one.requested_bytes == size and module_of(one) == _IN_A_BLOCK
    ]


def peak_bytes(snapshot: Snapshot) -> int:
    """The most that is alive."""
    return max(levels(snapshot))


def known_parts(snapshot: Snapshot) -> dict[str, int]:
    """Bytes at the peak of each of ``PARTS``."""
    parts = parts_by(alive_at(snapshot, peak_moment(levels(snapshot))), lambda one: one.category)
    return {one: parts[one].size_bytes if one in parts else 0 for one in PARTS}
