"""Two callables in turns: ``perflab.compare`` on a virtual clock, and what it says when the machine is disturbed."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

import perflab
from perflab.base.errors import DeviceError, UsageError
from perflab.judging.paired import LOOKS
from perflab.judging.statistics import LEAST_PAIRS
from perflab.measure import stopping as sampling
from perflab.measure.calls.workload import Workload
from perflab.measure.clocks import clock
from perflab.measurement import callables
from perflab.measurement.callables import Comparison, Limits, in_turns
from perflab.results.measurement import CallTimes
from perflab.results.records import Verdict
from tests.harness.virtual_clock import VirtualClock

MS = 1_000_000
Slower = Callable[[int], float]
"""How many times as long the n-th call takes."""


class Machine:
    """Calls move its clock by what they take, more where it is disturbed."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.calls: list[str] = []
        self.slower: Slower = lambda _call: 1.0

    def call(self, name: str, taking_ns: float) -> Callable[[], None]:
        def run() -> None:
            self.calls.append(name)
            self._clock.advance(round(taking_ns * self.slower(len(self.calls))))

        return run

    def compare(self, base_ns: float, candidate_ns: float, **options: Any) -> Comparison:
        base, candidate = self.call("base", base_ns), self.call("candidate", candidate_ns)
        return perflab.compare(base, candidate, device="cpu", **options)

    def within(self, limits: Limits, base_ns: float, candidate_ns: float) -> Comparison:
        """The same with a known order of turns, for what depends on which turn is disturbed."""
        return in_known_turns(self.call("base", base_ns), self.call("candidate", candidate_ns), limits, seed=0)


def in_known_turns(base: Callable[[], None], candidate: Callable[[], None], limits: Limits, seed: int) -> Comparison:
    """Compare two callables whose turns come in an order that depends on the seed alone."""
    sides = (Workload(function, (), {}) for function in (base, candidate))
    return in_turns(*sides, torch.device("cpu"), limits, draw=random.Random(seed))


@pytest.fixture
def machine(virtual_clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine on which every comparison draws the same order of turns: an unlucky one is rare, and no failure."""
    monkeypatch.setattr(callables, "random", SimpleNamespace(Random=lambda: random.Random(0)))
    return Machine(virtual_clock)


def test_a_callable_beside_itself_is_ok_after_the_fewest_pairs(machine: Machine) -> None:
    found = machine.compare(MS, MS)
    assert (found.verdict, found.ratio, found.pairs) == (Verdict.OK, 1.0, LOOKS[0])
    assert found.low_ratio < 1.0 < found.high_ratio
    assert (found.base_ns, found.candidate_ns) == (MS, MS)


def test_a_slower_candidate_regressed_and_says_by_how_much(machine: Machine) -> None:
    found = machine.compare(MS, 1.1 * MS)
    assert found.verdict == "regressed"
    assert found.ratio == pytest.approx(1.1)
    assert found.low_ratio < 1.1 < found.high_ratio
    assert str(found) == "regressed: candidate 1.10 ms, base 1.00 ms, +10.0% (+9.5%…+10.5%), 7 pairs"


@pytest.mark.parametrize("every", [2, 3, 4, 7, 10])
def test_a_cost_that_is_not_in_every_call_regressed_by_its_share_of_the_mean(machine: Machine, every: int) -> None:
    base, calls = machine.call("base", MS), [0]

    def candidate() -> None:
        calls[0] += 1
        machine.call("candidate", MS if calls[0] % every else 3 * MS)()

    found = perflab.compare(base, candidate, device="cpu")
    assert found.verdict is Verdict.REGRESSED
    assert found.judged is not CallTimes.FASTEST
    assert found.ratio == pytest.approx(1.0 + 2.0 / every, rel=0.04)
    assert found.candidate_ns / found.base_ns == pytest.approx(found.ratio, rel=0.04)
    assert str(found).endswith(", of the mean of all calls")
    back = perflab.compare(candidate, base, device="cpu")
    assert every > 4 or (back.verdict is Verdict.IMPROVED and back.judged is not CallTimes.FASTEST)


@pytest.mark.parametrize("seed", range(5))
def test_a_cost_of_a_call_so_long_that_a_turn_has_one_is_found_whatever_its_parity(machine: Machine, seed: int) -> None:
    calls = [0]

    def candidate() -> None:
        calls[0] += 1
        machine.call("candidate", 10 * MS if calls[0] % 2 else 20 * MS)()

    found = in_known_turns(machine.call("base", 10 * MS), candidate, Limits(budget_ns=20e9), seed)
    assert found.verdict is Verdict.REGRESSED
    assert found.judged is not CallTimes.FASTEST
    assert found.ratio == pytest.approx(1.5, rel=0.1)


@pytest.mark.parametrize(
    ("others", "verdict"), [("processes", "ok"), ("threads", "regressed"), ("devices", "regressed")]
)
def test_what_a_call_waits_for_a_core_counts_if_its_own_process_may_have_had_it(
    machine: Machine, virtual_clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, others: str, verdict: str
) -> None:
    own, waits = VirtualClock(), [0]
    monkeypatch.setattr(clock, "read_processor_ns", own.read_ns)
    at_work = own if others != "threads" else virtual_clock
    monkeypatch.setattr(clock, "read_all_processors_ns", at_work.read_ns)
    monkeypatch.setattr(clock, "read_blocks", lambda: waits[0])

    def candidate() -> None:
        machine.call("candidate", MS)()
        own.advance(MS)
        virtual_clock.advance(5 * MS)
        waits[0] += others == "devices"

    def base() -> None:
        machine.call("base", MS)()
        own.advance(MS)

    found = perflab.compare(base, candidate, device="cpu")
    assert (found.verdict, round(found.ratio)) == (verdict, 1 if verdict == "ok" else 6)


@pytest.mark.parametrize(("threshold", "verdict"), [(0.05, "ok"), (0.01, "regressed")])
def test_the_threshold_says_what_counts(machine: Machine, threshold: float, verdict: str) -> None:
    assert machine.compare(MS, 1.03 * MS, threshold=threshold).verdict == verdict


def test_a_slowdown_below_the_floor_is_none(machine: Machine) -> None:
    found = machine.within(Limits(floor_ns=2_000_000.0), 10 * MS, 12 * MS)
    assert (found.verdict, found.reasons) == (Verdict.OK, ("slower by less than --perf-floor",))
    assert found.ratio == pytest.approx(1.2)


def test_bursts_that_fall_into_some_turns_do_not_move_the_answer(machine: Machine) -> None:
    machine.slower = lambda call: 7.0 if call % 200 > 180 else 1.0
    found = machine.within(Limits(), MS, 0.8 * MS)
    assert found.verdict is Verdict.IMPROVED
    assert found.ratio == pytest.approx(0.8, rel=0.02)
    assert found.candidate_ns == 0.8 * MS


def test_a_machine_that_becomes_slower_all_the_time_is_not_the_candidate(machine: Machine) -> None:
    machine.slower = lambda call: 1.0 + call / 500
    found = machine.compare(MS, MS)
    assert found.verdict is Verdict.OK
    assert found.ratio == pytest.approx(1.0, abs=0.005)


def test_readings_that_scatter_too_much_are_inconclusive_and_say_why(machine: Machine) -> None:
    draw = random.Random(0)
    machine.slower = lambda _call: draw.uniform(1.0, 3.0)
    found = machine.within(Limits(budget_ns=3e9), 100 * MS, 104 * MS)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "; looks slower, but its pairs of turns disagree" in str(found)


def test_long_calls_end_after_the_fewest_pairs(machine: Machine) -> None:
    found = machine.compare(1000 * MS, 1300 * MS, budget_s=0.1)
    assert found.pairs == LEAST_PAIRS
    assert found.ratio == pytest.approx(1.3)
    assert max(machine.calls.count(side) for side in ("base", "candidate")) <= Comparison.LEAST_CALLS


def test_turns_end_when_the_budget_is_spent(machine: Machine, virtual_clock: VirtualClock) -> None:
    draw = random.Random(0)
    machine.slower = lambda _call: draw.uniform(1.0, 2.0)
    machine.within(Limits(budget_ns=1e9), 10 * MS, 10 * MS)
    assert virtual_clock.now_ns < 1.5e9


def test_short_calls_are_repeated_and_both_sides_as_often(machine: Machine) -> None:
    assert machine.compare(100_000, 200_000, budget_s=1.0).ratio == pytest.approx(2.0)
    runs = [len(list(run)) for _, run in groupby(machine.calls)]
    turns = {30, 40}
    two_turns = {one + other for one in turns for other in turns}
    assert set(runs[3:-1]) <= turns | two_turns, "two samples of ten calls, one or two before them; two in a middle"


def test_both_are_called_with_the_arguments() -> None:
    seen: list[tuple[str, int, int]] = []

    def called(name: str) -> Callable[..., None]:
        def run(x: int, *, y: int) -> None:
            seen.append((name, x, y))
            sum(range(20_000))

        return run

    perflab.compare(called("base"), called("candidate"), args=(1,), kwargs={"y": 2}, budget_s=0.05, device="cpu")
    assert set(seen) == {("base", 1, 2), ("candidate", 1, 2)}


def test_a_clock_that_does_not_move_is_refused(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MOST_REPETITIONS", 1000)
    with pytest.raises(UsageError, match=r"the clock did not move while (base|candidate) was called"):
        machine.compare(0, 0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"base": 3}, r"perflab.compare\(base=...\) got 'int', which cannot be called"),
        ({"candidate": torch.ones(1)}, r"perflab.compare\(candidate=...\) got 'Tensor'"),
        ({"budget_s": 0}, r"perflab.compare\(budget_s=0\)\n.*give a positive number"),
        ({"budget_s": float("inf")}, r"perflab.compare\(budget_s=inf\)\n.*give a positive number, and a finite one"),
        ({"threshold": float("inf")}, r"perflab.compare\(threshold=inf\)"),
        ({"threshold": float("nan")}, r"perflab.compare\(threshold=nan\)"),
    ],
)
def test_what_cannot_be_compared_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        perflab.compare(**{"base": int, "candidate": int, **given})


def test_a_device_that_is_none_is_refused_and_an_error_of_a_callable_is_the_callers() -> None:
    with pytest.raises(DeviceError, match="'tpu' is not a device"):
        perflab.compare(int, int, device="tpu")
    with pytest.raises(ZeroDivisionError):
        perflab.compare(int, lambda: 1 / 0, device="cpu")


def test_a_comparison_is_frozen_plain_data(machine: Machine) -> None:
    found = machine.compare(MS, MS)
    assert isinstance(found, perflab.Comparison)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Comparison) == found
    with pytest.raises(AttributeError):
        found.ratio = 2.0  # type: ignore[misc]
