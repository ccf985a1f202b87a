"""The judge, verdict by verdict and doubt by doubt: a record and a baseline in, what a user is told out."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perflab.base.data import changed
from perflab.devices.kinds import block_bytes_on
from perflab.measured.exact import split
from perflab.measured.report.failure import explain
from perflab.results.measured import Anchor, Baseline, Entry, MeasuredCase
from perflab.results.measurement import OutOfMemory, Record, Replicate
from perflab.results.peak import PeakPart
from perflab.results.records import Judgement, Policy, Verdict
from tests.harness.make import (
    MS,
    cuda_environment,
    entry,
    environment,
    judge,
    memory,
    quiet,
    record,
    replicate,
    result,
    successor,
)

POLICY = Policy()
SLOW = 130.0 * MS
"""30 % above the baselines of these tests."""
WILD = st.builds(lambda median_ns, noise: replicate(median_ns, noise=noise), st.floats(1.0, 1e15), st.floats(0.0, 1e9))
"""Anything that a clock can say, and any noise."""


def judge_again(fresh: list[Replicate], before: list[Replicate] | None = None, policy: Policy = POLICY) -> Judgement:
    """Judge a case whose first reading was slow, and that was measured again in fresh processes."""
    return judge(record(replicate(SLOW), fresh=fresh), entry(before), policy)


# --- without a number to compare with ----------------------------------------------------------------------------


def test_a_case_without_a_baseline_is_new() -> None:
    judgement = judge(record(), None, POLICY)
    assert judgement.verdict is Verdict.NEW
    assert judgement.reasons == ["no baseline yet"]
    assert not judgement.suspect


def test_a_baseline_from_another_environment_is_incomparable_and_everything_that_differs_is_named() -> None:
    elsewhere = entry(environment=environment(torch="2.12.0", threads=8))
    judgement = judge(record(replicate(SLOW)), elsewhere, POLICY)
    assert judgement.verdict is Verdict.INCOMPARABLE
    assert sorted(judgement.reasons) == [
        "baseline from another environment: threads 8 -> 2",
        "baseline from another environment: torch 2.12.0 -> 2.13.0",
    ]
    assert judgement.latency is None
    assert not judgement.suspect


# --- latency -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.96, 1.0, 1.049])
def test_a_reading_within_the_threshold_is_ok(share: float) -> None:
    judgement = judge(record(replicate(share * 100 * MS)), entry(), POLICY)
    assert judgement.verdict is Verdict.OK
    assert judgement.reasons == []
    assert judgement.latency.before == 100 * MS
    assert judgement.latency.ratio == pytest.approx(share)
    assert judgement.latency.limit == pytest.approx(1.05)


def test_a_much_faster_reading_is_suspect_too_and_improved_once_fresh_processes_confirm_it() -> None:
    first = judge(record(replicate(80 * MS)), entry(), POLICY)
    assert (first.verdict, first.suspect, first.unsettled) == (Verdict.IMPROVED, True, [])
    again = judge(record(replicate(80 * MS), fresh=quiet(80 * MS)), entry(), POLICY)
    assert (again.verdict, again.suspect, again.reasons) == (Verdict.IMPROVED, False, [])
    assert again.unsettled == ["baseline"], "the baseline's commit may know better"


def test_an_improvement_that_fresh_processes_do_not_confirm_is_none() -> None:
    judgement = judge(record(replicate(80 * MS), fresh=quiet(99 * MS)), entry(), POLICY)
    assert (judgement.verdict, judgement.suspect) == (Verdict.OK, False)


# --- doubts of an improvement: what may have made the baseline slow ----------------------------------------------


def faster(fresh: list[Replicate], before: list[Replicate]) -> Judgement:
    """Judge a case whose first reading was fast, and that was measured again in fresh processes."""
    return judge(record(fresh[0], fresh=fresh), entry(before), POLICY)


def test_a_baseline_saved_beside_busy_cores_makes_no_improvement_of_code_that_is_a_third_slower() -> None:
    # Seen: fastest calls 109 µs and medians of 186 to 205 in the baseline; now 148 and 178.
    before = [replicate(median * 1e3, fastest_ns=109e3) for median in (186, 195, 205)]
    now = [replicate(median * 1e3, fastest_ns=148e3) for median in (170, 178, 172)]
    for judgement in (judge(record(now[0]), entry(before), POLICY), faster(now, before)):
        assert judgement.verdict is Verdict.INCONCLUSIVE
        assert not judgement.suspect
        assert judgement.unsettled == ["baseline"]
        assert any("but the fastest ones +35.8%" in reason for reason in judgement.reasons)


def test_a_baseline_of_one_process_does_not_know_its_noise_and_shows_no_change_either_way() -> None:
    single = [replicate(100 * MS)]
    for judgement in (judge(record(replicate(80 * MS)), entry(single), POLICY), judge_again(quiet(SLOW), single)):
        assert (judgement.verdict, judgement.suspect) == (Verdict.INCONCLUSIVE, False)
        assert judgement.reasons == [
            "the baseline is a single process, so its noise is unknown; save it again (--perf-update)"
        ]


def test_one_fast_process_of_the_baseline_and_one_slow_fresh_one_leave_an_improvement_open() -> None:
    before = [replicate(79 * MS), *quiet(100 * MS)[:2]]
    judgement = faster(quiet(80 * MS), before)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert any("was no faster than the fastest of the baseline's (79.0 ms)" in reason for reason in judgement.reasons)


def test_fresh_processes_that_differ_by_as_much_as_they_are_faster_leave_an_improvement_open() -> None:
    judgement = faster([replicate(median * MS) for median in (50, 51, 52, 68, 78, 79, 80)], quiet(100 * MS))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.reasons[-1].startswith("-32.0%, but fresh processes differ by ")


def test_a_first_reading_on_the_other_side_of_the_baseline_leaves_either_verdict_open() -> None:
    slower = judge(record(replicate(80 * MS), fresh=quiet(SLOW)), entry(), POLICY)
    faster = judge(record(replicate(SLOW), fresh=quiet(80 * MS)), entry(), POLICY)
    for judgement, first in ((slower, "-20.0%"), (faster, "+30.0%")):
        assert judgement.verdict is Verdict.INCONCLUSIVE
        (reason,) = judgement.reasons
        assert f"but the first reading {first}: this case differs that much" in reason


# --- doubts of an ok: what may hide a slowdown -------------------------------------------------------------------


def test_fastest_calls_past_the_threshold_make_an_ok_by_a_busy_baseline_s_median_inconclusive() -> None:
    before = quiet(103 * MS, fastest_ns=90 * MS)
    judgement = judge(record(replicate(103 * MS, fastest_ns=101 * MS)), entry(before), POLICY)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.reasons == [
        "typical calls took 0.0%, but the fastest ones +12.2%: a baseline from a busy machine hides a slowdown"
    ]


def test_a_baseline_that_was_disturbed_lets_nothing_pass_as_ok() -> None:
    before = quiet(100 * MS, neighbours_cores=1.6)
    assert judge(record(replicate(neighbours_cores=0.0)), entry(before), POLICY).reasons == [
        "other processes used 1.6 cores while the baseline was taken"
    ]
    assert judge(record(replicate(neighbours_cores=1.6)), entry(before), POLICY).verdict is Verdict.OK


def test_a_machine_that_became_faster_hides_a_slowdown() -> None:
    before = quiet(100 * MS, calibration_ns={"interpreter": 1200.0, "memory": 120.0})
    both = judge(record(replicate(calibration_ns={"interpreter": 1000.0, "memory": 100.0})), entry(before), POLICY)
    assert both.verdict is Verdict.INCONCLUSIVE
    assert both.reasons[0] == (
        "0.0%, but the calibration workload (interpreter) took -16.7%: a faster machine hides a slowdown"
    )


def test_one_piece_of_fixed_work_that_became_faster_hides_nothing() -> None:
    before = quiet(100 * MS, calibration_ns={"interpreter": 1200.0, "memory": 100.0, "threads": 300.0}, cores_busy=1.9)
    now = replicate(calibration_ns={"interpreter": 1000.0, "memory": 100.0, "threads": 300.0}, cores_busy=1.9)
    assert judge(record(now), entry(before), POLICY).verdict is Verdict.OK


def test_a_baseline_that_could_not_show_twice_the_threshold_lets_nothing_pass_as_ok() -> None:
    before = [replicate(median * MS) for median in (90, 100, 110)]
    judgement = judge(record(replicate(100 * MS)), entry(before), POLICY)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.reasons[0].endswith("a slowdown of 10% would not be seen")
    assert judge(record(replicate(60 * MS)), entry(before), POLICY).verdict is not Verdict.REGRESSED


def test_what_is_too_small_to_count_is_not_doubted() -> None:
    before = [replicate(median * 1_000.0) for median in (0.9, 1.0, 1.1)]
    assert judge(record(replicate(1_000.0)), entry(before), POLICY).verdict is Verdict.OK


def test_a_suspect_that_fresh_processes_confirm_has_regressed() -> None:
    judgement = judge_again(quiet(SLOW))
    assert judgement.verdict is Verdict.REGRESSED
    assert not judgement.suspect
    assert judgement.reasons == []
    assert judgement.latency.now == SLOW
    assert judgement.latency.low is not None
    assert judgement.latency.high is not None
    assert 1.05 < judgement.latency.low < 1.30 < judgement.latency.high


def test_a_suspect_that_fresh_processes_do_not_confirm_is_ok_and_says_so() -> None:
    judgement = judge_again(quiet(100.5 * MS))
    assert judgement.verdict is Verdict.OK
    assert judgement.reasons == ["a first reading of +30.0% was not confirmed in fresh processes"]
    assert not judgement.suspect


def test_the_first_reading_has_no_say_once_there_are_fresh_ones() -> None:
    moderate = judge(record(replicate(110 * MS), fresh=quiet(SLOW)), entry(), POLICY)
    assert moderate == judge(record(replicate(1000 * MS), fresh=quiet(SLOW)), entry(), POLICY)


def test_a_difference_below_the_floor_is_ok_however_large_its_share() -> None:
    before = quiet(1_000.0)
    judgement = judge(record(replicate(2_900.0), fresh=quiet(2_900.0)), entry(before), Policy(floor_ns=2_000.0))
    assert judgement.verdict is Verdict.OK
    judgement = judge(record(replicate(3_100.0), fresh=quiet(3_100.0)), entry(before), Policy(floor_ns=2_000.0))
    assert judgement.verdict is Verdict.REGRESSED
    assert judge(record(replicate(500.0)), entry(before), POLICY).verdict is Verdict.OK, "faster by less than the floor"


def test_a_slowdown_within_the_noise_of_the_baselines_replicates_is_inconclusive_and_names_the_noise() -> None:
    noisy = [replicate(median) for median in (90 * MS, 100 * MS, 110 * MS)]
    judgement = judge(record(replicate(115 * MS)), entry(noisy), POLICY)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert not judgement.suspect
    assert judgement.latency.limit is not None
    assert judgement.latency.limit > 1.15
    (reason,) = judgement.reasons
    within = "but within the differences between this baseline's replicates ("
    assert reason.startswith(f"+15.0% is past the threshold, {within}")


def test_noise_within_the_baselines_processes_widens_the_limit_too() -> None:
    shaky = [replicate(100 * MS, noise=0.2) for _ in range(3)]
    assert judge(record(replicate(115 * MS)), entry(shaky), POLICY).verdict is Verdict.INCONCLUSIVE


def test_replicates_that_agree_perfectly_do_not_make_a_percent_past_the_threshold_a_regression() -> None:
    before = [replicate(100 * MS, noise=0.0) for _ in range(3)]
    fresh = [replicate(105.5 * MS, noise=0.0) for _ in range(3)]
    assert judge(record(replicate(105.5 * MS), fresh=fresh), entry(before), POLICY).verdict is Verdict.INCONCLUSIVE


def test_the_threshold_is_the_policys() -> None:
    assert judge_again(quiet(SLOW), policy=Policy(threshold=0.5)).verdict is Verdict.OK
    tight = judge(record(replicate(104 * MS), fresh=quiet(104 * MS)), entry(), Policy(threshold=0.01))
    assert tight.verdict is Verdict.REGRESSED


# --- doubts: a slowdown that fresh processes show, and that may still not be the code's --------------------------


def test_an_interval_that_reaches_below_the_threshold_is_inconclusive_and_shown() -> None:
    judgement = judge_again([replicate(108 * MS), replicate(118 * MS), replicate(128 * MS)])
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert not judgement.suspect
    assert judgement.latency.low is not None
    assert judgement.latency.low < 1.05
    (reason,) = judgement.reasons
    assert reason.startswith("+18.0%, but the 95 % interval (")
    assert reason.endswith("reaches below the threshold of 5%")


def test_readings_too_wild_for_any_interval_are_inconclusive_and_say_so() -> None:
    # Seen: 16.6 µs in the one process of a baseline whose samples differed by a factor of 240, then 7.99 ms.
    before = [replicate(0.0166 * MS, noise=240.0)]
    judgement = judge_again([replicate(7.99 * MS, noise=1.2)], before)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.latency.high == math.inf
    assert "x481, but these readings are too noisy for a 95 % interval" in judgement.reasons


def test_a_reading_that_is_faster_beyond_any_interval_has_not_improved_and_replaces_no_anchor() -> None:
    before, now = [replicate(7.99 * MS, noise=240.0)], [replicate(0.0166 * MS, noise=1.2)]
    judgement = judge(record(now[0]), entry(before), POLICY)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.reasons == ["-99.8%, but these readings are too noisy for a 95 % interval"]
    saved = successor(entry(before), entry(now), POLICY, None)
    assert saved.times.accepted == []
    assert saved.times.anchor is not None


def test_a_vague_interval_that_does_not_reach_to_no_change_at_all_is_known_and_shown() -> None:
    before = [replicate(1.0 * MS, noise=0.3)] * 3
    fresh = [replicate(reading * MS, noise=0.3) for reading in (300.0, 100.0, 900.0)]
    case = record(fresh[0], fresh=fresh)
    judgement = judge(case, entry(before), POLICY)
    assert judgement.verdict is Verdict.REGRESSED
    assert "unknown" not in explain(result(outcome=case, judgement=judgement), None)


@given(st.lists(WILD, min_size=1, max_size=4), st.lists(WILD, max_size=4), st.lists(WILD, max_size=3))
def test_no_reading_is_too_wild_to_be_judged(
    before: list[Replicate], fresh: list[Replicate], earlier: list[Replicate]
) -> None:
    anchor = Anchor(recorded="2025-11-01", replicates=earlier, steps=2) if earlier else None
    case, baseline = record(replicate(SLOW), fresh=fresh), entry(before, anchor=anchor)
    judgement = judge(case, baseline, POLICY)
    if judgement.latency is not None and judgement.latency.is_vague:
        assert judgement.verdict in (Verdict.OK, Verdict.INCONCLUSIVE) or judgement.suspect
    explain(result(outcome=case, judgement=judgement), None)
    successor(baseline, entry(fresh or before), POLICY, None)


def clocked(median_ms: float, interpreter: float, cores_busy: float = 1.0, **readings: float) -> list[Replicate]:
    """Replicates beside readings of the calibration workload, in nanoseconds."""
    return quiet(median_ms * MS, calibration_ns={"interpreter": interpreter, **readings}, cores_busy=cores_busy)


def workload(name: str, change: str) -> list[str]:
    return [f"the calibration workload ({name}) took {change} too"]


CALM, BUSY = {"neighbours_cores": 0.0}, {"neighbours_cores": 1.6}
BESIDE = "other processes used 1.6 cores while the baseline was taken"
EXCUSES: dict[str, tuple[list[Replicate], list[Replicate], list[str]]] = {
    "a machine that was slower": (clocked(80, 1000), clocked(100, 1250), workload("interpreter", "-20.0%")),
    "a machine that became slower": (clocked(130, 1280), clocked(100, 1000), workload("interpreter", "+28.0%")),
    "a machine that became slower by less": (clocked(130, 1100), clocked(100, 1000), []),
    "the workload's own noise": (clocked(106.5, 1019), clocked(100, 1000), []),
    "a workload of now alone": (clocked(130, 2000), quiet(100 * MS), []),
    "a workload of the baseline alone": (quiet(130 * MS), clocked(100, 1000), []),
    "threads that wait, of work in one": (clocked(130, 1e3, threads=6e4), clocked(100, 1e3, threads=3e2), []),
    "threads that wait, of work in several": (
        clocked(130, 1e3, threads=6e4, cores_busy=1.9),
        clocked(100, 1e3, threads=3e2, cores_busy=1.9),
        workload("threads", "x200"),
    ),
    "a baseline beside others": (quiet(80 * MS, **CALM), quiet(100 * MS, **BUSY), [BESIDE]),
    "both beside others": (quiet(80 * MS, **BUSY), quiet(100 * MS, **BUSY), []),
    "calls of which the fastest are as before": (
        quiet(SLOW, fastest_ns=101 * MS),
        quiet(100 * MS),
        ["typical calls took +30.0%, but the fastest ones +2.1%: that is typical of a busy machine"],
    ),
}


@pytest.mark.parametrize(("fresh", "before", "reasons"), EXCUSES.values(), ids=EXCUSES)
def test_what_else_may_have_moved_the_time_is_told_and_leaves_it_open_or_excuses_nothing(
    fresh: list[Replicate], before: list[Replicate], reasons: list[str]
) -> None:
    judgement = judge(record(replicate(fresh[0].median_ns), fresh=fresh), entry(before), POLICY)
    moved = Verdict.REGRESSED if fresh[0].median_ns > before[0].median_ns else Verdict.IMPROVED
    assert (judgement.verdict, judgement.reasons) == (Verdict.INCONCLUSIVE if reasons else moved, reasons)


def test_every_doubt_is_told() -> None:
    before = quiet(100 * MS, calibration_ns={"interpreter": 1000.0})
    fresh = [replicate(m * MS, fastest_ns=99 * MS, calibration_ns={"interpreter": 1300.0}) for m in (108, 118, 128)]
    assert len(judge_again(fresh, before).reasons) == 3


def test_one_disturbed_fresh_process_neither_makes_nor_hides_a_regression() -> None:
    disturbed = replicate(300 * MS)
    assert judge_again([*quiet(100 * MS)[:2], disturbed]).verdict is Verdict.OK
    assert judge_again([*quiet(SLOW)[:2], disturbed]).verdict is Verdict.REGRESSED


def test_a_baseline_one_process_of_which_was_slower_than_this_makes_nobody_sure() -> None:
    before = [*quiet(100 * MS)[:2], replicate(300 * MS)]
    judgement = judge_again(quiet(SLOW), before)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    (reason,) = judgement.reasons
    assert "was no slower than the slowest of the baseline's (300 ms)" in reason
    assert judge_again(quiet(310 * MS), before).verdict is Verdict.REGRESSED


# --- memory ------------------------------------------------------------------------------------------------------


def judge_memory(before_bytes: int, now_bytes: int, *, policy: Policy = POLICY, on_cuda: bool = False) -> Judgement:
    """Judge a case whose time is as good as unchanged, after fresh processes have measured it again."""
    machine = cuda_environment() if on_cuda else environment()
    again = quiet(100.4 * MS, peak_bytes=now_bytes)
    baseline = entry(quiet(100 * MS, peak_bytes=before_bytes), environment=machine)
    return judge(record(again[0], fresh=again, environment=machine), baseline, policy)


BYTES: dict[str, tuple[int, int, dict[str, Any], Verdict]] = {
    "the same": (2**20, 2**20, {}, Verdict.OK),
    "one more on a CPU": (2**20, 2**20 + 1, {}, Verdict.REGRESSED),
    "one less on a CPU": (2**20, 2**20 - 1, {}, Verdict.IMPROVED),
    "some where there were none": (0, 1, {}, Verdict.REGRESSED),
    "none before and now": (0, 0, {}, Verdict.OK),
    "more on CUDA by the allocator's rounding": (2**20, 2**20 + 512, {"on_cuda": True}, Verdict.OK),
    "more on CUDA than its rounding": (2**20, 2**20 + 513, {"on_cuda": True}, Verdict.REGRESSED),
    "less on CUDA by the allocator's rounding": (2**20, 2**20 - 512, {"on_cuda": True}, Verdict.OK),
    "less on CUDA than its rounding": (2**20, 2**20 - 513, {"on_cuda": True}, Verdict.IMPROVED),
    "a threshold used up": (1000, 1100, {"policy": Policy(memory_threshold=0.10)}, Verdict.OK),
    "past the threshold": (1000, 1101, {"policy": Policy(memory_threshold=0.10)}, Verdict.REGRESSED),
}


@pytest.mark.parametrize(("before", "now", "how", "verdict"), BYTES.values(), ids=BYTES)
def test_bytes_are_exact_but_for_slack_that_is_known(
    before: int, now: int, how: dict[str, Any], verdict: Verdict
) -> None:
    judgement = judge_memory(before, now, **how)
    assert (judgement.verdict, judgement.reasons) == (verdict, [])
    assert judgement.worse == ["memory"] * (verdict is Verdict.REGRESSED)
    assert (judgement.memory.ratio > 1.0) == (now > before)


def test_the_slack_on_cuda_is_what_its_allocator_rounds_sizes_to() -> None:
    assert block_bytes_on("cuda") == 512  # kMinBlockSize of CUDACachingAllocator


def test_more_memory_in_the_first_reading_is_suspect() -> None:
    judgement = judge(
        record(replicate(100 * MS, peak_bytes=2**20 + 1)), entry(quiet(100 * MS, peak_bytes=2**20)), POLICY
    )
    assert judgement.suspect


def test_growth_that_only_one_fresh_process_shows_is_no_regression() -> None:
    fresh = [replicate(peak_bytes=2**20), replicate(peak_bytes=2**21), replicate(peak_bytes=2**21)]
    judgement = judge(record(fresh[2], fresh=fresh), entry(quiet(100 * MS, peak_bytes=2**20)), POLICY)
    assert judgement.verdict is Verdict.OK


CALLS_THAT_DIFFER: dict[str, tuple[dict[str, int], Verdict, list[str]]] = {
    "holding more than was needed": ({"memory": 2**21, "operators": 3}, Verdict.REGRESSED, ["memory"]),
    "holding less": ({"memory": 2**10, "operators": 3}, Verdict.INCONCLUSIVE, []),
    "doing more in each": ({"memory": 2**10, "operators": 4}, Verdict.REGRESSED, ["counts"]),
    "doing more in some": ({"operators": 3}, Verdict.INCONCLUSIVE, []),
}


@pytest.mark.parametrize("times", [True, False], ids=["times", "no times"])
@pytest.mark.parametrize(("least", "verdict", "worse"), CALLS_THAT_DIFFER.values(), ids=CALLS_THAT_DIFFER)
def test_calls_that_differ_in_what_was_exact_are_never_ok(
    least: dict[str, int], verdict: Verdict, worse: list[str], times: bool
) -> None:
    here = replicate(memory=changed(memory(2**20), calls_differ=["some"], least=least))
    stored = split(entry(quiet(100 * MS, peak_bytes=2**20, counts={"operators": 3})))
    judgement = judge(record(here, fresh=[here] * 3), stored if times else changed(stored, times=None), POLICY)
    assert (judgement.verdict, judgement.worse) == (verdict, worse)
    assert (judgement.memory is None) == (least.get("memory") == 2**10)
    assert any(reason.startswith("calls differ") for reason in judgement.reasons) == (worse != ["counts"])


def test_a_baseline_without_memory_says_nothing_of_memory() -> None:
    judgement = judge(record(replicate(peak_bytes=2**30)), entry(), POLICY)
    assert judgement.verdict is Verdict.OK
    assert judgement.memory is None


@pytest.mark.parametrize(
    ("now_ns", "now_bytes", "verdict"),
    [
        (SLOW, 2**19, Verdict.REGRESSED),
        (80 * MS, 2**21, Verdict.REGRESSED),
        (SLOW, 2**21, Verdict.REGRESSED),
        (80 * MS, 2**20, Verdict.IMPROVED),
        (100 * MS, 2**19, Verdict.IMPROVED),
    ],
)
def test_the_worse_of_latency_and_memory_is_the_verdict(now_ns: float, now_bytes: int, verdict: Verdict) -> None:
    fresh = quiet(now_ns, peak_bytes=now_bytes)
    baseline = entry(quiet(100 * MS, peak_bytes=2**20))
    assert judge(record(fresh[0], fresh=fresh), baseline, POLICY).verdict is verdict


def test_latency_that_nobody_can_judge_does_not_hide_a_memory_regression() -> None:
    fresh = quiet(SLOW, fastest_ns=99 * MS, peak_bytes=2**21)
    judgement = judge(record(fresh[0], fresh=fresh), entry(quiet(100 * MS, peak_bytes=2**20)), POLICY)
    assert judgement.verdict is Verdict.REGRESSED
    assert judgement.worse == ["memory"]
    assert judgement.latency is not None
    assert judgement.reasons == []  # why its time can't be told is no reason of what is exact


# --- out of memory -----------------------------------------------------------------------------------------------


def ran_out(asked_bytes: int | None = 20 * 2**30) -> Record:
    return MeasuredCase(case="t.py::t", environment=environment(), out_of_memory=OutOfMemory(asked_bytes=asked_bytes))


RAN_OUT = entry([], out_of_memory=OutOfMemory(asked_bytes=None))
ASKED = "out of memory: 20.0 GiB asked for"


@pytest.mark.parametrize(
    ("now", "baseline", "verdict", "reasons"),
    [
        pytest.param(ran_out(), None, Verdict.OOM, [ASKED], id="without a baseline"),
        pytest.param(ran_out(None), None, Verdict.OOM, ["out of memory"], id="without a size"),
        pytest.param(
            ran_out(),
            entry(quiet(100 * MS, peak_bytes=3 * 2**30)),
            Verdict.REGRESSED,
            [ASKED, "the baseline needed 3.00 GiB"],
            id="where the baseline fitted",
        ),
        pytest.param(ran_out(), RAN_OUT, Verdict.OOM, [ASKED], id="as in the baseline"),
        pytest.param(
            ran_out(),
            entry(environment=environment(cores=64)),
            Verdict.OOM,
            [ASKED],
            id="beside a baseline of elsewhere",
        ),
        pytest.param(
            record(), RAN_OUT, Verdict.IMPROVED, ["ran out of memory in the baseline, and fits now"], id="fits again"
        ),
        pytest.param(record(), entry([]), Verdict.NEW, ["no baseline yet"], id="beside a baseline without numbers"),
    ],
)
def test_out_of_memory_is_a_verdict_of_its_own_and_a_regression_where_the_baseline_fitted(
    now: Record, baseline: Entry | None, verdict: Verdict, reasons: list[str]
) -> None:
    judgement = judge(now, baseline, POLICY)
    assert (judgement.verdict, judgement.reasons) == (verdict, reasons)


def small() -> Baseline:
    """One call of 1 MiB and 5 operators, without times."""
    return Baseline(exact=split(entry(quiet(100 * MS, peak_bytes=2**20, counts={"operators": 5}))).exact)


def test_an_accepted_out_of_memory_does_not_switch_off_memory_and_counts() -> None:
    baseline = Baseline(exact=small().exact, times=RAN_OUT)
    worse = judge(record(replicate(peak_bytes=2**30, counts={"operators": 500})), baseline, POLICY)
    assert (worse.verdict, worse.worse) == (Verdict.REGRESSED, ["memory", "counts"])
    again = judge(record(replicate(peak_bytes=2**20, counts={"operators": 5})), baseline, POLICY)
    assert (again.verdict, again.reasons) == (Verdict.IMPROVED, ["ran out of memory in the baseline, and fits now"])
    assert again.no_times == "this machine's times say: it ran out of memory"
    elsewhere = judge(record(replicate(), environment=environment(torch="2.12.0")), baseline, POLICY)
    assert elsewhere.verdict is Verdict.INCOMPARABLE


def test_a_case_that_fits_again_is_told_so_where_memory_is_another_environments() -> None:
    exact = small().exact
    elsewhere = changed(exact, environment=changed(exact.environment, torch="1.0.0"))
    judgement = judge(record(), Baseline(exact=elsewhere, times=RAN_OUT), POLICY)
    assert judgement.verdict is Verdict.IMPROVED
    assert judgement.reasons[0] == "ran out of memory in the baseline, and fits now"
    assert "memory and counts were not compared: baseline" in judgement.reasons[1]


def test_out_of_memory_by_more_than_the_baselines_peak_is_a_regression_also_without_times() -> None:
    assert judge(ran_out(2**40), small(), POLICY).verdict is Verdict.REGRESSED
    assert judge(ran_out(2**20), small(), POLICY).verdict is Verdict.OOM, "the machine may be a small one"
    held = changed(ran_out(2**20).out_of_memory, alive=[PeakPart(category="parameters", size_bytes=2**20, blocks=1)])
    assert judge(changed(ran_out(), out_of_memory=held), small(), POLICY).verdict is Verdict.REGRESSED
    assert judge(ran_out(None), small(), POLICY).verdict is Verdict.OOM


def test_out_of_memory_is_not_held_against_memory_that_may_differ_here_for_reasons_of_its_own() -> None:
    other = changed(ran_out(2**40), environment=environment(threads=8))
    assert judge(other, small(), POLICY).verdict is Verdict.OOM


# --- phases ------------------------------------------------------------------------------------------------------


def test_phases_are_compared_by_their_medians() -> None:
    before = [replicate(phases_ns={"forward": f, "backward": b}) for f, b in ((10, 20), (11, 21), (99, 99))]
    fresh = [replicate(SLOW, phases_ns={"forward": f, "backward": b}) for f, b in ((11, 40), (11, 42), (12, 44))]
    phases = judge_again(fresh, before).phases
    assert (phases["forward"].before, phases["forward"].now, phases["forward"].ratio) == (11, 11, 1.0)
    assert (phases["backward"].before, phases["backward"].now, phases["backward"].ratio) == (21, 42, 2.0)
    assert list(phases) == ["forward", "backward"]


def test_a_phase_that_only_one_side_has_or_that_took_no_time_is_left_out() -> None:
    before = [replicate(phases_ns={"forward": 10.0, "optimizer": 0.0})]
    now = replicate(phases_ns={"forward": 10.0, "backward": 5.0, "optimizer": 3.0})
    assert list(judge(record(now), entry(before), POLICY).phases) == ["forward"]


def test_a_case_without_phases_has_none() -> None:
    assert judge(record(), entry(), POLICY).phases == {}
