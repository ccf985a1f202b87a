"""Pools of CUDA graphs count as held by the call that replays the graphs, on an allocator that is played."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from perflab.measure.calls.workload import Workload
from perflab.measure.memory.peak import measure_memory, replayed_pools, unallocated

CUDA = torch.device("cuda", 0)
MIB = 1 << 20
OURS, OTHERS, NO_POOL = (0, 1), (0, 2), (0, 0)


def segment(pool: tuple[int, int], total: int, allocated: int = 0, device: int = 0) -> dict[str, Any]:
    return {"device": device, "segment_pool_id": pool, "total_size": total, "allocated_size": allocated}


SEGMENTS = [
    segment(NO_POOL, 100 * MIB, 10 * MIB),
    segment(OURS, 20 * MIB, 3 * MIB),
    segment(OURS, 2 * MIB),
    segment(OURS, 50 * MIB, device=1),
    segment(OTHERS, 70 * MIB),
]


class Graph:
    """Stands in for ``torch.cuda.CUDAGraph``."""

    def __init__(self, pool: tuple[int, int]) -> None:
        self._pool = pool
        self.replays = 0

    def pool(self) -> tuple[int, int]:
        return self._pool

    def replay(self) -> None:
        self.replays += 1


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caching allocator of which 10 MiB are live and the call makes 1 MiB more."""
    for name, value in {
        "CUDAGraph": Graph,
        "synchronize": lambda _device: None,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda _device: None,
        "memory_allocated": lambda _device: 10 * MIB,
        "max_memory_allocated": lambda _device: 11 * MIB,
        "max_memory_reserved": lambda _device: 192 * MIB,
        "memory_snapshot": lambda: SEGMENTS,
        "get_allocator_backend": lambda: "native",
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)


HIDDEN: dict[int, Graph] = {0: Graph(OURS)}


def replays_what_a_compiler_keeps_out_of_sight() -> None:
    getattr(sys.modules[__name__], "HID" + "DEN")[0].replay()


@pytest.mark.usefixtures("allocator")
@pytest.mark.parametrize("call", [Graph(OURS).replay, replays_what_a_compiler_keeps_out_of_sight])
def test_what_a_replayed_graph_keeps_for_itself_is_held(call: Callable[[], None]) -> None:
    memory, _ = measure_memory(Workload(call, (), {}), CUDA)
    assert (memory.held_bytes, memory.growth_bytes) == (19 * MIB, 1 * MIB)
    assert memory.peak_bytes == 20 * MIB


@pytest.mark.usefixtures("allocator")
def test_graphs_of_other_cases_are_not_counted() -> None:
    memory, _ = measure_memory(Workload(lambda: None, (), {}), CUDA)
    assert (memory.held_bytes, memory.growth_bytes) == (0, 1 * MIB)


@pytest.mark.usefixtures("allocator")
def test_graphs_replay_as_they_did_after_they_were_watched() -> None:
    graph, replay = Graph(OTHERS), Graph.replay
    with replayed_pools(()) as pools:
        graph.replay()
    assert pools == {OTHERS}
    assert graph.replays == 1
    assert Graph.replay is replay


def test_only_free_room_of_this_device_counts() -> None:
    assert unallocated(SEGMENTS, {OURS}, 0) == 19 * MIB
    assert unallocated(SEGMENTS, {OURS}, 1) == 50 * MIB
    assert unallocated(SEGMENTS, set(), 0) == 0
