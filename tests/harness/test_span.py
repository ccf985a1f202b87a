"""A span on a GPU ends with all of its streams, and the host's clock has to agree: on a device that is played.

Also the time that the host takes to launch a call, apart from what the GPU does.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion

from perflab.base.errors import ClockError
from perflab.base.identity import DEFAULT
from perflab.compared.serving import Server
from perflab.measure.calls.workload import Step, Workload
from perflab.measure.clocks.clock import Stopwatch
from perflab.measure.clocks.device_clock import DeviceStopwatch, Reading, check_agreement, launch_ns
from perflab.measure.clocks.modes import ColdDeviceStopwatch, GraphStopwatch
from perflab.measure.stopping import Plan
from perflab.measured.report.facts import launching_fact, launching_text
from perflab.measured.report.failure import explain
from perflab.measured.report.table import table
from perflab.measurement import measurement, turns
from perflab.results.records import Change, Policy, Verdict
from perflab.tiers.job import Serve
from perflab.turns.messages import Finish, Ready, Taken, Turn
from tests.harness.fake_cuda import FakeCuda, FakeEvent, taking
from tests.harness.make import MS, cuda_environment, entry, environment, judge, record, replicate, result
from tests.harness.test_cold import Evicting

CUDA = torch.device("cuda", 0)
US = 1_000
Lies = Callable[[Any, float], None]

STOPWATCHES: dict[str, Callable[[FakeCuda], Stopwatch]] = {
    "warm": lambda _cuda: DeviceStopwatch(CUDA),
    "cold": lambda cuda: ColdDeviceStopwatch(CUDA, Evicting(lambda ns: cuda.work(ns, "write"), [], cost_ns=80 * US)),
    "graph": lambda _cuda: GraphStopwatch(CUDA),
}


@pytest.fixture(params=STOPWATCHES)
def stopwatch(request: pytest.FixtureRequest, cuda: FakeCuda) -> Stopwatch:
    return STOPWATCHES[request.param](cuda)


@pytest.mark.parametrize("mode", ["warm", "cold"])
def test_work_on_another_stream_that_nobody_waits_for_is_in_the_span(cuda: FakeCuda, mode: str) -> None:
    def call() -> None:
        cuda.work(1 * MS)
        cuda.work_elsewhere(5 * MS)

    sample = STOPWATCHES[mode](cuda).time(Workload(call, (), {}), 3)
    assert sample.total_ns >= 15 * MS, "three calls, each of 5 ms on the other stream"
    check_agreement([sample.reading] * 3)


def test_work_on_another_stream_is_in_a_steps_whole(cuda: FakeCuda) -> None:
    step = Step(taking(cuda.work, 1 * MS), optimizer=taking(cuda.work_elsewhere, 7 * MS))
    sample = DeviceStopwatch(CUDA).time(step, 1)
    assert (sample.total_ns, sample.phases_ns["forward"]) == (8 * MS, 1 * MS)


def test_the_hosts_clock_is_read_around_every_sample_and_agrees(cuda: FakeCuda, stopwatch: Stopwatch) -> None:
    samples = [stopwatch.time(Workload(taking(cuda.work, 2 * MS), (), {}), 2) for _ in range(4)]
    readings = [sample.reading for sample in samples if sample.reading is not None]
    assert len(readings) == 4
    assert all(reading.host_ns == reading.device_ns >= 4 * MS for reading in readings)
    check_agreement(readings)


@pytest.mark.parametrize("factor", [0.0, 0.5, 2.0])
def test_events_that_were_replaced_are_noticed(
    cuda: FakeCuda, stopwatch: Stopwatch, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    told = FakeEvent.elapsed_time
    monkeypatch.setattr(FakeEvent, "elapsed_time", lambda self, end: factor * told(self, end))
    samples = [stopwatch.time(Workload(taking(cuda.work, 2 * MS), (), {}), 2) for _ in range(4)]
    told_twice = r"the device's events say that a sample lasts .* and the host's clock .* around it"
    with pytest.raises(ClockError, match=told_twice):
        check_agreement([sample.reading for sample in samples])


def test_a_clock_disagrees_where_too_few_samples_agree() -> None:
    late, prompt = Reading(1 * MS, 6 * MS), Reading(1 * MS, 1 * MS + 60 * US)
    check_agreement([late, late, prompt, late, prompt, late, late, prompt])
    with pytest.raises(ClockError):
        check_agreement([late, late, late, late, prompt, late, late, prompt])
    check_agreement([late, late, late, prompt])
    with pytest.raises(ClockError):
        check_agreement([late, late, late, late])
    check_agreement([None, None, None])


@pytest.fixture
def lies(monkeypatch: pytest.MonkeyPatch) -> Lies:
    """Have events of the device tell a share of its time, where a module measures."""
    told = FakeEvent.elapsed_time

    def lie(module: Any, share: float) -> None:
        monkeypatch.setattr(module, "stopwatch_for", lambda _device, _mode: DeviceStopwatch(CUDA))
        monkeypatch.setattr(FakeEvent, "elapsed_time", lambda self, end: share * told(self, end))

    return lie


def test_a_side_of_a_comparison_whose_clock_lies_ends_with_that(cuda: FakeCuda, lies: Lies) -> None:
    lies(turns, 1 / 3)
    side = turns.Turns(Workload(taking(cuda.work, 2 * MS), (), {}), torch.device("cpu"), Plan(1e9))
    with side:
        side.take(1, 7, rewarm=False)
        with pytest.raises(ClockError):
            side.take(1, 1, rewarm=False)
    lies(turns, 3)
    side = turns.Turns(Workload(taking(cuda.work, 100 * MS), (), {}), torch.device("cpu"), Plan(1e9))
    with side, pytest.raises(ClockError):
        side.take(1, 1, rewarm=False)


def test_a_side_that_took_few_samples_is_checked_when_it_is_finished(cuda: FakeCuda, lies: Lies) -> None:
    """Calls of 100 ms: two or three blocks of two turns, and one sample in each."""
    lies(turns, 1)
    side = turns.Turns(Workload(taking(cuda.work, 100 * MS), (), {}), torch.device("cpu"), Plan(1e9))
    with side:
        side.check_clock()
        side.take(1, 1, rewarm=False)
        side.check_clock()
    lies(turns, 1e-5)
    side = turns.Turns(Workload(taking(cuda.work, 100 * MS), (), {}), torch.device("cpu"), Plan(1e9))
    with side:
        for _ in range(4):
            side.take(1, 1, rewarm=False)
        with pytest.raises(ClockError):
            side.check_clock()


def test_the_process_of_a_side_ends_a_case_of_few_samples_whose_clock_lies(
    cuda: FakeCuda, lies: Lies, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [Turn(repetitions=1, samples=1, rewarm=False) for _ in range(4)]
    questions: list[Turn | Finish] = [*asked, Finish()]
    server, said = Server.__new__(Server), []
    server._was_ready = False
    monkeypatch.setattr(server, "_serve", Serve(first=[], own=None), raising=False)
    monkeypatch.setattr(server, "_strays", list, raising=False)
    monkeypatch.setattr(server, "_heard", lambda: questions.pop(0), raising=False)
    monkeypatch.setattr(server, "_say", said.append, raising=False)
    lies(turns, 1e-5)
    state: Any = SimpleNamespace(
        case="t.py::t",
        parameters={},
        part=lambda _kind: SimpleNamespace(environment=environment()),
        settings=SimpleNamespace(plan=Plan(1e9), mode=DEFAULT),
    )
    with pytest.raises(ClockError):
        server.measure(state, Workload(taking(cuda.work, 100 * MS), (), {}), torch.device("cpu"), None)
    assert [type(one) for one in said] == [Ready, *[Taken] * 4]


def test_a_measurement_whose_clock_lies_is_none(cuda: FakeCuda, lies: Lies) -> None:
    lies(measurement, 1 / 3)
    work = Workload(taking(cuda.work, 2 * MS), (), {})
    with pytest.raises(ClockError):
        measurement.measure(work, torch.device("cpu"), Plan(1e9), lambda _text: None, label="a case")


def launched(cuda: FakeCuda, *, host_us: int, device_us: int, launches: int = 1, waits: int = 0) -> float | None:
    def call() -> None:
        cuda.host_ns += host_us * US
        cuda.work(device_us * US)

    return launch_ns(Workload(call, (), {}), CUDA, {"kernel_launches": launches, "host_syncs": waits})


@pytest.mark.parametrize("device_us", [2, 500])
def test_launching_is_timed_without_what_the_device_does(cuda: FakeCuda, device_us: int) -> None:
    assert launched(cuda, host_us=9, device_us=device_us) == 9 * US
    rounds = "".join(one[0] for one in cuda.log).split("s")
    assert [len(one) for one in rounds if one] == [1, *[16] * 8], "the device is idle before each round of calls"


def test_calls_never_fill_the_drivers_queue_and_one_that_waits_is_not_timed(cuda: FakeCuda) -> None:
    assert launched(cuda, host_us=900, device_us=1, launches=300) == 900 * US
    assert cuda.log.count("work") == 9
    cuda.log.clear()
    assert launched(cuda, host_us=900, device_us=60_000) == 900 * US
    assert cuda.log.count("work") == 2, "longer calls are not repeated as often"
    for launches, waits in ((501, 0), (0, 0), (5, 1)):
        assert launched(cuda, host_us=9, device_us=1, launches=launches, waits=waits) is None
    assert launch_ns(Workload(lambda: None, (), {}), CUDA, {}) is None, "nobody counted"


def change(before_us: float, now_us: float) -> Change:
    return Change(before=before_us * US, now=now_us * US, ratio=now_us / before_us)


@pytest.mark.parametrize(
    ("call", "launching", "said"),
    [
        (
            (10, 13),
            (9.9, 12.9),
            "launching, and not kernels: the device waits for the host, which takes 9.90 µs -> 12.9",
        ),
        ((10, 13), (5, 12.9), "the device waits for the host now, and did not before: launching takes 5.00 µs -> 12.9"),
        ((100, 130), (9, 9), "the device's work, and not launching it: that takes the host 9.00 µs -> 9.00 µs (0.0%)"),
        ((100, 130), (9, 40), "the device's work, and not launching it: that takes the host 9.00 µs -> 40.0 µs"),
        ((10, 13), (9.5, 10.5), "the device's work, and not launching it"),
        ((10, 11), (9.9, 9.95), "kernels or gaps between them, though the device waits for the host"),
    ],
)
def test_which_of_them_moved(call: tuple[float, float], launching: tuple[float, float], said: str) -> None:
    assert launching_text(change(*call), change(*launching)).startswith(said)


def test_a_slower_case_says_what_moved_and_a_row_whose_time_is_the_hosts_says_so(snapshot: SnapshotAssertion) -> None:
    before = [replicate(10 * US * share, launch_ns=9.8 * US) for share in (0.999, 1.0, 1.001)]
    now = [replicate(13 * US * share, launch_ns=12.7 * US) for share in (0.999, 1.0, 1.001)]
    made = record(now[0], environment=cuda_environment(), fresh=now)
    judgement = judge(made, entry(before, environment=cuda_environment()), Policy(floor_ns=100.0))
    assert judgement.verdict is Verdict.REGRESSED
    one = result(outcome=made, judgement=judgement)
    text = " ".join(explain(one, None).split())
    assert text == snapshot
    shown = " ".join(" ".join(line.text for line in table([one], 200)).split())
    assert shown == snapshot
    assert launching_fact(100.0 * US, 12.7 * US) == []
    assert launching_fact(10.0, None) == []
