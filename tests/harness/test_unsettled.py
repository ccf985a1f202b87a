"""What stored numbers cannot tell, and what turns with the baseline's commit make of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from perflab.base.data import changed
from perflab.judging.finding import LOOKS, as_ratios
from perflab.results.measured import Anchor
from perflab.results.measurement import Paired, Record
from perflab.results.records import Judgement, Policy, Verdict
from tests.harness.make import MS, entry, judge, quiet, record, replicate

POLICY = Policy()
THERE = "abc1234, where its baseline was saved"


def in_turns(ratio: float, *, screen: int = 3, confirm: int = LOOKS[0], **changes: Any) -> Paired:
    """Pairs that all show the same ratio."""
    fields: dict[str, Any] = {"against": THERE, "base_ns": 90.0 * MS}
    return Paired(screen=[ratio] * screen, confirm=[ratio] * confirm, **{**fields, **changes})


def doubtful(**changes: Any) -> Record:
    """30 % slower in fresh processes, beside busy neighbours."""
    fresh = quiet(130.0 * MS, neighbours_cores=1.5)
    return record(replicate(130.0 * MS), **{"fresh": fresh, **changes})


def settled(paired: Paired, policy: Policy = POLICY, **changes: Any) -> Judgement:
    return judge(doubtful(paired=paired, **changes), entry(), policy)


@given(st.lists(st.floats(-40.0, 40.0), min_size=1))
def test_what_is_kept_of_pairs_has_the_logarithms_that_were_seen(logs: list[float]) -> None:
    assert [math.log(ratio) for ratio in as_ratios(logs)] == pytest.approx(logs, abs=1e-6)


@given(st.lists(st.floats(-40.0, 40.0), min_size=2, max_size=3), st.lists(st.floats(-40.0, 40.0), max_size=16))
def test_no_pairs_are_too_wild_to_be_judged(screen: list[float], confirm: list[float]) -> None:
    settled(Paired(against=THERE, base_ns=90.0 * MS, screen=as_ratios(screen), confirm=as_ratios(confirm)))


def test_a_slowdown_that_could_be_the_machine_s_is_unsettled() -> None:
    judgement = judge(doubtful(), entry(), POLICY)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.unsettled == ["baseline"]


@pytest.mark.parametrize(("fastest_ns", "unsettled"), [(101.0 * MS, False), (103.0 * MS, True)])
def test_fastest_calls_half_a_threshold_slower_are_unsettled_though_the_median_is_ok(
    fastest_ns: float, unsettled: bool
) -> None:
    judgement = judge(record(replicate(103.0 * MS, fastest_ns=fastest_ns)), entry(), POLICY)
    assert judgement.verdict is Verdict.OK
    assert bool(judgement.unsettled) is unsettled


def test_differences_below_the_floor_are_settled() -> None:
    before = quiet(10_000.0)
    assert not judge(record(replicate(10_400.0, fastest_ns=10_400.0)), entry(before), POLICY).unsettled


def test_a_suspect_is_first_measured_in_fresh_processes_and_what_these_confirm_needs_no_turns() -> None:
    first = judge(record(replicate(130.0 * MS)), entry(), POLICY)
    assert (first.suspect, first.unsettled) == (True, [])
    again = judge(record(replicate(130.0 * MS), fresh=quiet(130.0 * MS)), entry(), POLICY)
    assert (again.verdict, again.unsettled) == (Verdict.REGRESSED, [])


def test_a_slowdown_in_turns_is_the_code_s() -> None:
    judgement = settled(in_turns(1.1))
    assert judgement.verdict is Verdict.REGRESSED
    assert judgement.worse == ["latency"]
    assert judgement.reasons == [f"A/B with {THERE}: +10.0%"]
    assert not judgement.unsettled
    change = judgement.latency
    assert (change.before, change.now) == (90.0 * MS, pytest.approx(99.0 * MS))
    assert (change.ratio, change.limit) == (pytest.approx(1.1), pytest.approx(1.05))


def test_no_slowdown_in_turns_clears_the_case_and_says_that_the_stored_number_could_not_tell(
    snapshot: SnapshotAssertion,
) -> None:
    judgement = settled(in_turns(1.001, screen=2, confirm=0))
    assert judgement.verdict is Verdict.OK
    assert judgement.reasons == snapshot
    assert not judgement.unsettled
    assert judgement.disturbed is None, "what disturbed the fresh processes is of no interest any more"


def test_faster_in_turns_is_improved_whatever_the_stored_number_says_and_three_pairs_alone_improve_nothing(
    snapshot: SnapshotAssertion,
) -> None:
    assert settled(in_turns(0.8)).verdict is Verdict.IMPROVED
    judgement = settled(in_turns(0.8, screen=3, confirm=0))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.reasons[1] == snapshot


def test_an_improvement_is_settled_in_turns_with_the_baseline_s_commit(snapshot: SnapshotAssertion) -> None:
    improved = record(replicate(80.0 * MS), fresh=quiet(80.0 * MS))
    assert judge(improved, entry(), POLICY).unsettled == ["baseline"]
    stands = judge(changed(improved, paired=in_turns(0.8)), entry(), POLICY)
    assert (stands.verdict, stands.unsettled) == (Verdict.IMPROVED, [])
    falls = judge(changed(improved, paired=in_turns(1.0, screen=2, confirm=0)), entry(), POLICY)
    assert falls.verdict is Verdict.OK
    assert falls.reasons == snapshot
    assert judge(changed(improved, paired=in_turns(1.1)), entry(), POLICY).verdict is Verdict.REGRESSED


def test_pairs_that_cannot_tell_either_stay_inconclusive_and_say_both() -> None:
    scattered = Paired(
        against=THERE, base_ns=90.0 * MS, screen=[1.1, 1.2, 0.9], confirm=[1.3, 0.8, 1.2, 0.9, 1.4, 1.1, 1.25, 0.85] * 2
    )
    judgement = settled(scattered)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.reasons[0].startswith(f"A/B with {THERE}: ")
    assert "pairs" in judgement.reasons[1]
    assert not judgement.unsettled, "there is nothing more to be done"


def test_a_control_that_leaves_too_little_of_a_slowdown_leaves_it_open_and_a_smaller_one_does_not() -> None:
    assert settled(in_turns(1.1, control=[1.03] * 8)).verdict is Verdict.REGRESSED
    judgement = settled(in_turns(1.1, control=[1.08] * 8))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "null control" in " ".join(judgement.reasons)


def test_a_slowdown_below_the_floor_or_within_the_threshold_is_none(snapshot: SnapshotAssertion) -> None:
    judgement = settled(in_turns(1.1, base_ns=10_000.0))
    assert judgement.verdict is Verdict.OK
    assert judgement.reasons == snapshot
    assert settled(in_turns(1.04)).verdict is Verdict.OK
    assert settled(in_turns(1.04), Policy(threshold=0.02)).verdict is Verdict.REGRESSED


def test_turns_are_about_time_and_memory_that_grew_still_fails() -> None:
    fresh = quiet(130.0 * MS, neighbours_cores=1.5, peak_bytes=2048)
    now = record(replicate(130.0 * MS, peak_bytes=2048), fresh=fresh, paired=in_turns(1.0))
    judgement = judge(now, entry(quiet(100.0 * MS, peak_bytes=1024)), POLICY)
    assert judgement.verdict is Verdict.REGRESSED
    assert judgement.worse == ["memory"]


def test_a_verdict_by_turns_is_final_and_what_they_confirm_says_no_more_than_that() -> None:
    slower = judge(record(replicate(104.0 * MS), paired=in_turns(1.1)), entry(), POLICY)
    assert (slower.verdict, slower.suspect) == (Verdict.REGRESSED, False)
    same = judge(record(replicate(103.0 * MS), paired=in_turns(1.0)), entry(), POLICY)
    assert (same.verdict, same.reasons) == (Verdict.OK, [f"A/B with {THERE}: 0.0%"])


# --- anchors ------------------------------------------------------------------------------------------------

DRIFTED = entry(quiet(128.0 * MS), anchor=Anchor(recorded="2025-01-02", replicates=quiet(100.0 * MS), steps=3))
"""A baseline 28 % above its anchor; a reading of 130 ms is no news to the one, and doubtful to the other."""


def test_where_the_anchor_alone_is_in_doubt_the_turns_are_with_its_code() -> None:
    doubt = judge(doubtful(), DRIFTED, POLICY)
    assert doubt.verdict is Verdict.INCONCLUSIVE
    assert doubt.unsettled == ["anchor"]
    judgement = judge(doubtful(paired_to_anchor=in_turns(1.1)), DRIFTED, POLICY)
    assert judgement.verdict is Verdict.REGRESSED
    drift = judgement.drift["latency"]
    assert drift.decides
    assert drift.change.ratio == pytest.approx(1.1)
    cleared = judge(doubtful(paired_to_anchor=in_turns(1.0)), DRIFTED, POLICY)
    assert cleared.verdict is Verdict.OK
    assert not cleared.drift["latency"].decides


def test_a_doubt_about_the_anchor_outlives_turns_with_the_baseline_s_code() -> None:
    both = entry(quiet(100.0 * MS), anchor=Anchor(recorded="2025-01-02", replicates=quiet(99.0 * MS), steps=1))
    assert judge(doubtful(), both, POLICY).unsettled == ["baseline", "anchor"]
    half = judge(doubtful(paired=in_turns(1.0)), both, POLICY)
    assert half.verdict is Verdict.INCONCLUSIVE
    assert half.unsettled == ["anchor"]
    whole = judge(doubtful(paired=in_turns(1.0), paired_to_anchor=in_turns(1.0)), both, POLICY)
    assert whole.verdict is Verdict.OK
    assert whole.unsettled == []
