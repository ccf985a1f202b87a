"""What the host takes to launch a call on a GPU, told apart from what the GPU does: on a device that is played."""

from __future__ import annotations

import pytest
import torch

from perflab.measure.calls.workload import Workload
from perflab.measure.clocks.device_clock import launch_ns
from perflab.measured.report.facts import launching_fact, launching_text
from perflab.measured.report.failure import explain
from perflab.measured.report.table import table
from perflab.results.records import Change, Policy, Verdict
from tests.harness.fake_cuda import FakeCuda
from tests.harness.make import cuda_environment, entry, judge, record, replicate, result

CUDA = torch.device("cuda", 0)
US = 1_000


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


def test_a_slower_case_says_what_moved_and_a_row_whose_time_is_the_hosts_says_so() -> None:
    before = [replicate(10 * US * share, launch_ns=9.8 * US) for share in (0.999, 1.0, 1.001)]
    now = [replicate(13 * US * share, launch_ns=12.7 * US) for share in (0.999, 1.0, 1.001)]
    made = record(now[0], environment=cuda_environment(), fresh=now)
    judgement = judge(made, entry(before, environment=cuda_environment()), Policy(floor_ns=100.0))
    assert judgement.verdict is Verdict.REGRESSED
    one = result(outcome=made, judgement=judgement)
    text = " ".join(explain(one, None).split())
    assert "what: launching, and not kernels: the device waits for the host, which takes 9.80 µs -> 12.7 µs" in text
    shown = " ".join(" ".join(line.text for line in table([one], 200)).split())
    assert "launching takes the host 12.7 µs a call, and the device waits for it" in shown
    assert launching_fact(100.0 * US, 12.7 * US) == []
    assert launching_fact(10.0, None) == []
