"""When an anchor stays and when it moves, and what the judge makes of it."""

from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion

from perflab.judging.kept import ACCEPTED_KEPT, is_past_anchor, is_past_memory_anchor
from perflab.measured.report.failure import explain
from perflab.measured.report.table import table
from perflab.results.measured import Baseline, Entry, Exact
from perflab.results.measurement import OutOfMemory, Replicate
from perflab.results.records import Judgement, Policy, Verdict
from tests.harness.make import (
    MS,
    cuda_environment,
    entry,
    environment,
    judge,
    quiet,
    record,
    replicate,
    result,
    successor,
)

POLICY = Policy()
TENTH = Policy(memory_threshold=0.10)


def saved(*medians_ms: float, policy: Policy = POLICY, reasons: dict[int, str] | None = None) -> Entry:
    """What the file holds after saving a case of these times one after the other."""
    held = saved_replicates(*(quiet(ms * MS) for ms in medians_ms), policy=policy, reasons=reasons).times
    assert held is not None
    return held


def times(held: Baseline) -> Entry:
    assert held.times is not None
    return held.times


def exact(held: Baseline) -> Exact:
    assert held.exact is not None
    return held.exact


def saved_replicates(
    *saves: list[Replicate], policy: Policy = POLICY, reasons: dict[int, str] | None = None, **changes: object
) -> Baseline:
    held: Baseline | None = None
    for number, replicates in enumerate(saves):
        new = entry(replicates, recorded=f"2026-08-{number + 1:02}", commit=f"c{number}", **changes)
        held = successor(held, new, policy, (reasons or {}).get(number))
    assert held is not None
    return held


def judged(now_ms: float, held: Entry | Baseline, policy: Policy = POLICY) -> Judgement:
    again = quiet(now_ms * MS)
    return judge(record(again[1], fresh=again), held, policy)


def anchor_ms(held: Entry) -> float:
    """Where the anchor stands."""
    return (held.anchor.replicates if held.anchor else held.replicates)[1].median_ns / MS


# --- when it moves -----------------------------------------------------------------------------------------------


def test_an_anchor_stays_through_steps_too_small_to_count() -> None:
    held = saved(100)
    assert held.anchor is None
    assert held.accepted == []
    held = saved(100, 103, 106, 109)
    assert (held.anchor.recorded, held.anchor.steps, held.anchor.commit) == ("2026-08-01", 3, "c0")
    assert anchor_ms(held) == 100
    assert held.replicates == quiet(109 * MS)
    assert held.accepted == []


@pytest.mark.parametrize("last_ms", [115, 90])
def test_a_step_past_the_limit_moves_it_in_either_direction(last_ms: float) -> None:
    held = saved(100, 103, last_ms)
    assert held.anchor is None
    (accepted,) = held.accepted
    assert accepted.latency_ratio == pytest.approx(last_ms / 103, abs=1e-4)
    assert accepted.commit == "c2"
    assert accepted.reason is None


def test_a_reason_moves_an_anchor_and_a_new_case_keeps_its_own() -> None:
    held = saved(100, 103, 106, reasons={2: "checks its mask"})
    assert held.anchor is None
    (accepted,) = held.accepted
    assert (accepted.date, accepted.reason) == ("2026-08-03", "checks its mask")
    (accepted,) = saved(100, reasons={0: "a first version"}).accepted
    assert (accepted.reason, accepted.latency_ratio) == ("a first version", None)


def test_an_improvement_on_the_anchor_moves_it_though_each_step_was_small() -> None:
    assert anchor_ms(saved(100, 97)) == 100
    assert anchor_ms(saved(100, 97, 94)) == 94


def test_neither_a_difference_below_the_floor_nor_one_within_noise_moves_it() -> None:
    held = times(saved_replicates(quiet(1_000.0), quiet(2_500.0)))
    assert held.anchor is not None
    assert held.accepted == []
    noisy = [replicate(median) for median in (90 * MS, 100 * MS, 110 * MS)]
    assert times(saved_replicates(noisy, quiet(115 * MS))).anchor is not None


def test_another_environment_starts_anew_and_keeps_the_history() -> None:
    held = saved(100, 130, 133)
    moved = times(successor(held, entry(environment=environment(threads=1)), POLICY, None))
    assert moved.anchor is None
    assert moved.accepted == held.accepted


def test_a_case_that_runs_out_of_memory_has_no_anchor_and_neither_when_it_fits_again() -> None:
    out = entry([], out_of_memory=OutOfMemory(asked_bytes=None))
    gone = times(successor(saved(100, 103), out, POLICY, None))
    assert gone.anchor is None
    assert len(gone.accepted) == 1
    assert times(successor(gone, entry(), POLICY, None)).anchor is None


def test_an_entry_remembers_its_latest_accepted_changes() -> None:
    held = saved(*(100 * 1.2**step for step in range(14)))
    assert len(held.accepted) == ACCEPTED_KEPT
    assert held.accepted[-1].date == "2026-08-14"


# --- memory has its own ------------------------------------------------------------------------------------------


def test_memory_that_grew_by_little_leaves_its_anchor_and_past_the_limit_moves_it() -> None:
    held = saved_replicates(*[quiet(100 * MS, peak_bytes=size) for size in (1000, 1060, 1120)], policy=TENTH)
    anchor = exact(held).memory_anchor
    assert (anchor.peak_bytes, anchor.steps) == (1000, 2)
    held = successor(held, entry(quiet(100 * MS, peak_bytes=2000)), TENTH, None)
    assert exact(held).memory_anchor is None
    (accepted,) = exact(held).accepted
    assert (accepted.peak_bytes_before, accepted.peak_bytes_now) == (1120, 2000)


def test_memory_that_grows_in_steps_with_a_byte_less_between_them_keeps_its_anchor() -> None:
    sizes = (1000, 1090, 1089, 1180, 1179)
    held = saved_replicates(*(quiet(100 * MS, peak_bytes=size) for size in sizes), policy=TENTH)
    anchor = exact(held).memory_anchor
    assert (anchor.peak_bytes, anchor.steps) == (1000, 4)
    assert exact(held).accepted == []
    assert is_past_memory_anchor(exact(held), TENTH)
    much_less = successor(held, entry(quiet(100 * MS, peak_bytes=1050)), TENTH, None)
    assert exact(much_less).memory_anchor is None
    assert len(exact(much_less).accepted) == 1


def test_exact_memory_never_drifts_and_does_not_move_the_anchor_of_time() -> None:
    held = saved_replicates(*(quiet(ms * MS, peak_bytes=ms) for ms in (100, 103, 106)))
    assert exact(held).memory_anchor is None
    assert anchor_ms(times(held)) == 100
    assert len(exact(held).accepted) == 2


def test_memory_that_adds_up_on_a_gpu_below_the_allocators_rounding_is_seen(snapshot: SnapshotAssertion) -> None:
    gpu = cuda_environment()
    peaks = [quiet(100 * MS, peak_bytes=size) for size in (100_000, 100_400, 100_800)]
    held = saved_replicates(*peaks, environment=gpu)
    judgement = judge(record(peaks[-1][0], fresh=peaks[-1], environment=gpu), held, POLICY)
    assert judgement.worse == ["memory"]
    text = explain(result(outcome=record(peaks[-1][0], environment=gpu), judgement=judgement), "accept")
    assert text == snapshot


# --- what the judge makes of it ----------------------------------------------------------------------------------


def test_a_case_that_is_ok_against_its_baseline_and_not_against_its_anchor_has_regressed(
    snapshot: SnapshotAssertion,
) -> None:
    judgement = judged(109.3, saved(100, 103, 106, 109))
    assert judgement.verdict is Verdict.REGRESSED
    assert judgement.worse == ["latency"]
    assert judgement.latency.before == 100 * MS
    drift = judgement.drift["latency"]
    assert drift.decides
    assert drift.steps == 3
    drifted = result(judgement=judgement)
    text = explain(drifted, "accept")
    assert text == snapshot(name="failure")
    assert max(map(len, text.splitlines())) <= 80
    assert "\n".join(line.text for line in table([drifted])) == snapshot(name="table")


def test_one_step_is_told_as_one(snapshot: SnapshotAssertion) -> None:
    assert explain(result(judgement=judged(107, saved(100, 103))), "accept") == snapshot


def test_within_both_limits_a_case_is_ok_and_a_step_past_one_is_told_against_the_baseline() -> None:
    judgement = judged(104, saved(100, 103))
    assert judgement.verdict is Verdict.OK
    assert judgement.latency.before == 103 * MS
    assert not judgement.drift["latency"].decides
    assert judgement.drift["latency"].change.ratio == pytest.approx(1.04)
    judgement = judged(130, saved(100, 103))
    assert judgement.verdict is Verdict.REGRESSED
    assert not judgement.drift["latency"].decides
    assert "slower than its baseline" in explain(result(judgement=judgement), "accept")


def test_a_suspect_of_drift_is_measured_again_like_any_other() -> None:
    held = saved(100, 103, 106, 109)
    assert judge(record(replicate(109 * MS)), held, POLICY).suspect
    assert judge(record(replicate(109 * MS), fresh=quiet(101 * MS)), held, POLICY).verdict is not Verdict.REGRESSED


def test_a_doubt_about_a_drift_names_the_anchor(snapshot: SnapshotAssertion) -> None:
    held = saved(100, 103, 106, 109)
    busy = quiet(109 * MS, fastest_ns=98 * MS)
    judgement = judge(record(busy[1], fresh=busy), held, POLICY)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.reasons == snapshot


def test_an_anchor_never_makes_a_verdict_better() -> None:
    assert judged(97, saved(100, 103, 101.5)).verdict is Verdict.OK
    faster = judged(94, saved(100, 103))
    assert faster.verdict is Verdict.IMPROVED
    assert faster.latency.before == 103 * MS


def test_what_is_saved_past_its_anchor_is_known_at_once() -> None:
    assert not is_past_anchor(saved(100, 103), POLICY)
    assert is_past_anchor(saved(100, 103, 106), POLICY)
    gpu = cuda_environment()
    steps = [quiet(100 * MS, peak_bytes=size) for size in (100_000, 100_400, 100_800)]
    assert not is_past_memory_anchor(exact(saved_replicates(*steps[:2], environment=gpu)), POLICY)
    assert is_past_memory_anchor(exact(saved_replicates(*steps, environment=gpu)), POLICY)
