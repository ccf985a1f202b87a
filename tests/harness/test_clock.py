"""The stopwatches: phases add up to the whole, and a GPU is waited for before and after, never in between."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import perflab
from perflab.measure.calls.workload import Step, Workload
from perflab.measure.clocks.clock import HostStopwatch
from perflab.measure.clocks.device_clock import DeviceStopwatch
from tests.harness.fake_cuda import FakeCuda, taking
from tests.harness.virtual_clock import VirtualClock

# --- the host's clock --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("repetitions", [1, 7])
def test_a_sample_is_the_time_of_all_its_calls(virtual_clock: VirtualClock, repetitions: int) -> None:
    sample = HostStopwatch().time(Workload(taking(virtual_clock.advance, 30), (), {}), repetitions)
    assert sample.total_ns == 30 * repetitions
    assert sample.phases_ns == {}


def test_phases_are_summed_over_micro_batches_and_a_missing_one_is_none(virtual_clock: VirtualClock) -> None:
    advance = virtual_clock.advance
    forward_ns = iter((10, 11, 12) * 2)
    step = Step(
        lambda: advance(next(forward_ns)), taking(advance, 25), taking(advance, 4), micro_batches=3
    )  # the later micro-batches take longer
    sample = HostStopwatch().time(step, 2)
    assert sample.phases_ns == {"forward": 66, "backward": 150, "optimizer": 8}
    assert sample.total_ns == 66 + 150 + 8
    advance = virtual_clock.advance
    sample = HostStopwatch().time(Step(taking(advance, 10), optimizer=taking(advance, 4)), 2)
    assert sample.phases_ns == {"forward": 20, "optimizer": 8}


# --- CUDA events, on a device that is played ---------------------------------------------------------------------


def stopwatch() -> DeviceStopwatch:
    return DeviceStopwatch(torch.device("cuda", 0))


@pytest.mark.parametrize("repetitions", [1, 6])
def test_a_gpu_sample_is_the_devices_own_time(cuda: FakeCuda, repetitions: int) -> None:
    sample = stopwatch().time(Workload(taking(cuda.work, 2_500), (), {}), repetitions)
    assert sample.total_ns == 2_500 * repetitions
    assert sample.phases_ns == {}


@pytest.mark.parametrize("repetitions", [1, 4])
def test_phases_on_a_gpu_add_up_to_the_whole(cuda: FakeCuda, repetitions: int) -> None:
    step = Step(taking(cuda.work, 1_000), taking(cuda.work, 2_000), taking(cuda.work, 500))
    sample = stopwatch().time(step, repetitions)
    assert sample.phases_ns == {
        "forward": 1_000 * repetitions,
        "backward": 2_000 * repetitions,
        "optimizer": 500 * repetitions,
    }
    assert sample.total_ns == sum(sample.phases_ns.values())


@pytest.mark.parametrize("phased", [False, True])
def test_a_gpu_is_waited_for_before_the_first_event_and_after_the_last_and_not_in_between(
    cuda: FakeCuda, phased: bool
) -> None:
    work: Any = taking(cuda.work, 1_000)
    stopwatch().time(Step(work, work) if phased else Workload(work, (), {}), 3)
    order = [what for what in cuda.log if what not in ("create", "read")]
    assert order[:3] == ["synchronize", "synchronize", "record"], "the second tells what waiting costs by itself"
    assert order[-3:] == ["record", "wait for event", "synchronize"]
    assert order.count("synchronize") == 3
    assert order.count("wait for event") == 1


def test_events_are_made_before_the_span_and_read_after_it(cuda: FakeCuda) -> None:
    stopwatch().time(Step(taking(cuda.work, 1_000), taking(cuda.work, 1_000)), 3)
    begin, _, end = (n for n, what in enumerate(cuda.log) if what == "synchronize")
    assert set(cuda.log[:begin]) == {"create"}, "PyTorch creates an event when it is first recorded"
    assert set(cuda.log[end + 1 :]) == {"read"}
    assert "create" not in cuda.log[begin:end]


# --- the timer for pytest-benchmark ------------------------------------------------------------------------------


@pytest.mark.parametrize(("is_initialized", "waited_for"), [(True, [0, 1, 2]), (False, [])])
def test_the_benchmark_timer_waits_for_every_gpu_in_use_and_does_not_start_cuda_by_itself(
    monkeypatch: pytest.MonkeyPatch, is_initialized: bool, waited_for: list[int]
) -> None:
    waited: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_initialized)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr("perflab.internals.of_torch.machine.has_cuda_context", lambda _index: True)
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    earlier = perflab.cuda_timer()
    assert waited == waited_for
    assert perflab.cuda_timer() >= earlier
