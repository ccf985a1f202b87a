"""Counts: known work in, the same numbers out; what the profiler saw, told by hand where it takes a GPU to see it."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from perflab.internals.of_torch.compiler import CompilerState
from perflab.internals.of_torch.machine import activity_of, deduced_activity, kineto_results
from perflab.measure.calls.workload import Step, Workload
from perflab.measure.counts.counter import CallCounter, compiler_state, counts_of_compiler
from perflab.measure.counts.events import (
    COUNTED,
    Event,
    Span,
    agreed,
    compiled_regions,
    count_allocations,
    count_launches,
    outermost_operators,
    profiler,
    saw_waits,
    spans,
)
from perflab.measure.counts.instructions import count_events, instructions_are_counted
from perflab.measure.memory.peak import measure_memory

CPU = torch.device("cpu")
SPAN = Span(100, 200)


def counted(call: Callable[..., Any], *args: Any) -> dict[str, int]:
    return counted_workload(Workload(call, args, {}))


def counted_workload(workload: Workload) -> dict[str, int]:
    counter = CallCounter(CPU, CompilerState())
    measure_memory(workload, CPU, counter)
    return counter.counts


# --- real calls on a CPU ------------------------------------------------------------------------------------------


def test_operators_are_counted_and_not_what_these_call_nor_ranges() -> None:
    x, weights = torch.ones(4, 8), torch.ones(8, 8)
    assert counted(lambda: torch.nn.functional.linear(x, weights).relu().sum())["operators"] == 3
    assert counted(lambda: sum(range(100))) == {"operators": 0, "allocations": 0}


def test_every_block_that_is_given_out_is_an_allocation_however_short_it_lives() -> None:
    def work() -> None:
        for _ in range(3):
            torch.empty(1000)

    assert counted(work) == {"operators": 3, "allocations": 3}


def test_the_backward_passs_operators_are_counted() -> None:
    x = torch.ones(8, requires_grad=True)
    y = torch.ones(8, requires_grad=True)

    def work(backward: bool) -> None:
        x.grad = y.grad = None
        product = (x * y).sum()
        if backward:
            product.backward()

    assert counted(work, False)["operators"] == 2
    assert counted(work, True)["operators"] > 4


def test_a_training_step_counts_the_same_in_five_runs() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.ones(8, 16)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step = Step(lambda: model(x).square().mean(), torch.Tensor.backward, update)
    step.run()
    runs = [counted_workload(step) for _ in range(5)]
    assert runs[0]["operators"] > 20
    assert all(run == runs[0] for run in runs)


def test_an_operator_of_somebody_elses_is_one() -> None:
    with torch.library._scoped_library("perflab_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CPU")
        assert counted(lambda: torch.ops.perflab_test.twice(torch.ones(3)))["operators"] == 2  # ones, twice


def test_a_range_that_a_user_names_is_no_operator() -> None:
    def work() -> None:
        with torch.profiler.record_function("mylib::range"):
            torch.empty(3)

    assert counted(work)["operators"] == 1


def test_a_count_that_differs_from_call_to_call_is_left_out() -> None:
    calls = iter(range(100))

    def work() -> None:
        kept = [torch.ones(3) for _ in range(next(calls))]
        del kept

    assert counted(work) == {}


# --- what the profiler saw, by hand -------------------------------------------------------------------------------


def test_allocations_regions_and_spans_are_told_from_events() -> None:
    events = [Event(COUNTED, 300, 400, scope=7), Event("aten::add", 310, 320), Event(COUNTED, 100, 200, scope=7)]
    assert spans(events) == [Span(100, 200), Span(300, 400)]
    events = [Event("[memory]", at, at, size_bytes=size) for at, size in ((99, 8), (100, 8), (150, -8), (160, 0))]
    assert count_allocations(events, SPAN) == 1
    names = ["Torch-Compiled Region: 0/0", "TorchDynamo Cache Lookup", "Torch-Compiled Region: 1/2"]
    events = [Event(name, 100 + at, 150) for at, name in enumerate([*names, names[0]])]
    assert compiled_regions(events, SPAN) == {"0/0", "1/2"}


def test_an_operator_within_another_is_told_by_time_and_thread() -> None:
    events = [
        Event("aten::linear", 100, 140),
        Event("aten::addmm", 100, 130),  # begins in the same tick
        Event("aten::mm", 120, 130, thread=2),  # meanwhile, in autograd's thread
        Event("aten::relu", 140, 150),  # begins in the tick that linear ended in
        Event("autograd::engine::evaluate_function: MulBackward0", 150, 190),
        Event("MulBackward0", 151, 189, scope=1),
        Event("aten::mul", 155, 160),
        Event("aten::sum", 90, 99),  # before the call
        Event("aten::sum", 200, 210),  # after it
    ]
    assert outermost_operators(events, SPAN) == ["aten::linear", "aten::mm", "aten::relu", "aten::mul"]


def cuda_counts(*names: str, correlations: tuple[int, ...] = ()) -> dict[str, int]:
    numbers = correlations or tuple(range(1, len(names) + 1))
    return count_launches(
        [Event(name, 100 + at, 101 + at, correlation=numbers[at]) for at, name in enumerate(names)], SPAN
    )


LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernel_v7000", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")
LAUNCHES += ("cudaLaunchKernel_ptsz", "cudaGraphLaunch_v10000")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cuStreamSynchronize")
OTHERS = ("cudaMalloc", "cudaEventRecord", "cudaMemsetAsync", "cudaStreamIsCapturing", "cudaEventQuery")


@pytest.mark.parametrize("name", [*LAUNCHES, *WAITS, *OTHERS])
def test_whatever_starts_a_kernel_or_a_graph_is_one_launch_and_whatever_waits_a_host_sync(name: str) -> None:
    assert cuda_counts(name) == {"kernel_launches": int(name in LAUNCHES), "host_syncs": int(name in WAITS)}


@pytest.mark.parametrize("name", ["cudaLaunchKernel_v7000", "cudaDeviceSynchronize", "cudaMalloc"])
def test_a_profiler_has_seen_cuda_if_it_saw_the_harness_wait(name: str) -> None:
    assert saw_waits([Event("aten::mm", 0, 9), Event(name, 1, 2)]) == (name == "cudaDeviceSynchronize")


def test_waits_are_counted_within_the_call_and_what_calls_disagree_on_is_dropped() -> None:
    call = ("aten::item", "aten::_local_scalar_dense", "cudaMemcpyAsync", "cudaStreamSynchronize")
    assert cuda_counts(*call) == {"kernel_launches": 0, "host_syncs": 1}
    events = [Event("cudaDeviceSynchronize", at, at + 5, correlation=at) for at in (90, 150, 205)]
    assert count_launches(events, SPAN)["host_syncs"] == 1
    assert agreed([{"operators": 3, "allocations": 2}, {"operators": 3, "allocations": 1}]) == {"operators": 3}
    assert agreed([{"operators": 3, "recompiles": 1}, {"operators": 3}]) == {"operators": 3}
    assert agreed([]) == {}


@pytest.mark.parametrize(
    ("names", "correlations"),
    [
        pytest.param(("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchKernel"), (7, 7, 8), id="of the runtime's own"),
        pytest.param(("cudaLaunchKernel", "cudaLaunchKernel"), (0, 0), id="without a correlation"),
    ],
)
def test_a_launch_counts_once_though_the_runtime_calls_the_driver_for_it(
    names: tuple[str, ...], correlations: tuple[int, ...]
) -> None:
    assert cuda_counts(*names, correlations=correlations)["kernel_launches"] == 2


# --- torch.compile ------------------------------------------------------------------------------------------------

BEFORE = CompilerState(graph_breaks=4, frames_seen=9, compilations={0: 2, 1: 1})
AFTER = CompilerState(graph_breaks=6, frames_seen=12, compilations={0: 2, 1: 2, 2: 1})


RESET = CompilerState(graph_breaks=5, frames_seen=10, compilations={0: 1})
UNNUMBERED = CompilerState(compilations=None)
OF_COMPILER: dict[str, tuple[list[str], int, CompilerState, CompilerState, dict[str, int]]] = {
    "nothing compiled is entered": ([], 0, BEFORE, AFTER, {}),
    "breaks since the case was set up": (["2/0", "1/1"], 0, BEFORE, AFTER, {"recompiles": 0, "graph_breaks": 2}),
    "everything is the case's own after a reset": (["0/0"], 0, BEFORE, RESET, {"recompiles": 0, "graph_breaks": 1}),
    "compilations without a number": (["0/0"], 1, UNNUMBERED, UNNUMBERED, {"recompiles": 1}),
    **{
        f"{region} may be an earlier test's": (["2/0", region], 0, BEFORE, AFTER, {"recompiles": 0})
        for region in ("0/1", "1/0", "!0/0/0", "something new")
    },
}


@pytest.mark.parametrize(("regions", "recompiles", "before", "after", "counts"), OF_COMPILER.values(), ids=OF_COMPILER)
def test_the_compiler_s_counts_are_those_of_the_case(
    regions: list[str], recompiles: int, before: CompilerState, after: CompilerState, counts: dict[str, int]
) -> None:
    assert counts_of_compiler(regions, recompiles, before, after) == counts


# --- instructions -------------------------------------------------------------------------------------------------


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_instructions_are_counted_or_there_is_no_number(threads: Callable[[int], None]) -> None:
    threads(1)
    found = count_events(lambda: sum(range(10_000)))
    assert (found is not None and found > 10_000) if instructions_are_counted() else found is None


def test_with_several_threads_instructions_are_not_counted_since_threads_spin(threads: Callable[[int], None]) -> None:
    threads(2)
    counter = CallCounter(torch.device("cpu"), compiler_state(), instructions=True)
    assert not instructions_are_counted()
    assert counter.extra_calls == 0


def test_what_the_kernel_counts_for_us_arrives() -> None:
    """Page faults, which need no counter of the processor: 16 MiB anew are 4,096 pages of 4 KiB.

    From the kernel itself: an allocator may have kept as much of what an earlier test let go.
    """
    software, page_faults, page_bytes = 1, 2, 1 << 16
    with mmap.mmap(-1, 1 << 24) as anew:
        found = count_events(lambda: anew.write(bytes(1 << 24)), software, page_faults)
    if found is None:
        pytest.skip("this kernel lets nobody count")
    assert found >= (1 << 24) // page_bytes // 32  # huge pages are 2 MiB


def test_a_call_that_raises_while_it_is_counted_raises() -> None:
    with pytest.raises(ZeroDivisionError):
        count_events(lambda: 1 / 0)


def test_what_an_event_records_is_told_by_pytorch_or_deduced_alike() -> None:
    """PyTorch 2.11 does not tell; where it does, both agree on every event of a step with ranges and memory."""
    model, x = torch.nn.Linear(8, 8), torch.randn(4, 8)
    with profiler("cpu", profile_memory=True) as recorded, torch.profiler.record_function("a range"):
        model(x).sum().backward()
    events = kineto_results(recorded).events()
    kinds = {deduced_activity(one) for one in events}
    assert {"cpu_op", "user_annotation", "cpu_instant_event"} <= kinds
    assert [activity_of(one) for one in events] == [deduced_activity(one) for one in events]


class Told:
    """An event of kineto's with what 2.11 tells of it."""

    def __init__(self, name: str, is_of_host: bool = False, is_annotation: bool = False) -> None:
        self.name = lambda: name
        self.device_type = lambda: torch.autograd.DeviceType.CPU if is_of_host else torch.autograd.DeviceType.CUDA
        self.is_user_annotation = lambda: is_annotation


@pytest.mark.parametrize(
    ("event", "activity"),
    [
        (Told("cudaLaunchKernel", is_of_host=True), "cuda_runtime"),
        (Told("cuLaunchKernelEx", is_of_host=True), "cuda_runtime"),
        (Told("cumsum", is_of_host=True), "cpu_op"),
        (Told("aten::mm", is_of_host=True), "cpu_op"),
        (Told("forward", is_of_host=True, is_annotation=True), "user_annotation"),
        (Told("forward", is_annotation=True), "gpu_user_annotation"),
        (Told("Memcpy HtoD (Pageable -> Device)"), "gpu_memcpy"),
        (Told("Memset (Device)"), "gpu_memset"),
        (Told("void at::native::elementwise_kernel<4>"), "kernel"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name(),
)
def test_an_event_of_a_gpu_is_told_by_its_side_its_mark_and_its_name(event: Told, activity: str) -> None:
    assert activity_of(event) == activity
