"""Replays of a CUDA graph, on a device that is played: what is captured, what is timed, and what cannot be captured."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable

import pytest
import torch

from perflab.base.errors import CaptureError
from perflab.measure.calls.workload import Workload
from perflab.measure.clocks.modes import CALLS_BEFORE, ColdDeviceStopwatch, GraphStopwatch
from perflab.measure.machine.devices import as_out_of_memory
from tests.harness.fake_cuda import FakeCuda, taking
from tests.harness.test_cold import Evicting

CUDA = torch.device("cuda", 0)


def of(call: Callable[..., object]) -> Workload:
    return Workload(call, (), {})


def doing(cuda: FakeCuda, then: Callable[[], object]) -> Workload:
    """Does some work, and then something else, but only while it is captured."""

    def call() -> None:
        cuda.work(1_000)
        if cuda.capturing is not None:
            then()

    return of(call)


@pytest.mark.parametrize("repetitions", [1, 7])
def test_a_sample_is_a_replay_of_all_its_calls_and_launches_none_by_itself(cuda: FakeCuda, repetitions: int) -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        cuda.work(2_500)

    stopwatch, work = GraphStopwatch(CUDA), of(call)
    assert stopwatch.time(work, repetitions).total_ns == 2_500 * repetitions
    before = len(calls)
    assert stopwatch.time(work, repetitions).total_ns == 2_500 * repetitions
    assert len(calls) == before == CALLS_BEFORE + repetitions


def test_the_device_is_busy_with_a_replay_while_the_one_that_is_timed_is_launched(cuda: FakeCuda) -> None:
    stopwatch, work = GraphStopwatch(CUDA), of(taking(cuda.work, 1_000))
    stopwatch.time(work, 2)
    cuda.log.clear()
    stopwatch.time(work, 2)
    queued = [what for what in cuda.log if what not in ("create", "read")]
    replay = ["replay", "work", "work"]
    begin, end = ["synchronize", "synchronize", "record"], ["record", "wait for event", "synchronize"]
    assert queued == [*begin, *replay, "record", *replay, "record", *end]


def test_calls_before_the_capture_are_made_on_the_stream_that_captures(cuda: FakeCuda) -> None:
    streams: list[object] = []

    def call() -> None:
        streams.append(cuda.stream)
        cuda.work(1_000)

    GraphStopwatch(CUDA).time(of(call), 2)
    assert len(streams) == CALLS_BEFORE + 2
    assert len(set(map(id, streams))) == 1
    assert cuda.default not in streams
    assert cuda.stream is cuda.default
    begin = cuda.log.index("wait")
    assert cuda.log[begin : begin + 6] == ["wait", *["work"] * CALLS_BEFORE, "wait", "capture"]


def test_another_number_of_calls_is_captured_anew_without_calls_before(cuda: FakeCuda) -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        cuda.work(1_000)

    stopwatch, work = GraphStopwatch(CUDA), of(call)
    for repetitions in (1, 10, 10, 100):
        assert stopwatch.time(work, repetitions).total_ns == 1_000 * repetitions
    assert cuda.log.count("capture") == 3
    assert len(calls) == CALLS_BEFORE + 1 + 10 + 100


def test_a_graph_that_was_given_back_is_captured_again(cuda: FakeCuda) -> None:
    stopwatch, work = GraphStopwatch(CUDA), of(taking(cuda.work, 1_000))
    stopwatch.time(work, 2)
    stopwatch.release()
    assert stopwatch.time(work, 2).total_ns == 2_000
    assert cuda.log.count("capture") == 2


def test_with_cold_caches_the_graph_holds_one_call_and_each_replay_has_an_eviction_before_it(cuda: FakeCuda) -> None:
    evict = Evicting(lambda ns: cuda.work(ns, "write"), cuda.log, cost_ns=80_000)
    stopwatch, work = GraphStopwatch(CUDA, ColdDeviceStopwatch(CUDA, evict)), of(taking(cuda.work, 3_000))
    stopwatch.time(work, 3)
    cuda.log.clear()
    sample = stopwatch.time(work, 3)
    assert (sample.total_ns, sample.apart_ns) == (9_000, 240_000)
    queued = [what for what in cuda.log if what not in ("create", "read")]
    each = ["evict", "write", "record", "replay", "work", "record"]
    begin, end = ["synchronize", "synchronize", "record"], ["record", "wait for event", "synchronize"]
    assert queued == [*begin, *each * 3, *end]
    assert stopwatch.evicted_bytes == evict.size_bytes
    stopwatch.release()
    assert evict.released == 1


def test_what_waits_for_the_device_cannot_be_captured_and_the_first_error_is_told(cuda: FakeCuda) -> None:
    with pytest.raises(CaptureError) as error:
        GraphStopwatch(CUDA).time(doing(cuda, cuda.synchronize), 1)
    assert error.value.problem == (
        "its callable cannot be captured in a CUDA graph: "
        "RuntimeError: CUDA error: operation not permitted when stream is capturing"
    )
    assert ".item()" in error.value.remedy
    assert "leave cuda_graph out" in error.value.remedy
    assert cuda.stream is cuda.default, "the capturing stream is not left behind"


def test_an_error_before_the_capture_is_the_callers(cuda: FakeCuda) -> None:
    def fail() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match=r"^no$"):
        GraphStopwatch(CUDA).time(of(fail), 1)
    assert "capture" not in cuda.log


def test_running_out_of_memory_in_a_capture_stays_that(cuda: FakeCuda) -> None:
    def fail() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. and so on")

    with pytest.raises(RuntimeError) as error:
        GraphStopwatch(CUDA).time(doing(cuda, fail), 1)
    found = as_out_of_memory(error.value)
    assert found.asked_bytes == 2**31


def test_a_callable_that_launches_nothing_is_refused(cuda: FakeCuda) -> None:
    with pytest.raises(CaptureError, match="a CUDA graph of its callable is empty: it launches no kernel"):
        GraphStopwatch(CUDA).time(of(lambda: None), 1)
    assert cuda.stream is cuda.default


def test_other_warnings_of_a_capture_stay_warnings(cuda: FakeCuda) -> None:
    with pytest.warns(UserWarning, match=r"^something else$"):
        GraphStopwatch(CUDA).time(doing(cuda, lambda: warnings.warn("something else", stacklevel=1)), 1)


@pytest.mark.parametrize("fails", [False, True])
def test_the_collector_rests_during_a_capture_and_runs_after_it(cuda: FakeCuda, fails: bool) -> None:
    during: list[bool] = []

    def look() -> None:
        during.append(gc.isenabled())
        if fails:
            cuda.synchronize()

    assert gc.isenabled()
    if fails:
        with pytest.raises(CaptureError):
            GraphStopwatch(CUDA).time(doing(cuda, look), 1)
    else:
        GraphStopwatch(CUDA).time(doing(cuda, look), 1)
    assert during == [False]
    assert gc.isenabled()
