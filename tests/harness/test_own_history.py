"""A machine's own history: readings join only where they agree, and no two environments share one."""

from __future__ import annotations

from pathlib import Path

import pytest

from perflab.data import changed
from perflab.measured.judge.local_history import KEPT_REPLICATES, Reading, Step, next_step
from perflab.measured.records import Entry
from perflab.measured.store.baselines import Baselines
from perflab.records import Environment, Policy
from tests.harness.make import CASE, MS, cuda_environment, entry, environment, replicate

POLICY = Policy()
CLEAN, OTHER = "a" * 40, "b" * 40


def history(*medians_ms: float, commit: str | None = CLEAN, environment_: Environment | None = None) -> Entry:
    """What a machine has kept of so many runs; one of a single reading is also what a run brings."""
    replicates = [replicate(one * MS, counts={"instructions": 10}) for one in medians_ms]
    return entry(replicates, commit=commit, environment=environment_ or environment())


def medians_ms(of: Step) -> list[float]:
    return [one.median_ns / MS for one in of.entry.replicates]


def test_the_first_reading_begins_a_history() -> None:
    assert next_step(None, history(100), POLICY) == Step(history(100), is_begun=True)


@pytest.mark.parametrize("commit", [CLEAN, OTHER, None])
def test_a_reading_that_the_judge_finds_unchanged_joins_whatever_its_commit(commit: str | None) -> None:
    step = next_step(history(100, 101), history(102, commit=commit), POLICY)
    assert medians_ms(step) == [100, 101, 102]
    assert (step.is_begun, step.begun_anew, step.left_out) == (False, None, None)


def test_a_full_history_takes_no_more() -> None:
    full = history(*[100.0] * KEPT_REPLICATES)
    assert next_step(full, history(100.5), POLICY).entry == full


@pytest.mark.parametrize("commit", [OTHER, CLEAN + "+dirty", None])
def test_a_faster_reading_takes_the_place_of_a_history_of_other_code_and_that_is_said(commit: str | None) -> None:
    step = next_step(history(100, 100), history(50, commit=commit), POLICY)
    assert medians_ms(step) == [50]
    assert step.begun_anew == "100 ms before, 50.0 ms now"


def test_a_single_slow_reading_of_the_same_code_gives_way_to_a_faster_one() -> None:
    step = next_step(history(7.92), history(0.0113), POLICY)
    assert medians_ms(step) == [0.0113]
    assert step.begun_anew == "7.92 ms before, 11.3 µs now"


@pytest.mark.parametrize(("commit", "said"), [(CLEAN, "100 ms before, 300 ms now"), (OTHER, None)])
def test_a_slower_reading_is_left_out_and_of_the_same_code_that_is_said(commit: str, said: str | None) -> None:
    step = next_step(history(100), history(300, commit=commit), POLICY)
    assert medians_ms(step) == [100]
    assert (step.begun_anew, step.left_out) == (None, said)


def test_a_faster_reading_of_the_same_code_does_not_outvote_several() -> None:
    step = next_step(history(100, 100), history(50), POLICY)
    assert medians_ms(step) == [100, 100]
    assert step.left_out == "100 ms before, 50.0 ms now"


def test_a_reading_of_the_same_code_that_is_a_little_off_is_left_out_without_a_word() -> None:
    step = next_step(history(100, 100), history(115), POLICY)
    assert (medians_ms(step), step.left_out) == ([100, 100], None)


def test_a_history_that_was_mixed_once_is_begun_anew() -> None:
    step = next_step(history(7.92, 0.0113, 0.0112), history(0.0113), POLICY)
    assert medians_ms(step) == [0.0113]
    assert step.begun_anew == "11.3 µs before, 11.3 µs now"


def test_times_below_the_floor_agree_however_far_apart_they_are() -> None:
    assert medians_ms(next_step(history(0.001, 0.002), history(0.0015), POLICY)) == [0.001, 0.002, 0.0015]


def test_more_instructions_at_the_same_time_are_no_reason_to_leave_a_reading_out() -> None:
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
        assert times is not None
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
