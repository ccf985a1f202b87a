"""Timing with cold caches: the eviction is before each call and in no span, on the host's clock and on a GPU's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from perflab.base.identity import Mode
from perflab.measure.calls.workload import Step, Workload
from perflab.measure.clocks.clock import Sample
from perflab.measure.clocks.cold import ColdDeviceStopwatch, ColdHostStopwatch
from perflab.measure.machine import caches
from perflab.measure.machine.caches import Eviction
from perflab.measure.sampling.stopping import Plan, warm_up
from perflab.measurement import measurement
from perflab.measurement.measurement import Measured, measure
from tests.harness.fake_cuda import FakeCuda, taking
from tests.harness.make import MS
from tests.harness.virtual_clock import VirtualClock

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
COLD = Mode(cache="cold")
S = 1_000 * MS
US = 1_000


class Evicting(Eviction):
    """An eviction that takes its time, and notes when it was."""

    size_bytes = 4096

    def __init__(self, advance: Callable[[int], None], log: list[str], cost_ns: int = 20 * MS) -> None:
        self.advance, self.log, self.cost_ns = advance, log, cost_ns
        self.released = 0

    def __call__(self) -> None:
        self.log.append("evict")
        self.advance(self.cost_ns)

    def release(self) -> None:
        self.released += 1
        self.log.append("release")


def logged(log: list[str], advance: Callable[[int], None], name: str, cost_ns: int) -> Callable[..., None]:
    """A callable that takes so long, and notes when it was."""

    def call(*_args: object) -> None:
        log.append(name)
        advance(cost_ns)

    return call


# --- the host's clock --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("repetitions", [1, 3])
def test_every_call_has_an_eviction_before_it_which_is_in_no_span(
    virtual_clock: VirtualClock, repetitions: int
) -> None:
    log: list[str] = []
    stopwatch = ColdHostStopwatch(Evicting(virtual_clock.advance, log))
    sample = stopwatch.time(Workload(logged(log, virtual_clock.advance, "call", 30), (), {}), repetitions)
    assert log == ["evict", "call"] * repetitions
    assert sample.total_ns == 30 * repetitions
    assert sample.apart_ns == 20 * MS * repetitions
    assert sample.lasted_ns == virtual_clock.now_ns


def test_a_step_begins_cold_and_its_phases_follow_each_other(virtual_clock: VirtualClock) -> None:
    log: list[str] = []
    advance = virtual_clock.advance
    phases = [
        logged(log, advance, name, cost_ns) for name, cost_ns in (("forward", 10), ("backward", 25), ("optimizer", 4))
    ]
    sample = ColdHostStopwatch(Evicting(advance, log)).time(Step(*phases), 2)
    assert log == ["evict", "forward", "backward", "optimizer"] * 2
    assert sample.phases_ns == {"forward": 20, "backward": 50, "optimizer": 8}
    assert sample.total_ns == 78


def test_cpu_time_of_the_eviction_is_not_the_calls(
    virtual_clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    monkeypatch.setattr("perflab.measure.clocks.cold.time.process_time_ns", virtual_clock.read_ns)
    stopwatch = ColdHostStopwatch(Evicting(virtual_clock.advance, log))
    assert stopwatch.time(Workload(taking(virtual_clock.advance, 30), (), {}), 4).cpu_ns == 120


def test_what_timing_an_empty_call_takes_is_known(virtual_clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    stopwatch = ColdHostStopwatch(Evicting(virtual_clock.advance, []))
    assert stopwatch.empty_call_ns() == 0

    def reading() -> int:
        virtual_clock.advance(70)  # each reading of this clock costs so much
        return virtual_clock.now_ns

    monkeypatch.setattr("perflab.measure.clocks.clock.read_ns", reading)
    assert stopwatch.empty_call_ns() == 70


def test_evictions_count_towards_a_samples_length_so_that_short_calls_are_not_repeated(
    virtual_clock: VirtualClock,
) -> None:
    stopwatch = ColdHostStopwatch(Evicting(virtual_clock.advance, []))
    work = Workload(taking(virtual_clock.advance, 3 * US), (), {})
    warmup = warm_up(lambda n: stopwatch.time(work, n), Plan(10 * S), lambda _: None)
    assert (warmup.repetitions, warmup.settled, warmup.readings_ns) == (1, True, (3 * US, 3 * US))
    assert warmup.call_lasts_ns == 20 * MS + 3 * US


def test_a_fast_eviction_leaves_room_for_more_calls_in_a_sample(virtual_clock: VirtualClock) -> None:
    stopwatch = ColdHostStopwatch(Evicting(virtual_clock.advance, [], cost_ns=97 * US))
    work = Workload(taking(virtual_clock.advance, 3 * US), (), {})
    warmup = warm_up(lambda n: stopwatch.time(work, n), Plan(10 * S), lambda _: None)
    assert warmup.repetitions == 10
    assert warmup.call_lasts_ns == 100 * US


# --- a whole measurement -----------------------------------------------------------------------------------------


@pytest.fixture
def evicting(virtual_clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> Evicting:
    """What measurements evict with."""
    one = Evicting(virtual_clock.advance, [])
    monkeypatch.setattr(measurement, "Eviction", lambda _device: one)
    return one


def measured(workload: Workload, mode: Mode = COLD) -> Measured:
    return measure(workload, CPU, Plan(2 * S), lambda _text: None, label="a case", mode=mode)


@pytest.mark.usefixtures("one_thread")
def test_a_cold_measurement_evicts_before_every_timed_call_and_not_in_the_memory_pass(
    virtual_clock: VirtualClock, evicting: Evicting
) -> None:
    log = evicting.log
    found = measured(Workload(logged(log, virtual_clock.advance, "call", 3 * MS), (), {})).measurement
    assert set(found.samples_ns) == {3 * MS}
    assert found.repetitions == 1
    assert (found.evicted_bytes, found.empty_call_ns) == (4096, 0)
    released = log.index("release")
    calls = found.warmup_calls + len(found.samples_ns)
    empty = ["evict"] * (log[:released].count("evict") - calls)
    assert log[:released] == ["evict", "call"] * calls + empty
    assert log[released + 1 :] == ["call", "call"], "the memory pass makes plain calls, when the buffer is gone"


@pytest.mark.usefixtures("one_thread")
def test_a_warm_measurement_evicts_nothing_and_makes_no_buffer(virtual_clock: VirtualClock, evicting: Evicting) -> None:
    found = measured(Workload(taking(virtual_clock.advance, 3 * MS), (), {}), Mode()).measurement
    assert evicting.log == []
    assert (found.evicted_bytes, found.empty_call_ns) == (None, None)


@pytest.mark.usefixtures("one_thread")
def test_memory_and_counts_of_a_cold_case_are_those_of_a_warm_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from perflab.measure.counts.compiling import compiler_state
    from perflab.measure.counts.counter import CallCounter

    monkeypatch.setattr(caches, "eviction_bytes", lambda _device: 64 << 20)

    def weighed(mode: Mode) -> tuple[object, ...]:
        x = torch.ones(2**16)
        work = Workload(lambda: (x + 1).sum(), (), {})
        counter = CallCounter(CPU, compiler_state())
        plan = Plan(0.1 * S, warmup=1)
        found = measure(work, CPU, plan, lambda _text: None, label="a case", counter=counter, mode=mode).measurement
        assert found.memory is not None
        return found.memory.peak_bytes, found.memory.held_bytes, found.memory.growth_bytes, found.counts

    assert weighed(COLD) == weighed(Mode())


# --- CUDA events -------------------------------------------------------------------------------------------------


def cold_on(cuda: FakeCuda) -> ColdDeviceStopwatch:
    return ColdDeviceStopwatch(CUDA, Evicting(lambda ns: cuda.work(ns, "write"), cuda.log, cost_ns=80 * US))


@pytest.mark.parametrize("repetitions", [1, 6])
def test_on_a_gpu_events_surround_each_call_and_leave_the_eviction_out(cuda: FakeCuda, repetitions: int) -> None:
    sample = cold_on(cuda).time(Workload(taking(cuda.work, 2_500), (), {}), repetitions)
    assert sample == Sample(2_500 * repetitions, {}, apart_ns=80 * US * repetitions)
    queued = [what for what in cuda.log if what not in ("create", "read")]
    each = ["evict", "write", "record", "work", "record"]
    begin, end = ["synchronize", "synchronize", "record"], ["record", "wait for event", "synchronize"]
    assert queued == [*begin, *each * repetitions, *end]


def test_phases_of_a_cold_step_on_a_gpu_add_up_to_the_whole(cuda: FakeCuda) -> None:
    step = Step(taking(cuda.work, 1_000), taking(cuda.work, 2_000), taking(cuda.work, 500), micro_batches=2)
    sample = cold_on(cuda).time(step, 3)
    assert sample.phases_ns == {"forward": 6_000, "backward": 12_000, "optimizer": 1_500}
    assert sample.total_ns == 19_500
    assert cuda.log.count("evict") == 3, "once a step"


def test_on_a_gpu_an_empty_call_is_the_gap_between_two_events(cuda: FakeCuda) -> None:
    assert cold_on(cuda).empty_call_ns() == 0
