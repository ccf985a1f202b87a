"""Timing with cold caches: the eviction is before each call and in no span, on the host's clock and on a GPU's.

Also the size of the caches in which a cold call must find nothing, and that writing the buffer empties them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from perflab.base.identity import Mode
from perflab.measure.calls.workload import Step, Workload
from perflab.measure.clocks.clock import Sample
from perflab.measure.clocks.modes import ColdDeviceStopwatch, ColdHostStopwatch
from perflab.measure.machine import devices as caches
from perflab.measure.machine.devices import Eviction, eviction_bytes, last_level_cache_bytes
from perflab.measure.stopping import Plan, warm_up
from perflab.measurement import measurement
from perflab.measurement.measurement import Measured, measure, stopwatch_for
from tests.harness.fake_cuda import FakeCuda, taking
from tests.harness.make import MS
from tests.harness.virtual_clock import VirtualClock

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
COLD = Mode(cache="cold")
S = 1_000 * MS
US = 1_000
MIB = 2**20


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
    monkeypatch.setattr("perflab.measure.clocks.modes.time.process_time_ns", virtual_clock.read_ns)
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


def test_a_warm_measurement_evicts_nothing_and_makes_no_buffer(virtual_clock: VirtualClock, evicting: Evicting) -> None:
    found = measured(Workload(taking(virtual_clock.advance, 3 * MS), (), {}), Mode()).measurement
    assert evicting.log == []
    assert (found.evicted_bytes, found.empty_call_ns) == (None, None)


def test_memory_and_counts_of_a_cold_case_are_those_of_a_warm_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from perflab.measure.counts.counter import CallCounter, compiler_state

    monkeypatch.setattr(caches, "eviction_bytes", lambda _device: 64 << 20)

    def weighed(mode: Mode) -> tuple[object, ...]:
        x = torch.ones(2**16)
        work = Workload(lambda: (x + 1).sum(), (), {})
        counter = CallCounter(CPU, compiler_state())
        plan = Plan(0.1 * S, warmup=1)
        found = measure(work, CPU, plan, lambda _text: None, label="a case", counter=counter, mode=mode).measurement
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


def cache(root: Path, core: int, index: int, level: int, kind: str, size: str, shared_by: str) -> None:
    """One cache, as Linux tells of it."""
    folder = root / f"cpu{core}" / "cache" / f"index{index}"
    folder.mkdir(parents=True)
    for name, text in {"level": str(level), "type": kind, "size": size, "shared_cpu_list": shared_by}.items():
        (folder / name).write_text(f"{text}\n")


@pytest.fixture
def eight_cores(tmp_path: Path) -> Path:
    """Two groups of four cores, each with 32 MiB of its own, as AMD builds them."""
    for core in range(8):
        cache(tmp_path, core, 0, 1, "Data", "32K", str(core))
        cache(tmp_path, core, 1, 1, "Instruction", "32K", str(core))
        cache(tmp_path, core, 2, 2, "Unified", "1024K", str(core))
        cache(tmp_path, core, 3, 3, "Unified", "32768K", "0-3" if core < 4 else "4-7")
    return tmp_path


@pytest.mark.parametrize(("cores", "mib"), [(range(8), 64), ([0, 1], 32), ([3, 4], 64)])
def test_last_level_caches_of_the_cores_in_use_are_counted_once_each(
    eight_cores: Path, cores: list[int], mib: int
) -> None:
    assert last_level_cache_bytes(str(eight_cores), cores) == mib * MIB


def test_without_a_third_level_the_second_is_the_last(tmp_path: Path) -> None:
    for core in (0, 1):
        cache(tmp_path, core, 0, 1, "Data", "64K", str(core))
        cache(tmp_path, core, 1, 2, "Unified", "2M", str(core))
    assert last_level_cache_bytes(str(tmp_path), [0, 1]) == 4 * MIB


def test_a_cache_that_cannot_be_read_is_none(eight_cores: Path) -> None:
    (eight_cores / "cpu0" / "cache" / "index3" / "size").write_text("unknown\n")
    assert last_level_cache_bytes(str(eight_cores), [0]) == 1 * MIB


def test_where_the_system_tells_nothing_a_documented_size_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_name: str) -> int:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(caches.os, "sysconf", unknown)
    assert last_level_cache_bytes(str(tmp_path), [0, 1]) is None
    monkeypatch.setattr(caches, "last_level_cache_bytes", lambda: None)
    assert eviction_bytes(CPU) == 256 * MIB


def test_what_the_c_library_knows_counts_where_sys_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"SC_LEVEL4_CACHE_SIZE": 0, "SC_LEVEL3_CACHE_SIZE": 8 * MIB, "SC_LEVEL2_CACHE_SIZE": MIB}
    monkeypatch.setattr(caches.os, "sysconf", known.__getitem__)
    assert last_level_cache_bytes(str(tmp_path), [0]) == 8 * MIB


@pytest.mark.parametrize(("l2_mib", "mib"), [(40, 256), (50, 256), (126, 256), (200, 400)])
def test_a_gpu_takes_what_do_bench_takes_or_twice_its_l2_cache(
    monkeypatch: pytest.MonkeyPatch, l2_mib: int, mib: int
) -> None:
    properties = SimpleNamespace(L2_cache_size=l2_mib * MIB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    assert eviction_bytes(torch.device("cuda", 0)) == mib * MIB


def test_the_buffer_is_larger_than_this_machines_last_level_cache() -> None:
    known = last_level_cache_bytes()
    assert eviction_bytes(CPU) >= 2 * (known or 0) > 0 or known is None


def test_the_buffer_is_there_from_the_first_eviction_until_it_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "eviction_bytes", lambda _device: 4096)
    evict = Eviction(CPU)
    assert evict._buffer is None
    evict()
    evict()
    assert evict._buffer.nbytes == 4096
    assert set(evict._buffer.tolist()) == {2}, "the whole buffer is written by each eviction"
    evict.release()
    assert evict._buffer is None


def test_a_call_on_what_a_core_had_in_its_cache_is_slower_after_an_eviction() -> None:
    """192 KiB in a core's own cache: by the fastest of twenty, seen eight to eighteen times slower."""
    a, b, out = torch.rand(3, 2**14)
    work = Workload(torch.add, (a, b), {"out": out})
    warm, cold = stopwatch_for(CPU), stopwatch_for(CPU, Mode(cache="cold"))
    fastest_warm = min(warm.time(work, 100).total_ns / 100 for _ in range(20))
    assert min(cold.time(work, 1).total_ns for _ in range(20)) > 1.5 * fastest_warm
