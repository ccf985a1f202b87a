"""Measures the memory pools of the CUDA graphs that a call replays.

A graph's kernels write into a private pool of PyTorch's allocator. Between replays the blocks of the pool are free, so
``memory_allocated`` does not count them, but they are given to nobody else. If these pools were not counted, a call
that replays graphs (``torch.compile(mode="reduce-overhead")``, ``torch.cuda.make_graphed_callables``) would seem to
need no memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perflab.base.reachable import reachable

if TYPE_CHECKING:
    import torch

PoolId = tuple[int, int]


@contextlib.contextmanager
def replayed_pools(roots: tuple[Any, ...]) -> Iterator[set[PoolId]]:
    """Collect the pools of all graphs that are replayed in the block; pools of other cases' graphs are left out.

    Graphs within the callable's reach (``roots``) count too: a bound ``graph.replay`` bypasses the patched class.
    """
    import torch

    graph_class: Any = torch.cuda.CUDAGraph
    replay = graph_class.replay
    pools: set[PoolId] = {tuple(one.pool()) for one in reachable(roots) if isinstance(one, graph_class)}

    def noted(graph: Any) -> Any:
        pools.add(tuple(graph.pool()))
        return replay(graph)

    graph_class.replay = noted
    try:
        yield pools
    finally:
        graph_class.replay = replay


def free_bytes_in(pools: set[PoolId], device: torch.device) -> int:
    """Return the bytes in these pools that belong to no live tensor; 0 if CUDA's own allocator manages the pools."""
    if not pools:
        return 0
    import torch

    if torch.cuda.get_allocator_backend() != "native":
        return 0  # CUDA's own pools report nothing
    index = torch.cuda.current_device() if device.index is None else device.index
    snapshot: Any = torch.cuda.memory_snapshot
    return unallocated(snapshot(), pools, index)


def unallocated(segments: Sequence[Mapping[str, Any]], pools: set[PoolId], device_index: int) -> int:
    """Return the unallocated bytes in the segments of these pools on one device."""
    return sum(
        segment["total_size"] - segment["allocated_size"]
        for segment in segments
        if segment["device"] == device_index and tuple(segment["segment_pool_id"]) in pools
    )
