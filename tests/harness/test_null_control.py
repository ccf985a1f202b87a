"""Slow cases that come together, on machines whose null control is off: found, and never where there is nothing."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import correlation, fmean, variance

import pytest
from syrupy.assertion import SnapshotAssertion

from perflab.judging.null_control import NO_CONTROL, Control, control_of, widened
from perflab.judging.paired import PairedCase, PairedPolicy, latency_findings
from perflab.judging.statistics import estimate, ratio_of
from perflab.results.records import Verdict
from perflab.turns.comparison import BASE, HEAD, TWIN
from perflab.turns.rounds import CaseRound
from tests.harness.machine import Machine, compared, steady

POLICY = PairedPolicy()
MACHINES: dict[str, Callable[[random.Random], Machine]] = {
    "quiet": lambda draw: Machine(draw),
    "disturbed stretches": lambda draw: Machine(draw, ruined=0.1),
    "drifting": lambda draw: Machine(draw, drift=0.2),
    "control off by +1 %": lambda draw: Machine(draw, bias=0.01),
    "control off by -1 %": lambda draw: Machine(draw, bias=-0.01),
}


def shares(machine: str, slowdown: float, cases: int, runs: int) -> tuple[float, list[float]]:
    """The share of cases that were called slower, and the seconds of each run."""
    draw = random.Random(20261122)
    flagged, seconds = 0, []
    for _ in range(runs):
        here = MACHINES[machine](draw)
        found = compared(here, {f"case {number}": slowdown for number in range(cases)})
        flagged += sum(finding.verdict is Verdict.REGRESSED for finding in found.values())
        seconds.append(here.seconds)
    return flagged / (cases * runs), seconds


@pytest.mark.parametrize(("slowdown", "least"), [(0.05, 0.90), (0.10, 0.98)])
@pytest.mark.parametrize("machine", MACHINES)
def test_four_cases_that_are_all_slower_are_found_though_the_control_is_off(
    machine: str, slowdown: float, least: float
) -> None:
    found, seconds = shares(machine, slowdown, cases=4, runs=25)
    assert found >= least
    if machine == "quiet":  # elsewhere more pairs are needed
        assert sorted(seconds)[len(seconds) // 2] <= 120.0


@pytest.mark.parametrize("cases", [4, 30])
@pytest.mark.parametrize("machine", MACHINES)
def test_unchanged_code_is_flagged_in_at_most_one_of_two_hundred_comparisons(machine: str, cases: int) -> None:
    flagged, _ = shares(machine, 0.0, cases, runs=600 // cases)
    assert flagged <= 0.005


def test_one_slow_case_of_thirty_is_found_in_less_than_three_times_the_quiet_run() -> None:
    draw = random.Random(20261122)
    _, quiet_s = shares("quiet", 0.0, cases=30, runs=10)
    for _ in range(20):
        machine = Machine(draw)
        found = compared(machine, {f"case {number}": 0.05 * (number == 17) for number in range(30)})
        assert [case for case, finding in found.items() if finding.verdict is Verdict.REGRESSED] == ["case 17"]
        assert machine.seconds <= 3.0 * min(quiet_s)


def test_a_control_that_is_as_large_as_what_was_seen_leaves_it_open_and_is_named(snapshot: SnapshotAssertion) -> None:
    machine = Machine(random.Random(20261122), bias=0.06)
    found = compared(machine, {f"case {number}": 0.0 for number in range(4)})
    assert {finding.verdict for finding in found.values()} == {Verdict.INCONCLUSIVE}
    told = [reason for finding in found.values() for reason in finding.reasons]
    assert told == snapshot


def test_a_slowdown_larger_than_a_large_control_still_fails() -> None:
    slow = PairedCase(screen=[0.2] * 3, confirm=[0.2] * 5)
    found = latency_findings({"case": slow}, {"case": steady(0.06, 0.061, 0.06, 0.059)}, POLICY)["case"]
    assert found.verdict is Verdict.REGRESSED
    assert found.change.low is not None
    assert found.change.low < ratio_of(0.2 - 0.06), "the interval leaves room for the control"


def test_a_case_s_own_control_counts_and_another_s_only_where_it_has_none() -> None:
    controls = {"calm": [0.0, 0.001, -0.001], "biased": [0.05, 0.051, 0.05]}
    spreads = {"calm": 0.005, "biased": 0.005, "a third": 0.005}
    assert control_of(controls, "calm", spreads).allowance == 0.0
    assert control_of(controls, "biased", spreads).allowance == pytest.approx(0.05, abs=0.001)
    assert 0.0 < control_of(controls, "a third", spreads).allowance < 0.05
    assert control_of({"biased": [0.05, 0.05]}, "biased", spreads) == NO_CONTROL, "two may both be disturbed"


def test_the_control_of_a_noisier_case_counts_in_units_of_what_each_case_differs_by() -> None:
    controls = {"shaky": [-0.05, -0.06, -0.055, -0.045, -0.05, -0.05]}
    spreads = {"shaky": 0.04, "calm": 0.004, "alike": 0.04, "shakier": 0.2}
    assert control_of(controls, "alike", spreads).size == pytest.approx(-0.051, abs=0.002)
    assert control_of(controls, "calm", spreads).size == pytest.approx(-0.0051, abs=0.0002)
    assert control_of(controls, "shakier", spreads).size == control_of(controls, "alike", spreads).size


def test_a_control_within_its_own_error_widens_nothing_and_one_far_outside_counts_in_full() -> None:
    found = estimate([0.04, 0.045, 0.05, 0.05, 0.055, 0.06])
    assert widened(found, Control(0.003, 0.004)) == found
    wide = widened(found, Control(-0.02, 0.002))
    assert wide.allowance == pytest.approx(0.02, rel=0.02)
    assert (wide.value, wide.error > found.error) == (found.value, True)
    assert wide.high - wide.low > found.high - found.low + 2 * 0.019


def log_of(found: CaseRound, head: str, *bases: str) -> float:
    """The log-ratio of the fastest calls."""
    reading = found.reading(head, *bases)
    return reading.log


def test_both_processes_of_the_base_count_together_and_a_control_that_is_off_is_not_seen_twice() -> None:
    draw = random.Random(20261123)
    apart, together, controls = [], [], []
    for _ in range(400):
        found = Machine(draw, processes=0.02, readings=0.0, drift=0.0).take(0.05, [HEAD, BASE, TWIN])
        apart.append(log_of(found, HEAD, BASE))
        together.append(log_of(found, HEAD, BASE, TWIN))
        controls.append(log_of(found, TWIN, BASE))
    assert fmean(together) == pytest.approx(math.log(1.05), abs=0.004)
    # Of independent processes, head over base varies by two of them, and over two bases by one and a half.
    assert variance(together) / variance(apart) == pytest.approx(0.75, abs=0.08)
    assert correlation(apart, controls) > 0.4
    assert abs(correlation(together, controls)) < 0.12


def test_a_base_whose_twin_has_no_turns_counts_alone() -> None:
    found = Machine(random.Random(1)).take(0.05, [HEAD, BASE, TWIN])
    alone = log_of(found, HEAD, BASE)
    found.turns[TWIN].turns.clear()
    assert log_of(found, HEAD, BASE, TWIN) == alone


def test_pairs_that_are_disturbed_are_taken_again_and_end_all_the_same() -> None:
    draw = random.Random(20261122)
    estimates = []
    for _ in range(60):
        found = compared(Machine(draw, ruined=0.1), {f"case {number}": 0.05 for number in range(4)})
        estimates += [finding.change.ratio for finding in found.values()]
    assert min(estimates) > 1.02, "of code that is 5 % slower, none is called faster"
    assert max(estimates) < 1.10
    machine = Machine(random.Random(20261122), ruined=1.0)
    found = compared(machine, {"one": 0.0, "two": 0.05})
    assert found["one"].verdict in (Verdict.OK, Verdict.INCONCLUSIVE)
    assert len(machine.rounds) <= 32 + 3


# --- what a round can come to ------------------------------------------------------------------------------------


def test_a_slow_case_whose_whole_screen_was_ruined_is_judged_by_its_later_pairs() -> None:
    draw = random.Random(20261123)
    for _ in range(20):
        found = compared(Machine(draw, ruined_rounds=3), {"one": 0.3, "two": 0.3})
        assert [finding.verdict for finding in found.values()] == [Verdict.REGRESSED] * 2


def test_where_memory_does_not_hold_the_control_suspects_are_confirmed_without_it() -> None:
    machine = Machine(random.Random(20261123), holds=2)
    found = compared(machine, {"one": 0.3, "two": 0.3, "three": 0.0})
    assert {case: finding.verdict for case, finding in found.items()} == {
        "one": Verdict.REGRESSED,
        "two": Verdict.REGRESSED,
        "three": Verdict.OK,
    }
    assert machine.lost == {}


def test_processes_that_do_not_start_are_started_again_once() -> None:
    machine = Machine(random.Random(20261123), unstarted=frozenset({1, 4, 6}))
    found = compared(machine, {"one": 0.3, "two": 0.0})
    assert (found["one"].verdict, found["two"].verdict) == (Verdict.REGRESSED, Verdict.OK)
    assert machine.lost == {}
    machine = Machine(random.Random(20261123), unstarted=frozenset({4, 5}))
    found = compared(machine, {"one": 0.3, "two": 0.0})
    assert (found["one"].verdict, found["two"].verdict) == (Verdict.INCONCLUSIVE, Verdict.OK)
    assert "its process was killed" in machine.lost["one"].what


def test_a_budget_for_one_suspect_is_enough_though_none_is_left_for_another_screen() -> None:
    machine = Machine(random.Random(20261123))
    slowdowns = {f"case {number}": 0.2 * (number == 7) for number in range(40)}
    screen_s = 40 * 2.2 + 4.0
    found = compared(machine, slowdowns, total_s=2 * screen_s + 80.0)
    assert found["case 7"].verdict is Verdict.REGRESSED
    assert machine.seconds <= 2 * screen_s + 80.0


def test_a_slowdown_below_the_floor_takes_no_more_pairs_than_none() -> None:
    # Calls take 10 ms here.
    for slowdown in (0.10, -0.10):
        machine = Machine(random.Random(20261123))
        assert compared(machine, {"one": slowdown}, floor_ns=5e6)["one"].verdict is Verdict.OK
        assert len(machine.rounds) == 2
    slow = compared(Machine(random.Random(20261123)), {"one": 1.0}, floor_ns=5e6)["one"]
    assert slow.verdict is Verdict.REGRESSED
    assert slow.change.limit == pytest.approx(1.02)
