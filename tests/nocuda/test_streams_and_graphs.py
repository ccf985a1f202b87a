"""Streams, events and CUDA graphs: what is queued where, and what a graph holds."""

from __future__ import annotations

import pytest
import torch

from nocuda import Seen, library

from .active import needs_nocuda, told

pytestmark = needs_nocuda


def launches_of(work: object) -> int:
    before = library().launches
    work()  # type: ignore[operator]
    return library().launches - before


def test_events_tell_the_hosts_time_in_order() -> None:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    torch.ones(10, device="cuda")
    end.record()
    end.synchronize()
    assert end.query()
    assert 0 <= start.elapsed_time(end) < 60_000
    assert start.elapsed_time(end) == -end.elapsed_time(start)
    with pytest.raises((RuntimeError, ValueError)):
        torch.cuda.Event(enable_timing=True).elapsed_time(end)


def test_cold_caches_keep_no_line_that_a_kernel_made_persist() -> None:
    import ctypes

    from perflab.measure.machine.devices import Eviction

    driver, persisting, bytes_kept = ctypes.CDLL("libcuda.so.1"), 6, ctypes.c_size_t()
    torch.ones(1, device="cuda")
    assert driver.cuCtxSetLimit(persisting, ctypes.c_size_t(48 << 20)) == 0
    driver.cuCtxGetLimit(ctypes.byref(bytes_kept), persisting)
    assert bytes_kept.value == 48 << 20
    Eviction(torch.device("cuda"))()
    driver.cuCtxGetLimit(ctypes.byref(bytes_kept), persisting)
    assert bytes_kept.value == 0


def test_streams_have_priorities_and_are_told_apart() -> None:
    side = torch.cuda.Stream(priority=-1)
    assert side.priority == -1
    assert side != torch.cuda.current_stream()
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
        torch.ones(3, device="cuda")
    side.wait_stream(torch.cuda.default_stream())
    side.synchronize()
    assert side.query()


def test_what_is_captured_runs_at_each_replay() -> None:
    x = torch.zeros(64, device="cuda")
    graph = torch.cuda.CUDAGraph()

    def capture() -> None:
        with torch.cuda.graph(graph):
            x.add_(1)
            x.mul_(2)

    library().reset()
    assert launches_of(capture) == 0
    assert launches_of(graph.replay) == 2
    assert launches_of(lambda: [graph.replay() for _ in range(3)]) == 6
    counts = library().counts()
    assert (counts.launches, counts.replayed) == (8, 8)
    assert sum(counts.kernels.values()) == 0, "kernels in graphs are counted, not named"


def test_a_side_stream_that_joined_is_captured_too() -> None:
    x = torch.zeros(64, device="cuda")
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()

    def capture() -> None:
        with torch.cuda.graph(graph):
            x.add_(1)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                x.mul_(2)
                torch.mm(torch.zeros(8, 8, device="cuda"), torch.zeros(8, 8, device="cuda"))
            torch.cuda.current_stream().wait_stream(side)
            x.sub_(3)

    assert launches_of(capture) == 0
    assert launches_of(graph.replay) == 6, "two fills and a product among them"
    with torch.cuda.stream(side):
        assert launches_of(lambda: x.add_(1)) == 1, "it has left the capture"


def test_libraries_queue_on_the_stream_of_the_capture() -> None:
    a = torch.zeros(32, 32, device="cuda")
    wanted = [
        lambda: torch.mm(a, a),
        lambda: torch.bmm(a[None], a[None]),
        lambda: torch.nn.functional.conv2d(a[None, None], a[None, None, :3, :3]),
        lambda: torch.nn.functional.linear(a.half(), a.half(), a[0].half()),
    ]
    for work in wanted:
        work()
        graph = torch.cuda.CUDAGraph()
        outside = launches_of(work)

        def capture(graph: torch.cuda.CUDAGraph = graph, work: object = work) -> None:
            with torch.cuda.graph(graph):
                work()  # type: ignore[operator]

        assert launches_of(capture) == 0
        assert launches_of(graph.replay) >= outside > 0


@pytest.mark.parametrize(
    "forbidden",
    [lambda x: x.sum().item(), lambda x: x.nonzero(), lambda x: torch.cuda.synchronize()],
    ids=["item", "nonzero", "synchronize"],
)
def test_what_waits_is_refused_in_a_capture_in_cudas_words(forbidden: object) -> None:
    x = torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError) as said, torch.cuda.graph(graph):
        forbidden(x)  # type: ignore[operator]
    words = [str(said.value), str(said.value.__context__)]
    assert any("operation not permitted when stream is capturing" in one for one in words)
    assert not torch.cuda.is_current_stream_capturing()
    torch.cuda.synchronize()
    assert launches_of(lambda: x.add_(1)) == 1, "the device goes on"


def test_a_pageable_copy_in_a_capture_is_refused_by_pytorch() -> None:
    x = torch.zeros(4, device="cuda")
    with pytest.raises(RuntimeError, match="during CUDA graph capture"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.cpu()
    torch.cuda.synchronize()


def test_a_graph_has_a_pool_that_another_can_share() -> None:
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        one = torch.zeros(1 << 20, device="cuda")
    with torch.cuda.graph(second, pool=first.pool()):
        two = torch.zeros(1 << 20, device="cuda")
    pools = {part["segment_pool_id"] for part in torch.cuda.memory_snapshot()}
    assert first.pool() == second.pool()
    assert tuple(first.pool()) in pools
    del one, two


def test_a_graphed_callable_trains() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).cuda()
    x = torch.zeros(4, 8, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (x,))
    before = library().calls("cudaGraphLaunch")
    graphed(x).sum().backward()
    assert library().calls("cudaGraphLaunch") - before == 2


def test_each_wait_is_told_with_the_function_that_waits() -> None:
    event = torch.cuda.Event()
    with told(Seen.SYNCHRONISATION) as seen:
        torch.cuda.synchronize()
        torch.cuda.current_stream().synchronize()
        event.record()
        event.synchronize()
    assert [one.name for one in seen] == ["cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize"]


def test_copies_are_told_with_bytes_and_way_and_waits_once() -> None:
    host, pinned = torch.zeros(1000), torch.zeros(1000).pin_memory()
    device = torch.zeros(1000, device="cuda")
    torch.cuda.synchronize()
    wanted = {
        "pageable to device": (lambda: host.to("cuda"), [(4000, -1, 0)], 1),
        "pinned to device": (lambda: pinned.to("cuda", non_blocking=True), [(4000, -1, 0)], 0),
        "device to pinned": (lambda: pinned.copy_(device, non_blocking=True), [(4000, 0, -1)], 0),
        "device to pageable": (lambda: device.to("cpu"), [(4000, 0, -1)], 1),
        "on the device": (lambda: device.clone(), [(4000, 0, 0)], 0),
        "item": (lambda: device[0].item(), [(4, 0, -1)], 1),
    }
    for name, (work, copies, waits) in wanted.items():
        with told(Seen.COPY | Seen.SYNCHRONISATION) as seen:
            work()
        assert [(one.size, one.source, one.target) for one in seen if one.what == Seen.COPY] == copies, name
        assert sum(one.what == Seen.SYNCHRONISATION for one in seen) == waits, name
    library().reset()
    device.nonzero()
    counts = library().counts()
    assert counts.synchronisations == 1
    assert counts.copies["device to host"][0] == 1
