"""A machine's own history: readings join only where they agree, and no two environments share one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from perflab.base.data import changed
from perflab.judging.judge import judge, unconfirmed
from perflab.judging.kept import KEPT_REPLICATES, Reading, Step, next_step
from perflab.measured.baselines import Baselines, split
from perflab.measured.report.facts import what_was_compared
from perflab.measured.report.failure import explain
from perflab.results.measured import Entry
from perflab.results.measurement import Paired, Record
from perflab.results.records import Environment, Judgement, Policy, Verdict
from tests.harness.make import CASE, MS, cuda_environment, entry, environment, record, replicate, result

POLICY = Policy()
CLEAN, OTHER = "a" * 40, "b" * 40


def history(*medians_ms: float, commit: str | None = CLEAN, environment_: Environment | None = None) -> Entry:
    """What a machine has kept of so many runs; one of a single reading is also what a run brings."""
    replicates = [replicate(one * MS, counts={"instructions": 10}) for one in medians_ms]
    return entry(replicates, commit=commit, environment=environment_ or environment())


def medians_ms(of: Step) -> list[float]:
    return [one.median_ns / MS for one in of.entry.replicates]


def test_the_first_reading_begins_a_history_and_a_full_one_takes_no_more() -> None:
    assert next_step(None, history(100), POLICY) == Step(history(100), is_begun=True)
    full = history(*[100.0] * KEPT_REPLICATES)
    assert next_step(full, history(100.5), POLICY).entry == full


READINGS: dict[str, tuple[list[float], float, str | None, list[float]]] = {
    "unchanged, of the same code": ([100, 101], 102, CLEAN, [100, 101, 102]),
    "unchanged, of other code": ([100, 101], 102, OTHER, [100, 101, 102]),
    "unchanged, of no commit": ([100, 101], 102, None, [100, 101, 102]),
    "faster, of other code": ([100, 100, 100], 50, OTHER, [50]),
    "faster, of edited code": ([100, 100, 100], 50, CLEAN + "+dirty", [50]),
    "faster, of no commit": ([100, 100, 100], 50, None, [50]),
    "faster, of the same code as several": ([100, 100], 50, CLEAN, [100, 100]),
    "faster than one of the same code, not compared with yet": ([7.92], 0.0113, CLEAN, [0.0113]),
    "faster than two of other code, not compared with yet": ([7.92, 7.92], 0.0113, OTHER, [0.0113]),
    "slower, of the same code": ([100], 300, CLEAN, [100]),
    "slower, of other code": ([100], 300, OTHER, [100]),
    "as one of a history that was mixed once": ([7.92, 0.0113, 0.0112], 0.0113, CLEAN, [0.0113]),
}
"""What was kept, what a run reads, of which commit, and what is kept then."""


@pytest.mark.parametrize("reading", READINGS)
def test_a_reading_joins_replaces_or_is_left_out_and_what_a_user_has_to_know_is_said(
    reading: str, snapshot: SnapshotAssertion
) -> None:
    before, now, commit, after = READINGS[reading]
    step = next_step(history(*before), history(now, commit=commit), POLICY)
    assert (medians_ms(step), step.is_begun) == (after, False)
    assert {"begun anew": step.begun_anew, "left out": step.left_out} == snapshot


def test_edits_of_one_commit_may_be_other_code() -> None:
    edited = CLEAN + "+dirty"
    step = next_step(history(100, 100, 100, commit=edited), history(50, commit=edited), POLICY)
    assert (medians_ms(step), step.left_out) == ([50], None)


@pytest.mark.parametrize("kept", [1, 2, 3])
@pytest.mark.parametrize(("off", "commit"), [(115.0, CLEAN), (90.0, CLEAN), (115.0, OTHER), (115.0, None)])
def test_readings_of_the_same_code_that_are_a_little_off_join_until_there_are_three(
    kept: int, off: float, commit: str | None
) -> None:
    """They say what runs differ by; of other code such a reading may be a slowdown."""
    before = [100.0] * kept
    step = next_step(history(*before), history(off, commit=commit), POLICY)
    joins = kept < 3 and commit == CLEAN
    assert (medians_ms(step), step.left_out) == ([*before, off] if joins else before, None)


def test_readings_join_where_times_agree_whatever_their_instructions() -> None:
    assert medians_ms(next_step(history(100, 130), history(160), POLICY)) == [100, 130]
    assert medians_ms(next_step(history(0.001, 0.002), history(0.0015), POLICY)) == [0.001, 0.002, 0.0015]
    more = changed(history(100), replicates=[replicate(100 * MS, counts={"instructions": 20})])
    assert medians_ms(next_step(history(100, 100), more, POLICY)) == [100, 100, 100]


@pytest.mark.parametrize(
    "change", [{"threads": 1}, {"python": "3.12"}, {"driver": "590"}, {"triton": "3.9.0"}, {"isa": "AVX512"}]
)
def test_environments_whose_times_are_not_compared_have_histories_of_their_own(
    tmp_path: Path, change: dict[str, object]
) -> None:
    there, here = cuda_environment(), cuda_environment(**change)
    baselines = Baselines(tmp_path / "baselines", tmp_path / "own")
    for _ in range(2):
        for one in (there, here):
            baselines.keep({CASE: Reading(history(100, environment_=one), POLICY)})
    for one in (there, here):
        times = baselines.of(CASE, one).times
        assert (times.environment, len(times.replicates)) == (one, 2)


@pytest.mark.parametrize(("commit", "said"), [(CLEAN, "100 ms before, 300 ms now"), (OTHER, None)])
def test_a_regression_changes_no_history_and_of_the_same_code_is_told(
    tmp_path: Path, commit: str, said: str | None
) -> None:
    baselines = Baselines(tmp_path / "baselines", tmp_path / "own")
    slow = Reading(history(300, commit=commit), POLICY, is_worse=True)
    assert baselines.keep({CASE: slow}) == {}, "nothing begins with it"
    for _ in range(2):
        baselines.keep({CASE: Reading(history(100), POLICY)})
    assert baselines.keep({CASE: slow})[CASE].left_out == said
    times = baselines.of(CASE, environment()).times
    assert times is not None
    assert [one.median_ns for one in times.replicates] == [100 * MS, 100 * MS]


# --- judged by few runs ------------------------------------------------------------------------------------------

BUSY, SLOW_MACHINE = {"neighbours_cores": 1.7}, {"calibration_ns": {"interpreter": 150.0}}
CALM = {"neighbours_cores": 0.0, "calibration_ns": {"interpreter": 100.0}}


def seen(*medians_ms: float, peak_bytes: int = 4096, paired: Paired | None = None, **how: Any) -> Record:
    """A case that this run measured, with its fresh processes behind the first reading."""
    first, *fresh = (replicate(one * MS, peak_bytes=peak_bytes, **{**CALM, **how}) for one in medians_ms)
    return record(first, fresh=fresh, paired=paired)


def judged_by(kept: int, now: Record, *, own: bool = True) -> Judgement:
    stored = split(entry([replicate(100 * MS, peak_bytes=4096, **CALM) for _ in range(kept)]))
    return judge(now, changed(stored, times_are_own=own), POLICY)


@pytest.mark.parametrize("kept", [1, 2])
@pytest.mark.parametrize(
    "now",
    [
        seen(150, 150, 151, 152, **BUSY),
        seen(120, 120, 121, 122, **SLOW_MACHINE),
        seen(150, 150, 90, 200),
        seen(150, 149, 150, 151, fastest_ns=101 * MS),
        seen(60),
        seen(102, noise=0.5),
    ],
    ids=["busy", "slow machine", "varying", "delayed", "faster", "noisy"],
)
def test_too_few_runs_to_tell_are_no_verdict_beside_memory_and_counts_that_held(kept: int, now: Record) -> None:
    found = judged_by(kept, now)
    assert (found.verdict, found.few_runs, found.reasons, found.suspect) == (Verdict.OK, kept, [], False)
    assert found.unsettled == ["baseline"], "the commit of the kept run may know more"
    for known in (judged_by(3, now), judged_by(kept, now, own=False)):
        assert known.few_runs is None
        assert known.verdict is Verdict.INCONCLUSIVE or known.suspect


@pytest.mark.parametrize("kept", [1, 2])
def test_a_slowdown_that_nothing_else_explains_is_seen_beside_few_runs_too(kept: int) -> None:
    first, again = judged_by(kept, seen(150)), judged_by(kept, seen(150, 149, 150, 151))
    assert (first.verdict, first.suspect, first.few_runs) == (Verdict.REGRESSED, True, None)
    assert again.verdict is (Verdict.INCONCLUSIVE if kept == 1 else Verdict.REGRESSED)
    assert again.few_runs is None
    assert [reason for reason in again.reasons if "single process" in reason] == again.reasons


def test_a_slow_first_reading_beside_few_runs_is_measured_again_whatever_disturbed_it() -> None:
    assert judged_by(1, seen(150, **BUSY)).suspect


@pytest.mark.parametrize(
    ("peak_bytes", "verdict"),
    [(None, Verdict.NEW), (4096, Verdict.OK), (2048, Verdict.REGRESSED), (8192, Verdict.IMPROVED)],
    ids=["nothing saved", "held", "hungrier", "lighter"],
)
def test_a_suspect_beside_few_runs_that_is_not_measured_again_has_the_verdict_without_times(
    peak_bytes: int | None, verdict: Verdict
) -> None:
    now, stored = seen(150, **BUSY), split(entry([replicate(100 * MS, peak_bytes=peak_bytes, **CALM)]))
    baseline = changed(stored, exact=stored.exact if peak_bytes is not None else None, times_are_own=True)
    first = judge(now, baseline, POLICY)
    assert first.suspect
    without_times = judge(now, changed(baseline, times=None), POLICY)
    assert unconfirmed(first, lambda: without_times, "no time left").verdict is verdict


def test_turns_with_the_commit_of_a_kept_run_decide_and_memory_does_all_the_same() -> None:
    turns = Paired(
        against="abc1234", screen=[1.5] * 3, confirm=[1.5, 1.49, 1.51, 1.5] * 3, control=[1.0] * 8, base_ns=1e8
    )
    by_turns = judged_by(1, seen(150, 150, 151, 152, paired=turns, **BUSY))
    assert (by_turns.verdict, by_turns.worse, by_turns.few_runs) == (Verdict.REGRESSED, ["latency"], None)
    hungrier = judged_by(1, seen(60, 60, peak_bytes=8192))
    assert (hungrier.verdict, hungrier.worse, hungrier.few_runs) == (Verdict.REGRESSED, ["memory"], 1)


def test_what_held_and_what_has_too_few_runs_is_said_in_one_line(snapshot: SnapshotAssertion) -> None:
    cases = [result(f"t.py::test_{at}", judgement=judged_by(1, seen(60))) for at in range(28)]
    assert what_was_compared(cases) == snapshot
    assert explain(cases[0], None) == snapshot
