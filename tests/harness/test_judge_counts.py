"""Judging counts: exact where they are exact, silent where they are not, and never called slower."""

from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion

from perflab.judging.counts import exactly_worse, judge_counts
from perflab.measured.report.failure import explain
from perflab.measured.report.table import table
from perflab.results.measured import Entry
from perflab.results.measurement import Replicate
from perflab.results.records import Judgement, Policy, Uncompared, Verdict
from perflab.results.result import Result
from tests.harness.make import CASE, MS, entry, judge, quiet, record, replicate

POLICY = Policy()


def now(median_ns: float = 100 * MS, **counts: int) -> Replicate:
    return replicate(median_ns, counts=counts)


def before(**counts: int) -> Entry:
    """A baseline of three replicates that agree."""
    return entry(quiet(100 * MS, counts=counts))


def differing(name: str, *values: int) -> Entry:
    return entry([replicate(100 * MS, counts={name: value}) for value in values])


def test_one_operator_more_has_regressed_at_once_and_nothing_is_said_of_time(snapshot: SnapshotAssertion) -> None:
    judgement = judge(record(now(operators=113, allocations=40)), before(operators=112, allocations=40), POLICY)
    assert judgement.verdict is Verdict.REGRESSED
    assert judgement.worse == ["counts"]
    assert not judgement.suspect
    assert (judgement.counts["operators"].before, judgement.counts["operators"].now) == (112, 113)
    text = explain(Result(case=CASE, outcome=record(), judgement=judgement), "accept")
    assert text == snapshot


COUNTED: dict[str, tuple[Replicate, Entry, Verdict]] = {
    "the same": (now(operators=112), before(operators=112), Verdict.OK),
    "fewer": (now(operators=100), before(operators=112), Verdict.IMPROVED),
    "more of one and fewer of another": (
        now(operators=100, allocations=2),
        before(operators=112, allocations=1),
        Verdict.REGRESSED,
    ),
    "the first of a kind": (now(graph_breaks=1), before(graph_breaks=0), Verdict.REGRESSED),
    "more than replicates that disagree": (
        now(operators=200),
        differing("operators", 112, 112, 113),
        Verdict.OK,
    ),
    "more than replicates of which one has none": (
        now(operators=200),
        entry([now(operators=112), now(operators=112), now()]),
        Verdict.OK,
    ),
}


@pytest.mark.parametrize(("counted", "baseline", "verdict"), COUNTED.values(), ids=COUNTED)
def test_more_of_what_all_replicates_agree_on_has_regressed(
    counted: Replicate, baseline: Entry, verdict: Verdict
) -> None:
    judgement = judge(record(counted), baseline, POLICY)
    assert (judgement.verdict, judgement.worse) == (verdict, ["counts"] * (verdict is Verdict.REGRESSED))
    assert all(change.ratio <= 2.0 for change in judgement.counts.values()), "also where there were none"


@pytest.mark.parametrize("baseline", [before(), before(allocations=3), entry([])])
def test_a_count_that_the_baseline_does_not_have_is_ignored(baseline: Entry) -> None:
    assert judge(record(now(operators=112)), baseline, POLICY).counts == {}


def test_a_count_that_not_all_processes_took_was_not_compared() -> None:
    judgement = judge(record(now()), before(operators=112), POLICY)
    assert (judgement.verdict, judgement.counts) == (Verdict.OK, {})
    assert judgement.not_compared == [Uncompared("operators", "not counted here")]
    changes, missed = judge_counts([now(operators=112), now()], {"operators": [112]}, gated=True)
    assert (changes, missed) == ({}, [Uncompared("operators", "not counted here")])


def test_fresh_processes_speak_where_there_are_some_of_instructions_too() -> None:
    suspicious = record(now(130 * MS, operators=113), fresh=quiet(100 * MS, counts={"operators": 112}))
    assert judge(suspicious, before(operators=112), POLICY).verdict is Verdict.OK
    fresh = [replicate(100 * MS, counts={"instructions": count}) for count in (2_000_000, 1_900_000)]
    judgement = judge(record(now(instructions=2_000_000), fresh=fresh), before(instructions=1_000_000), POLICY)
    assert judgement.worse == ["counts"]


@pytest.mark.parametrize(("old", "new"), [([113], [112, 114]), ([112, 112], [112, 113, 112]), ([5, 6], [6, 7])])
def test_processes_that_disagree_gate_nothing_where_they_overlap_and_it_is_said(
    old: list[int], new: list[int], snapshot: SnapshotAssertion
) -> None:
    changes, missed = judge_counts([now(operators=count) for count in new], {"operators": old}, gated=True)
    assert changes == {}
    (one,) = missed
    assert one.reason == snapshot


def test_a_count_that_rose_in_every_process_has_regressed_though_they_disagree_and_its_size_is_shown() -> None:
    fresh = [replicate(130 * MS, counts={"operators": count}) for count in (7, 8, 7)]
    one = record(now(130 * MS, operators=8), fresh=fresh)
    judgement = judge(one, before(operators=5), POLICY)
    assert judgement.worse == ["latency", "counts"]
    assert judgement.not_compared == []
    text = explain(Result(case=CASE, outcome=one, judgement=judgement), "accept")
    row = ["operators", "5", "7", "+2", "+40.0%…+60.0%", "exact", "failed"]
    assert row in [line.split() for line in text.splitlines()]


def test_a_count_that_the_other_side_lacks_is_named_where_that_side_is_measured_too() -> None:
    def missed(lacking: str | None, *, gated: bool = True) -> list[Uncompared]:
        return judge_counts([now(operators=500)], {}, gated=gated, lacking=lacking)[1]

    assert missed("not counted there") == [Uncompared("operators", "not counted there")]
    assert missed("not counted there", gated=False) == []
    assert missed(None) == [], "a baseline does not keep what was not alike in its processes"


def test_a_count_on_which_the_other_side_s_processes_disagree_counts_beyond_what_they_disagree_by() -> None:
    told = "different from process to process there (100 to 103)"
    for operators, expected in ((106, [Uncompared("operators", told)]), (107, [])):
        changes, missed = judge_counts([now(operators=operators)] * 2, {"operators": [100, 103]}, gated=True)
        assert missed == expected
        assert [one.is_past_limit for one in changes.values()] == [True] * (not expected)
    assert judge_counts([now(operators=500)], {"operators": [100, 101]}, gated=False) == ({}, [])


def test_a_slow_case_that_also_does_more_is_measured_again_and_both_are_named(snapshot: SnapshotAssertion) -> None:
    assert judge(record(now(130 * MS, operators=113)), before(operators=112), POLICY).suspect
    again = record(now(130 * MS, operators=113), fresh=quiet(130 * MS, counts={"operators": 113}))
    judgement = judge(again, before(operators=112), POLICY)
    assert judgement.worse == ["latency", "counts"]
    assert explain(Result(case=CASE, outcome=again, judgement=judgement), "accept") == snapshot


def test_reported_only_a_count_that_rose_is_shown_and_fails_nothing() -> None:
    judgement = judge(record(now(operators=113)), before(operators=112), Policy(gate_counts=False))
    assert judgement.verdict is Verdict.OK
    assert judgement.counts["operators"].limit is None
    assert "  operators 112 -> 113" in shown(judgement)


def shown(judgement: Judgement) -> list[str]:
    return [line.text for line in table([Result(case=CASE, outcome=record(), judgement=judgement)])]


def test_the_table_shows_counts_that_changed_and_no_others() -> None:
    changed = judge(record(now(operators=1118, allocations=7)), before(operators=1112, allocations=7), POLICY)
    assert shown(changed)[2:] == ["  operators 1,112 -> 1,118"]
    assert shown(judge(record(now(operators=112)), before(operators=112), POLICY))[2:] == []


def test_a_failure_has_a_row_for_each_count_that_changed() -> None:
    judgement = judge(
        record(now(operators=118, host_syncs=0, allocations=7)),
        before(operators=112, host_syncs=2, allocations=7),
        POLICY,
    )
    rows = explain(Result(case=CASE, outcome=record(), judgement=judgement), "accept").splitlines()
    assert [row.split() for row in (rows[2], rows[4])] == [
        ["operators", "112", "118", "+6", "exact", "exact", "failed"],
        ["host", "syncs", "2", "0", "-2", "exact", "exact"],
    ]


# --- instructions: not quite exact ---------------------------------------------------------------------------------


def test_a_few_instructions_are_noise_and_do_not_delay_what_is_exact() -> None:
    judgement = judge(record(now(instructions=1_009_000)), before(instructions=1_000_000), POLICY)
    assert judgement.verdict is Verdict.OK
    assert shown(judgement)[2:] == []
    judgement = judge(record(now(instructions=200_000, operators=3)), before(instructions=100_000, operators=2), POLICY)
    assert not judgement.suspect
    assert exactly_worse(judgement) == ["counts"]


def test_many_more_instructions_are_believed_once_fresh_processes_say_so() -> None:
    first = judge(record(now(instructions=1_100_000)), before(instructions=1_000_000), POLICY)
    assert first.suspect
    assert exactly_worse(first) == []
    again = record(now(instructions=1_100_000), fresh=quiet(100 * MS, counts={"instructions": 1_100_500}))
    judgement = judge(again, before(instructions=1_000_000), POLICY)
    assert judgement.worse == ["counts"]
    text = explain(Result(case=CASE, outcome=again, judgement=judgement), "accept")
    row = ["instructions", "1,000,000", "1,100,500", "+10.1%", "–", "+1%", "failed"]
    assert row in [line.split() for line in text.split("\n")]


def test_a_few_thousand_instructions_more_or_less_are_noise_however_short_the_call_is() -> None:
    for instructions in (18_000, 24_000, 35_000):
        judgement = judge(record(now(instructions=instructions)), before(instructions=25_000), POLICY)
        assert (judgement.verdict, judgement.suspect) == (Verdict.OK, False)
    assert judge(record(now(instructions=36_000)), before(instructions=25_000), POLICY).suspect
    assert judge(record(now(instructions=14_000)), before(instructions=25_000), POLICY).verdict is Verdict.IMPROVED


@pytest.mark.parametrize("baseline", [differing("instructions", 2_000_000, 2_024_000), differing("instructions", 1)])
def test_instructions_of_a_baseline_that_does_not_know_them_well_are_not_gated(baseline: Entry) -> None:
    assert judge(record(now(instructions=9_000_000)), baseline, POLICY).counts == {}
