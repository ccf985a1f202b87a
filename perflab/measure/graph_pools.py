"""Measures the memory pools of the CUDA graphs that a call replays.

What a graph's kernels write lies in a private pool of PyTorch's allocator. Between replays the blocks in it are free,
so ``memory_allocated`` does not count them, but nobody else is given them. Without these pools a call that replays them
(``torch.compile(mode="reduce-overhead")``, ``torch.cuda.make_graphed_callables``) looks as if it needed no memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perflab.reachable import reachable

if TYPE_CHECKING:
    import torch

PoolId = tuple[int, int]


@contextlib.contextmanager
def replayed_pools(roots: tuple[Any, ...]) -> Iterator[set[PoolId]]:
    """The pools of all graphs that are replayed in the block. Pools of other cases' graphs are not this one's.

    Graphs within the callable's reach (``roots``) count too: a bound ``graph.replay`` passes the class by.
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
    """What these pools hold that is no live tensor's."""
    if not pools:
        return 0
    import torch

    if torch.cuda.get_allocator_backend() != "native":
        return 0  # CUDA's own pools tell nothing of themselves
    index = torch.cuda.current_device() if device.index is None else device.index
    snapshot: Any = torch.cuda.memory_snapshot
    return unallocated(snapshot(), pools, index)


def unallocated(segments: Sequence[Mapping[str, Any]], pools: set[PoolId], device_index: int) -> int:
    """The same, of PyTorch's list of segments."""
    return sum(
        segment["total_size"] - segment["allocated_size"]
        for segment in segments
        if segment["device"] == device_index and tuple(segment["segment_pool_id"]) in pools
    )
