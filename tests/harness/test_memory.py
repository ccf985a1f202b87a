"""Peak memory to the byte: known allocations in, the same numbers out, in every run; pools of CUDA graphs are held."""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from perflab.devices.backend import Backend
from perflab.internals.of_torch import machine
from perflab.measure.calls.workload import Step, Workload
from perflab.measure.memory.histories import MemorySnapshot, cuda_history, record_memory
from perflab.measure.memory.peak import cpu_allocations, measure_memory, replayed_pools, unallocated
from perflab.results.measurement import Memory

CPU = torch.device("cpu")
MIB = 2**20
FLOAT = 4
CUDA = torch.device("cuda", 0)
OURS, OTHERS, NO_POOL = (0, 1), (0, 2), (0, 0)


def measured(call: Callable[..., Any], *args: Any) -> Memory:
    memory, _result = measure_memory(Workload(call, args, {}), CPU)
    return memory


def block(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8)


def one_after_the_other() -> None:
    for mib in (1, 5, 2):
        kept = block(mib * MIB)
        del kept


def small_beside_large() -> torch.Tensor:
    large = block(8 * MIB)
    small = block(MIB)
    del large
    return small


PEAKS: dict[str, tuple[Callable[[], object], int]] = {
    "one allocation": (lambda: block(3 * MIB), 3 * MIB),
    "work without tensors": (lambda: sum(range(1000)), 0),
    "an empty tensor": (lambda: torch.empty(0), 0),
    "allocations that live together": (lambda: (block(MIB), block(2 * MIB)), 3 * MIB),
    "allocations that follow each other": (one_after_the_other, 5 * MIB),
    "more than is left at the end": (small_beside_large, 9 * MIB),
    **{f"{size} bytes": (partial(block, size), size) for size in (1, 63, 64, 65, 4097, MIB + 1)},
}


@pytest.mark.parametrize(("work", "peak_bytes"), PEAKS.values(), ids=PEAKS)
def test_the_peak_is_of_what_a_call_has_at_once(work: Callable[[], object], peak_bytes: int) -> None:
    memory = measured(work)
    assert (memory.peak_bytes, memory.growth_bytes, memory.held_bytes) == (peak_bytes, peak_bytes, 0)


def test_what_is_held_and_what_grows_make_the_peak() -> None:
    memory = measured(torch.exp, torch.ones(1000))
    assert memory.held_bytes == 1000 * FLOAT
    assert memory.growth_bytes == 1000 * FLOAT
    assert memory.peak_bytes == 2000 * FLOAT


def training_step() -> Step:
    """A step on two layers that clears its gradients, so that each step frees what the one before made."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    x = torch.ones(16, 64)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Step(lambda: model(x).square().mean(), torch.Tensor.backward, update)


def test_a_training_step_needs_the_same_bytes_in_five_runs() -> None:
    step = training_step()
    step.run()  # the optimizer makes its state in the first step
    runs = [measure_memory(step, CPU)[0] for _ in range(5)]
    assert len({(run.peak_bytes, run.held_bytes, run.growth_bytes) for run in runs}) == 1


def test_a_steps_parameters_and_optimizer_state_are_held() -> None:
    step = training_step()
    step.run()
    parameters = 64 * 128 + 128 + 128 * 8 + 8
    counters, inputs = 4, 16 * 64  # AdamW keeps a step count a parameter beside its two moments
    memory, _loss = measure_memory(step, CPU)
    assert memory.held_bytes == FLOAT * (3 * parameters + counters + inputs)


def test_gradients_of_the_step_before_are_held_and_their_exchange_is_no_growth() -> None:
    weight = torch.ones(100_000, requires_grad=True)

    def work() -> None:
        weight.grad = None
        torch.autograd.backward(weight.sum())

    memory = measured(work)
    assert memory.held_bytes == 2 * 100_000 * FLOAT
    assert memory.growth_bytes <= 2 * 64  # the sum, and the gradient of it


def test_gradients_that_pile_up_are_held_once_and_grow_once() -> None:
    weight = torch.ones(100_000, requires_grad=True)
    memory = measured(lambda: torch.autograd.backward((weight * 2.0).sum()))
    assert memory.held_bytes == 2 * 100_000 * FLOAT
    assert memory.growth_bytes >= 100_000 * FLOAT


def test_the_result_is_that_of_the_measured_call() -> None:
    calls: list[int] = []

    def work() -> int:
        calls.append(1)
        return len(calls)

    _memory, result = measure_memory(Workload(work, (), {}), CPU)
    assert result == len(calls) == 2


def test_cyclic_garbage_counts_alike_whatever_the_collector_did_before() -> None:
    def work() -> None:
        for _ in range(3):
            ring: list[Any] = [block(MIB)]
            ring.append(ring)

    peaks = set()
    for threshold in (1, 10_000):
        before = gc.get_threshold()
        gc.set_threshold(threshold)
        try:
            peaks.add(measured(work).peak_bytes)
        finally:
            gc.set_threshold(*before)
    assert peaks == {3 * MIB}


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("raises", [True, False])
def test_the_collector_is_left_as_it_was(enabled: bool, raises: bool) -> None:
    def work() -> None:
        assert not gc.isenabled()
        if raises:
            raise ValueError("no")

    was_on = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        if raises:
            with pytest.raises(ValueError, match="no"):
                measured(work)
        else:
            measured(work)
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was_on else gc.disable)()


def test_a_pass_that_fails_spoils_no_later_one() -> None:
    def fail() -> None:
        block(MIB)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        measured(fail)
    assert measured(lambda: block(MIB)).peak_bytes == MIB


# --- recording a block -------------------------------------------------------------------------------------------


def test_a_recorded_block_has_its_peak_and_every_allocation_in_order(tmp_path: Path) -> None:
    began_ns = time.time_ns()
    with record_memory(tmp_path / "deep" / "case", CPU) as snapshot:
        kept = block(2 * MIB)
        del kept
        block(MIB)
    assert snapshot.peak_bytes == 2 * MIB
    assert snapshot.path == tmp_path / "deep" / "case.json"
    history = json.loads(snapshot.path.read_text())
    assert history["peak_bytes"] == 2 * MIB
    assert [change for _moment_ns, change, *_ in history["events"]] == [2 * MIB, -2 * MIB, MIB, -MIB]
    moments = [moment_ns for moment_ns, *_ in history["events"]]
    assert moments == sorted(moments)
    assert moments[0] >= began_ns


def test_blocks_that_a_call_does_not_make_itself_are_no_part_of_its_peak(tmp_path: Path) -> None:
    with record_memory(tmp_path / "case", CPU) as snapshot:
        pass
    assert snapshot.peak_bytes == 0
    with cpu_allocations() as allocations:
        before = block(4 * MIB)
        with allocations.span():
            del before
            block(MIB)
    assert allocations.peak_bytes() == 0


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
def allocator(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A caching allocator of which 10 MiB are live and the call makes 1 MiB more; what it was asked that counts."""
    asked: list[str] = []
    for name, value in {
        "CUDAGraph": Graph,
        "synchronize": lambda _device: None,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda _device: asked.append("a new peak"),
        "memory_allocated": lambda _device: 10 * MIB,
        "max_memory_allocated": lambda _device: 11 * MIB,
        "max_memory_reserved": lambda _device: 192 * MIB,
        "memory_snapshot": lambda: SEGMENTS,
        "get_allocator_backend": lambda: "native",
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(Backend, "await_autograd", lambda _: asked.append("autograd"))
    return asked


HIDDEN: dict[int, Graph] = {0: Graph(OURS)}


def replays_what_a_compiler_keeps_out_of_sight() -> None:
    getattr(sys.modules[__name__], "HID" + "DEN")[0].replay()


def test_a_peak_begins_when_autograd_s_thread_has_dropped_what_it_had(allocator: list[str]) -> None:
    measure_memory(Workload(Graph(OURS).replay, (), {}), CUDA)
    assert allocator == ["autograd", "autograd", "a new peak"]


def test_so_does_a_recording_of_memory(allocator: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {"allocation": {"all": {"allocated": 0}}, "active": {"all": {"freed": 0}}}
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda _device: stats)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for name in ("record_cuda_memory", "dump_cuda_memory", "stop_recording_cuda_memory"):
        monkeypatch.setattr(machine, name, lambda *_, name=name: allocator.append(name))
    snapshot = MemorySnapshot(tmp_path / "snapshot.pickle")
    with cuda_history(snapshot, lambda: (), CUDA):
        allocator.append("the code")
    assert allocator[:4] == ["autograd", "a new peak", "record_cuda_memory", "the code"]
    assert snapshot.peak_bytes == MIB


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


def test_only_free_room_of_this_device_counts_in_a_graph_s_pools() -> None:
    assert unallocated(SEGMENTS, {OURS}, 0) == 19 * MIB
    assert unallocated(SEGMENTS, {OURS}, 1) == 50 * MIB
    assert unallocated(SEGMENTS, set(), 0) == 0
