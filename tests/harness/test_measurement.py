"""One measurement from beginning to end, on a clock that moves only when the measured work moves it."""

from __future__ import annotations

import gc

import pytest
import torch

from perflab.measure.measurement import Measured, measure, replicate_of
from perflab.measure.records import Measurement
from perflab.measure.sampling import Plan
from perflab.measure.workload import Step, Workload
from tests.harness.make import MS
from tests.harness.virtual_clock import VirtualClock

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
S = 1_000 * MS


def measured(workload: Workload, budget_ns: float = 2 * S, warmup: int | None = None) -> Measured:
    return measure(workload, CPU, Plan(budget_ns, warmup), lambda _text: None, label="a case")


def test_a_measurement_has_its_samples_its_memory_and_the_last_result(virtual_clock: VirtualClock) -> None:
    calls: list[int] = []

    def work() -> torch.Tensor:
        calls.append(1)
        virtual_clock.advance(100 * MS)
        return torch.full((256,), float(len(calls)))

    found = measured(Workload(work, (), {}))
    assert set(found.measurement.samples_ns) == {100 * MS}
    assert found.measurement.repetitions == 1
    assert found.measurement.settled
    assert found.measurement.clock == "host"
    assert found.measurement.memory is not None
    assert found.measurement.memory.peak_bytes == 1024
    assert found.result[0].item() == len(calls)


def test_every_phase_has_as_many_samples_as_the_whole(virtual_clock: VirtualClock) -> None:
    step = Step(lambda: virtual_clock.advance(60 * MS), lambda _loss: virtual_clock.advance(40 * MS))
    found = measured(step).measurement
    assert list(found.phases_ns) == ["forward", "backward"]
    assert [sum(parts) for parts in zip(*found.phases_ns.values(), strict=True)] == found.samples_ns


def test_a_fixed_warm_up_is_counted(virtual_clock: VirtualClock) -> None:
    assert measured(Workload(virtual_clock.advance, (100 * MS,), {}), warmup=3).measurement.warmup_calls == 3


@pytest.mark.parametrize("raises", [True, False])
def test_the_collector_runs_during_samples_and_forgets_nothing_afterwards(
    virtual_clock: VirtualClock, raises: bool
) -> None:
    before = gc.get_freeze_count()  # 375 in Python 3.12
    frozen: list[int] = []

    def work() -> None:
        frozen.append(gc.get_freeze_count())
        virtual_clock.advance(500 * MS)
        if raises:
            raise ValueError("no")

    if raises:
        with pytest.raises(ValueError, match="no"):
            measured(Workload(work, (), {}))
    else:
        measured(Workload(work, (), {}))
    assert frozen[0] > before
    assert gc.get_freeze_count() <= before


def test_what_a_program_froze_itself_stays_frozen(virtual_clock: VirtualClock) -> None:
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        measured(Workload(virtual_clock.advance, (100 * MS,), {}))
        assert gc.get_freeze_count() == pytest.approx(before, rel=0.01)  # nothing of ours, and nothing let go
    finally:
        gc.unfreeze()


def boiled_down(samples_ns: list[int], repetitions: int = 1) -> Measurement:
    return Measurement(
        samples_ns=samples_ns, repetitions=repetitions, warmup_calls=2, settled=True, clock="host", phases_ns={}
    )


def test_a_replicate_tells_times_of_one_call() -> None:
    found = replicate_of(boiled_down([1_000, 1_400, 1_200], repetitions=10))
    assert (found.median_ns, found.fastest_ns, found.mean_ns, found.samples) == (120.0, 100.0, 120.0, 3)
    assert found.std_ns == pytest.approx(20.0)
    assert found.noise == pytest.approx(20.0 / 120.0, abs=1e-6)


def test_a_replicate_of_one_sample_has_no_deviation() -> None:
    found = replicate_of(boiled_down([1_000]))
    assert (found.median_ns, found.std_ns, found.samples) == (1_000.0, 0.0, 1)


def test_no_sample_is_trimmed_from_mean_and_deviation() -> None:
    found = replicate_of(boiled_down([100] * 9 + [100_000]))
    assert found.mean_ns == 10_090.0
    assert found.std_ns > 30_000
    assert found.median_ns == 100.0


def test_phases_are_boiled_down_to_their_medians_of_one_call() -> None:
    measurement = Measurement(
        samples_ns=[30, 60, 90],
        repetitions=10,
        warmup_calls=0,
        settled=True,
        clock="host",
        phases_ns={"forward": [10, 20, 30], "backward": [20, 40, 60]},
    )
    assert replicate_of(measurement).phases_ns == {"forward": 2.0, "backward": 4.0}
