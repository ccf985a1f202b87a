"""The judge, verdict by verdict and doubt by doubt: a record and a baseline in, what a user is told out."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from perflab.base.data import changed
from perflab.devices.kinds import block_bytes_on
from perflab.measured.baselines import split
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
    return judge(slow(fresh), entry(before), policy)


def slow(fresh: list[Replicate]) -> Record:
    return record(replicate(SLOW), fresh=fresh)


def ms(*medians: float, **changes: Any) -> list[Replicate]:
    """A replicate for each median in milliseconds."""
    return [replicate(median * MS, **changes) for median in medians]


def clocked(median_ms: float, interpreter: float, cores_busy: float = 1.0, **readings: float) -> list[Replicate]:
    """Replicates beside readings of the calibration workload, in nanoseconds."""
    return quiet(median_ms * MS, calibration_ns={"interpreter": interpreter, **readings}, cores_busy=cores_busy)


# --- each verdict but an exact one's, with all of its reasons ----------------------------------------------------

CALM, BUSY = {"neighbours_cores": 0.0}, {"neighbours_cores": 1.6}
# Seen: fastest calls 109 µs and medians of 186 to 205 in a baseline; then 148 and 178, a third slower.
BESIDE_BUSY_CORES = [replicate(median * 1e3, fastest_ns=109e3) for median in (186, 195, 205)]
AFTERWARDS = [replicate(median * 1e3, fastest_ns=148e3) for median in (170, 178, 172)]
# Seen: 16.6 µs in the one process of a baseline whose samples differed by a factor of 240, then 7.99 ms.
WILD_BEFORE, WILD_NOW = ms(0.0166, noise=240.0), ms(7.99, noise=1.2)
MUCH_FASTER = ms(0.0166, noise=1.2)
THREADS_WAIT = {"cores_busy": 1.9, "threads": 6e4}, {"cores_busy": 1.9, "threads": 3e2}
FASTER_INTERPRETER = (
    quiet(100 * MS, calibration_ns={"interpreter": 1200.0, "memory": 100.0, "threads": 300.0}, cores_busy=1.9),
    replicate(calibration_ns={"interpreter": 1000.0, "memory": 100.0, "threads": 300.0}, cores_busy=1.9),
)


def again(fresh: list[Replicate], before: list[Replicate] | None = None) -> tuple[Record, Entry]:
    """A case that fresh processes confirm, and its baseline."""
    return record(replicate(fresh[0].median_ns), fresh=fresh), entry(before)


NEW, OK, IMPROVED, REGRESSED, OPEN = (
    Verdict.NEW, Verdict.OK, Verdict.IMPROVED, Verdict.REGRESSED, Verdict.INCONCLUSIVE,
)  # fmt: skip
JUDGED: dict[str, tuple[Verdict, Record, Entry | None]] = {
    "without a baseline": (NEW, record(), None),
    "from another environment, all of which is named": (
        Verdict.INCOMPARABLE,
        record(replicate(SLOW)),
        entry(environment=environment(torch="2.12.0", threads=8)),
    ),
    "faster, where the baseline's commit may know better": (
        IMPROVED,
        record(replicate(80 * MS), fresh=quiet(80 * MS)),
        entry(),
    ),
    "faster, not confirmed": (OK, record(replicate(80 * MS), fresh=quiet(99 * MS)), entry()),
    "slower, confirmed": (REGRESSED, slow(quiet(SLOW)), entry()),
    "slower, not confirmed": (OK, slow(quiet(100.5 * MS)), entry()),
    "faster by less than the floor": (OK, record(replicate(500.0)), entry(quiet(1_000.0))),
    "too small to count": (OK, record(replicate(1_000.0)), entry(ms(0.0009, 0.001, 0.0011))),
    # what may have made the baseline slow
    "a baseline saved beside busy cores": (OPEN, record(AFTERWARDS[0]), entry(BESIDE_BUSY_CORES)),
    "the same in fresh processes": (OPEN, record(AFTERWARDS[0], fresh=AFTERWARDS), entry(BESIDE_BUSY_CORES)),
    "faster than a baseline of one process": (OPEN, record(replicate(80 * MS)), entry(ms(100))),
    "slower than a baseline of one process": (OPEN, slow(quiet(SLOW)), entry(ms(100))),
    "one fast process of the baseline": (OPEN, *again(quiet(80 * MS), ms(79, 99.9, 100))),
    "fresh processes that differ by as much": (OPEN, *again(ms(50, 51, 52, 68, 78, 79, 80))),
    "a first reading that was faster": (OPEN, record(replicate(80 * MS), fresh=quiet(SLOW)), entry()),
    "a first reading that was slower": (OPEN, slow(quiet(80 * MS)), entry()),
    # what may hide a slowdown
    "fastest calls past the threshold": (
        OPEN,
        record(replicate(103 * MS, fastest_ns=101 * MS)),
        entry(quiet(103 * MS, fastest_ns=90 * MS)),
    ),
    "a baseline that was disturbed": (OPEN, record(replicate(**CALM)), entry(quiet(100 * MS, **BUSY))),
    "disturbed as the baseline was": (OK, record(replicate(**BUSY)), entry(quiet(100 * MS, **BUSY))),
    "a machine that became faster": (
        OPEN,
        record(replicate(calibration_ns={"interpreter": 1000.0, "memory": 100.0})),
        entry(quiet(100 * MS, calibration_ns={"interpreter": 1200.0, "memory": 120.0})),
    ),
    "one piece of fixed work that became faster": (OK, record(FASTER_INTERPRETER[1]), entry(FASTER_INTERPRETER[0])),
    "a baseline that could not show twice the threshold": (OPEN, record(), entry(ms(90, 100, 110))),
    # a slowdown that may not be the code's
    "within the differences of the baseline's replicates": (OPEN, record(replicate(115 * MS)), entry(ms(90, 100, 110))),
    "within the noise of each of its processes": (OPEN, record(replicate(115 * MS)), entry(ms(*[100] * 3, noise=0.2))),
    "a percent past the threshold of perfect replicates": (
        OPEN,
        record(replicate(105.5 * MS), fresh=ms(*[105.5] * 3, noise=0.0)),
        entry(ms(*[100] * 3, noise=0.0)),
    ),
    "an interval that reaches below the threshold": (OPEN, slow(ms(108, 118, 128)), entry()),
    "too wild for any interval": (OPEN, slow(WILD_NOW), entry(WILD_BEFORE)),
    "faster beyond any interval": (OPEN, record(MUCH_FASTER[0]), entry(ms(7.99, noise=240.0))),
    "three doubts, each of which is told": (
        OPEN,
        slow(ms(108, 118, 128, fastest_ns=99 * MS, calibration_ns={"interpreter": 1300.0})),
        entry(quiet(100 * MS, calibration_ns={"interpreter": 1000.0})),
    ),
    "one disturbed fresh process makes no regression": (OK, slow(ms(99.9, 100, 300)), entry()),
    "one disturbed fresh process hides none": (REGRESSED, slow(ms(129.9, 130, 300)), entry()),
    "one slow process of the baseline": (OPEN, slow(quiet(SLOW)), entry(ms(99.9, 100, 300))),
    "slower than that one too": (REGRESSED, slow(quiet(310 * MS)), entry(ms(99.9, 100, 300))),
    # what else may have moved the time
    "a machine that was slower": (OPEN, *again(clocked(80, 1000), clocked(100, 1250))),
    "a machine that became slower": (OPEN, *again(clocked(130, 1280), clocked(100, 1000))),
    "a machine that became slower by less": (REGRESSED, *again(clocked(130, 1100), clocked(100, 1000))),
    "the workload's own noise": (REGRESSED, *again(clocked(106.5, 1019), clocked(100, 1000))),
    "a workload of now alone": (REGRESSED, *again(clocked(130, 2000), quiet(100 * MS))),
    "a workload of the baseline alone": (REGRESSED, *again(quiet(SLOW), clocked(100, 1000))),
    "threads that wait, of work in one": (
        REGRESSED, *again(clocked(130, 1e3, threads=6e4), clocked(100, 1e3, threads=3e2)),
    ),
    "threads that wait, of work in several": (
        OPEN, *again(clocked(130, 1e3, **THREADS_WAIT[0]), clocked(100, 1e3, **THREADS_WAIT[1])),
    ),
    "faster than a baseline beside others": (OPEN, *again(quiet(80 * MS, **CALM), quiet(100 * MS, **BUSY))),
    "both beside others": (IMPROVED, *again(quiet(80 * MS, **BUSY), quiet(100 * MS, **BUSY))),
    "calls of which the fastest are as before": (OPEN, *again(quiet(SLOW, fastest_ns=101 * MS))),
}  # fmt: skip


@pytest.mark.parametrize(("verdict", "now", "before"), JUDGED.values(), ids=JUDGED)
def test_a_verdict_comes_with_all_that_makes_it_doubtful(
    verdict: Verdict, now: Record, before: Entry | None, snapshot: SnapshotAssertion
) -> None:
    judgement = judge(now, before, POLICY)
    assert (judgement.verdict, judgement.suspect) == (verdict, False)
    assert (judgement.latency is None) == (verdict in (Verdict.NEW, Verdict.INCOMPARABLE))
    assert {"reasons": judgement.reasons, "to settle": judgement.unsettled} == snapshot


# --- latency -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.96, 1.0, 1.049])
def test_a_reading_within_the_threshold_is_ok(share: float) -> None:
    judgement = judge(record(replicate(share * 100 * MS)), entry(), POLICY)
    assert (judgement.verdict, judgement.reasons) == (Verdict.OK, [])
    assert judgement.latency.before == 100 * MS
    assert judgement.latency.ratio == pytest.approx(share)
    assert judgement.latency.limit == pytest.approx(1.05)


def test_what_a_first_reading_makes_suspect_is_measured_again() -> None:
    first = judge(record(replicate(80 * MS)), entry(), POLICY)
    assert (first.verdict, first.suspect, first.unsettled) == (Verdict.IMPROVED, True, [])
    judgement = judge(
        record(replicate(100 * MS, peak_bytes=2**20 + 1)), entry(quiet(100 * MS, peak_bytes=2**20)), POLICY
    )
    assert judgement.suspect


def test_replicates_that_differ_widen_the_limit_and_call_no_faster_reading_a_regression() -> None:
    assert judge(record(replicate(60 * MS)), entry(ms(90, 100, 110)), POLICY).verdict is not Verdict.REGRESSED
    latency = judge(record(replicate(115 * MS)), entry(ms(90, 100, 110)), POLICY).latency
    assert latency.limit is not None
    assert latency.limit > 1.15


def test_a_confirmed_slowdown_has_its_interval_and_the_first_reading_no_say() -> None:
    latency = judge_again(quiet(SLOW)).latency
    assert latency.now == SLOW
    assert latency.low is not None
    assert latency.high is not None
    assert 1.05 < latency.low < 1.30 < latency.high
    moderate = judge(record(replicate(110 * MS), fresh=quiet(SLOW)), entry(), POLICY)
    assert moderate == judge(record(replicate(1000 * MS), fresh=quiet(SLOW)), entry(), POLICY)


@pytest.mark.parametrize(
    ("now_ns", "before_ns", "policy", "verdict"),
    [
        (2_900.0, 1_000.0, Policy(floor_ns=2_000.0), OK),
        (3_100.0, 1_000.0, Policy(floor_ns=2_000.0), REGRESSED),
        (SLOW, 100 * MS, Policy(threshold=0.5), OK),
        (104 * MS, 100 * MS, Policy(threshold=0.01), REGRESSED),
    ],
)
def test_the_threshold_and_the_floor_are_the_policys(
    now_ns: float, before_ns: float, policy: Policy, verdict: Verdict
) -> None:
    now = record(replicate(now_ns), fresh=quiet(now_ns))
    assert judge(now, entry(quiet(before_ns)), policy).verdict is verdict


def test_readings_too_wild_for_any_interval_have_no_bound_and_replace_no_anchor() -> None:
    assert judge_again(WILD_NOW, WILD_BEFORE).latency.high == math.inf
    saved = successor(entry(ms(7.99, noise=240.0)), entry(MUCH_FASTER), POLICY, None)
    assert saved.times.accepted == []
    assert saved.times.anchor is not None


def test_a_vague_interval_that_does_not_reach_to_no_change_at_all_is_known_and_shown() -> None:
    fresh = ms(300.0, 100.0, 900.0, noise=0.3)
    case = record(fresh[0], fresh=fresh)
    judgement = judge(case, entry(ms(*[1.0] * 3, noise=0.3)), POLICY)
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


def test_growth_of_memory_needs_a_baseline_and_all_fresh_processes() -> None:
    fresh = [replicate(peak_bytes=2**20), replicate(peak_bytes=2**21), replicate(peak_bytes=2**21)]
    judgement = judge(record(fresh[2], fresh=fresh), entry(quiet(100 * MS, peak_bytes=2**20)), POLICY)
    assert judgement.verdict is Verdict.OK
    judgement = judge(record(replicate(peak_bytes=2**30)), entry(), POLICY)
    assert judgement.verdict is Verdict.OK
    assert judgement.memory is None


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
NEEDS_3_GIB = entry(quiet(100 * MS, peak_bytes=3 * 2**30))
OUT_OF_MEMORY: dict[str, tuple[Verdict, Record, Entry | None]] = {
    "without a baseline": (Verdict.OOM, ran_out(), None),
    "without a size": (Verdict.OOM, ran_out(None), None),
    "where the baseline fitted": (Verdict.REGRESSED, ran_out(), NEEDS_3_GIB),
    "as in the baseline": (Verdict.OOM, ran_out(), RAN_OUT),
    "beside a baseline of elsewhere": (Verdict.OOM, ran_out(), entry(environment=environment(cores=64))),
    "fits again": (Verdict.IMPROVED, record(), RAN_OUT),
    "beside a baseline without numbers": (Verdict.NEW, record(), entry([])),
}


@pytest.mark.parametrize(("verdict", "now", "baseline"), OUT_OF_MEMORY.values(), ids=OUT_OF_MEMORY)
def test_out_of_memory_is_a_verdict_of_its_own_and_a_regression_where_the_baseline_fitted(
    verdict: Verdict, now: Record, baseline: Entry | None, snapshot: SnapshotAssertion
) -> None:
    judgement = judge(now, baseline, POLICY)
    assert judgement.verdict is verdict
    assert judgement.reasons == snapshot


def small() -> Baseline:
    """One call of 1 MiB and 5 operators, without times."""
    return Baseline(exact=split(entry(quiet(100 * MS, peak_bytes=2**20, counts={"operators": 5}))).exact)


def test_an_accepted_out_of_memory_does_not_switch_off_memory_and_counts(snapshot: SnapshotAssertion) -> None:
    baseline = Baseline(exact=small().exact, times=RAN_OUT)
    worse = judge(record(replicate(peak_bytes=2**30, counts={"operators": 500})), baseline, POLICY)
    assert (worse.verdict, worse.worse) == (Verdict.REGRESSED, ["memory", "counts"])
    fits = judge(record(replicate(peak_bytes=2**20, counts={"operators": 5})), baseline, POLICY)
    assert fits.verdict is Verdict.IMPROVED
    assert [*fits.reasons, fits.no_times] == snapshot
    elsewhere = judge(record(replicate(), environment=environment(torch="2.12.0")), baseline, POLICY)
    assert elsewhere.verdict is Verdict.INCOMPARABLE


def test_a_case_that_fits_again_is_told_so_where_memory_is_another_environments(snapshot: SnapshotAssertion) -> None:
    exact = small().exact
    elsewhere = changed(exact, environment=changed(exact.environment, torch="1.0.0"))
    judgement = judge(record(), Baseline(exact=elsewhere, times=RAN_OUT), POLICY)
    assert judgement.verdict is Verdict.IMPROVED
    assert judgement.reasons == snapshot


def test_out_of_memory_by_more_than_the_baselines_peak_is_a_regression_in_its_environment() -> None:
    assert judge(ran_out(2**40), small(), POLICY).verdict is Verdict.REGRESSED
    assert judge(ran_out(2**20), small(), POLICY).verdict is Verdict.OOM, "the machine may be a small one"
    held = changed(ran_out(2**20).out_of_memory, alive=[PeakPart(category="parameters", size_bytes=2**20, blocks=1)])
    assert judge(changed(ran_out(), out_of_memory=held), small(), POLICY).verdict is Verdict.REGRESSED
    assert judge(ran_out(None), small(), POLICY).verdict is Verdict.OOM
    other = changed(ran_out(2**40), environment=environment(threads=8))
    assert judge(other, small(), POLICY).verdict is Verdict.OOM


# --- phases ------------------------------------------------------------------------------------------------------


def test_phases_that_both_sides_have_are_compared_by_their_medians() -> None:
    before = [replicate(phases_ns={"forward": f, "backward": b}) for f, b in ((10, 20), (11, 21), (99, 99))]
    fresh = [replicate(SLOW, phases_ns={"forward": f, "backward": b}) for f, b in ((11, 40), (11, 42), (12, 44))]
    phases = judge_again(fresh, before).phases
    assert (phases["forward"].before, phases["forward"].now, phases["forward"].ratio) == (11, 11, 1.0)
    assert (phases["backward"].before, phases["backward"].now, phases["backward"].ratio) == (21, 42, 2.0)
    assert list(phases) == ["forward", "backward"]
    before = [replicate(phases_ns={"forward": 10.0, "optimizer": 0.0})]
    now = replicate(phases_ns={"forward": 10.0, "backward": 5.0, "optimizer": 3.0})
    assert list(judge(record(now), entry(before), POLICY).phases) == ["forward"]
