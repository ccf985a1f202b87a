"""Results files: read back as they were written, refused by name, and parts of a run made one."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perflab.base.data import changed, to_json
from perflab.base.errors import DocumentError
from perflab.report.gather import Source, gather
from perflab.report.summary import other_failures
from perflab.results.documents import in_order, merge, read_document, read_journal, weave, write_document
from perflab.results.measured import ComparedCase
from perflab.results.predicted import DryRun, PredictedCase
from perflab.results.records import Change, Judgement, Verdict
from perflab.results.result import Document, Result
from perflab.tables.lines import names_of
from tests.harness.make import document, environment, predicted_result, prediction, record, replicate, result

NOW = datetime(2025, 11, 20, 12, 0, tzinfo=UTC)


def failed(case: str, text: str = "came out wrong") -> Result:
    return Result(case=case, judgement=Judgement(verdict=Verdict.FAILED), failure=text)


def part(*results: Result, minute: int = 0, **changes: Any) -> Document:
    status = 1 if any(result.failure for result in results) else 0
    given = {"created": NOW + timedelta(minutes=minute), "exitstatus": status, **changes}
    return document(*results, **given)


# --- files -------------------------------------------------------------------------------------------------------


def test_a_document_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written = part(result("a"), failed("b"), collected=["a", "b", "c"], other_failures=["d"])
    path = tmp_path / "new" / "perf.json"
    write_document(written, path)
    assert read_document(path) == written
    assert [file.name for file in path.parent.iterdir()] == ["perf.json"]
    assert json.loads(path.read_text())["created"].startswith("2025-11-20T12:00:00")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "perf.json is damaged at line 1, column 1: Expecting value"),
        ('{"schema": 1,\n "results": [', "perf.json is damaged at line 2, column 14: Expecting value"),
        ("\udcff", "perf.json is damaged: not UTF-8 at byte 0"),
        ('{"schema": 99, "what": "ever"}', "perf.json was written by a newer perflab\n  -> upgrade perflab"),
        ('{"schema": 3}', "perf.json has schema 3, and perflab reads schema 4 only\n  -> write it again"),
        ("[]", "not a file of perflab's results: Expected `object`, got `array`"),
        ('{"benchmarks": []}', "not a file of perflab's results: Object missing required field `schema`"),
        ('{"schema": 4, "environments": {}, "cases": {}}', "not a file of perflab's results: Object contains unknown"),
        ("[" * 100_000, "perf.json"),
    ],
)
def test_a_damaged_newer_or_foreign_file_is_refused_by_name_and_place(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "perf.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(DocumentError) as caught:
        read_document(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n  -> " in str(caught.value)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"exitstatus": "0"}, "`$.exitstatus`"),
        ({"created": "2025-11-20T12:00:00"}, "`$.created`"),
        ({"results": [{"case": "a", "judgement": {"verdict": "fine"}}]}, "`$.results[0].judgement.verdict`"),
        ({"results": [{"case": "a", "judgement": {"verdict": "ok"}, "x": 1}]}, "`$.results[0]`"),
    ],
)
def test_a_field_that_will_not_do_is_named(tmp_path: Path, change: dict[str, Any], place: str) -> None:
    path = tmp_path / "perf.json"
    write_document(part(result("a")), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DocumentError) as caught:
        read_document(path)
    assert place in str(caught.value)


def test_a_missing_file_and_a_directory_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"there is no file .*none.json\n  -> name a file that pytest wrote"):
        read_document(tmp_path / "none.json")
    with pytest.raises(DocumentError, match=r"cannot read .*: Is a directory"):
        read_document(tmp_path)


# --- parts of a run ----------------------------------------------------------------------------------------------


def test_of_a_case_in_several_parts_the_one_written_last_counts_in_whichever_order_they_are_given() -> None:
    early, late = part(failed("a"), result("b")), part(result("a"), minute=1)
    for parts in ([early, late], [late, early]):
        merged = merge(parts)
        assert {one.case: one.failure for one in merged.results} == {"a": None, "b": None}
        assert merged.exitstatus == 0
        assert merged.created == late.created
    for parts in ([part(failed("a"), result("a"))], [part(failed("a")), part(result("a"))]):  # and of one moment
        assert merge(parts).results == [result("a")]


SLOWER = Change(before=1.0, now=2.0, ratio=2.0, limit=1.05)
"""Of time, or of a count."""


def regressed(**changes: Any) -> Result:
    judgement = Judgement(verdict=Verdict.REGRESSED, worse=list(changes), **changes)
    return result("a", judgement=judgement, failure="worse")


@pytest.mark.parametrize("verdict", ["skipped", "inconclusive", "new", "unchecked", "incomparable", "oom"])
def test_a_rerun_that_judged_nothing_takes_no_verdict_back(verdict: str) -> None:
    for found in (result("a", Verdict.REGRESSED, failure="worse"), result("a", Verdict.IMPROVED)):
        merged = merge([part(found), part(result("a", Verdict(verdict)), minute=1)])
        assert (merged.results, merged.exitstatus) == ([found], 1 if found.failure else 0)
    if verdict == "skipped":
        assert merge([part(failed("a")), part(result("a", Verdict.SKIPPED), minute=1)]).exitstatus == 1
        beside = part(result("a"), exitstatus=1, other_failures=["a"])  # its teardown failed
        assert merge([beside, part(result("a", Verdict.SKIPPED), minute=1)]).exitstatus == 1
    else:  # the test ran to its end, which is all that had gone wrong
        assert merge([part(failed("a")), part(result("a", Verdict(verdict)), minute=1)]).exitstatus == 0


@pytest.mark.parametrize(
    "worse", [{"latency": SLOWER}, {"memory": SLOWER}, {"counts": {"operators": SLOWER, "allocations": SLOWER}}]
)
def test_a_rerun_that_did_not_compare_what_got_worse_does_not_take_it_back(worse: dict[str, Any]) -> None:
    found, same = regressed(**worse), Change(before=1.0, now=1.0, ratio=1.0)
    less = Judgement(verdict=Verdict.OK, counts={"operators": same})  # as --perf-check=exact judges on another machine
    assert merge([part(found), part(result("a", judgement=less), minute=1)]).results == [found]
    ungated = {name: changed(same, limit=None) for name in ("operators", "allocations")}
    whole = changed(less, latency=same, memory=same, counts={name: changed(same, limit=1.0) for name in ungated})
    for lacks, here in (("latency", changed(whole, few_runs=1)), ("counts", changed(whole, counts=ungated))):
        taken_back = merge([part(found), part(result("a", judgement=here), minute=1)]).exitstatus == 0
        assert taken_back == (lacks not in worse)
    assert merge([part(found), part(result("a", judgement=whole), minute=1)]).exitstatus == 0


def test_a_regression_outlives_reruns_that_fail_by_themselves_or_do_not_run() -> None:
    found = result("a", Verdict.REGRESSED, failure="worse")
    reruns = [failed("a"), result("a", Verdict.INCONCLUSIVE), result("a", Verdict.SKIPPED)]
    parts = [part(one, minute=minute) for minute, one in enumerate([found, *reruns])]
    assert merge(parts).results == [found]
    assert merge([*parts, part(result("a"), minute=9)]).exitstatus == 0


def test_shards_stand_in_the_order_in_which_all_cases_were_collected_or_else_are_given() -> None:
    everything = ["a", "b", "c", "d"]
    one = part(result("b"), result("d"), collected=everything)
    two = part(result("a"), result("c"), collected=everything)
    for parts in ([one, two], [two, one]):
        assert [row.case for row in merge(parts).results] == everything
    one, two = part(result("a1"), result("a2")), part(result("b1"), result("b2"))
    assert [row.case for row in merge([two, one]).results] == ["b1", "b2", "a1", "a2"]


def test_the_order_of_results_and_of_what_stands_before_the_table_is_kept() -> None:
    parts = [part(preface=["against main"]), part(preface=["against main", "and more"], minute=1)]
    assert merge(parts).preface == ["against main", "and more"]
    results = {case: result(case) for case in "cax"}
    assert [one.case for one in in_order(results, ["a", "b", "c"])] == ["a", "x", "c"]


def test_what_a_run_left_out_that_stopped_at_a_failure_fails_the_whole_until_it_has_run() -> None:
    stopped = changed(part(failed("a"), collected=["a", "b", "c"]), unreached=["b"])  # c was not selected
    parts = [stopped, part(result("a"), minute=1, collected=["a", "b", "c"])]
    merged = merge(parts)
    assert (merged.exitstatus, merged.unreached) == (1, ["b"])
    assert other_failures(merged) == ["the run stopped before 1 case, not run: b"]
    assert merge([*parts, part(result("b"), minute=2)]).exitstatus == 0


def test_merging_what_is_merged_changes_nothing() -> None:
    merged = merge([part(result("a"), collected=["a", "b"]), part(failed("b"), minute=1, collected=["a", "b"])])
    assert merge([merged]) == merged
    assert merge([merged, merged]) == merged


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ([part(result("a")), part(result("b"))], 0),
        ([part(result("a")), part(failed("b"))], 1),
        ([part(failed("a")), part(result("a"), minute=1)], 0),
        ([part(result("a")), part(failed("a"), minute=1)], 1),
        ([part(result("a")), part(exitstatus=5)], 0),  # a shard into which no case fell
        ([part(exitstatus=5), part(exitstatus=5)], 5),
        ([part(result("a"), exitstatus=2), part(result("b"))], 2),  # interrupted
        ([part(result("a")), part(failed("b"), exitstatus=3)], 3),
        ([part(result("a"), exitstatus=-9), part(result("a"), minute=1)], -9),
        # What failed beside the cases' results is taken back by a result of the same test, and by nothing else.
        ([part(result("a"), exitstatus=1, other_failures=["plain"]), part(result("a"), minute=1)], 1),
        ([part(result("a"), exitstatus=1, other_failures=["a"]), part(result("a"), minute=1)], 0),
        ([part(result("a"), exitstatus=1), part(result("a"), minute=1)], 1),  # too little covered, say
    ],
)
def test_the_exit_status_is_that_of_one_run(parts: list[Document], status: int) -> None:
    assert merge(parts).exitstatus == status


# --- orders ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("orders", "woven"),
    [
        ([], ""),
        (["abc"], "abc"),
        (["", "ab"], "ab"),
        (["ac", "abcd"], "abcd"),
        (["c", "abcd"], "abcd"),
        (["ab", "cd"], "abcd"),
        (["bd", "ac"], "bdac"),  # nobody knows better
        (["ab", "ba"], "ab"),
        (["ac", "ab", "bc"], "abc"),
        (["aab"], "ab"),
    ],
)
def test_orders_are_woven_into_one(orders: list[str], woven: str) -> None:
    assert "".join(weave(orders)) == woven


cases = st.permutations(list("abcdefgh"))


@given(cases, st.lists(st.sets(st.sampled_from("abcdefgh")), max_size=4))
def test_the_order_of_the_whole_is_found_again_from_any_parts_once_one_part_knows_it(
    whole: list[str], parts: list[set[str]]
) -> None:
    orders = [[case for case in whole if case in chosen] for chosen in parts]
    assert weave([whole, *orders]) == whole


@given(st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True), max_size=4))
def test_weaving_loses_nothing_and_repeats_nothing(orders: list[list[str]]) -> None:
    assert sorted(weave(orders)) == sorted({case for order in orders for case in order})


# --- predictions -----------------------------------------------------------------------------------------------


def told(merged: Document) -> list[tuple[str, str, float | None]]:
    """Case, GPU (if any) and number of each result."""
    found: list[tuple[str, str, float | None]] = []
    for one in merged.results:
        if isinstance(one.outcome, PredictedCase):
            found.append((one.case, one.outcome.now.gpu, float(one.outcome.now.peak_bytes)))
        else:
            found.append((one.case, "", one.record.summary.median_ns if one.record and one.record.summary else None))
    return found


def predicted(case: str, peak_bytes: int = 1, gpu: str = "h100", **changes: Any) -> Result:
    return predicted_result(prediction(peak_bytes=peak_bytes, gpu=gpu), case=case, **changes)


def test_a_prediction_takes_the_place_of_the_same_prediction_and_of_nothing_else() -> None:
    measured = result("a", outcome=record(replicate(5.0)))
    laptop = [part(predicted("a", 1), predicted("b", 2), minute=1), part(predicted("a", 3), minute=2)]
    merged = merge([part(measured), *laptop, part(predicted("a", 4, gpu="l4"), minute=3)])
    assert told(merged) == [("a", "", 5.0), ("a", "h100", 3.0), ("a", "l4", 4.0), ("b", "h100", 2.0)]
    assert merge([merged]) == merge([merged, merged]) == merged


def test_neither_takes_back_what_failed_the_other_way() -> None:
    worse, broken = part(predicted("a", failure="needs more")), part(failed("a"))
    assert merge([worse, part(result("a"), minute=1)]).exitstatus == 1
    assert merge([worse, part(predicted("a"), minute=1)]).exitstatus == 0
    both = merge([broken, part(predicted("a", 7), minute=1)])
    assert (told(both), both.exitstatus) == ([("a", "", None), ("a", "h100", 7.0)], 1)
    assert merge([both, part(result("a"), minute=2)]).exitstatus == 0


def test_a_prediction_that_came_to_nothing_takes_the_place_of_a_prediction_alone() -> None:
    worse = part(result("a", Verdict.REGRESSED, failure="slower"))
    skipped = Result(case="a", judgement=Judgement(verdict=Verdict.SKIPPED), place="h100")
    both = merge([worse, part(skipped, minute=1)])
    assert ([one.failure for one in both.results], both.exitstatus) == (["slower", None], 1)
    broken = part(changed(failed("a"), place="h100"))
    assert merge([broken, part(result("a"), minute=1)]).exitstatus == 1
    assert merge([broken, part(predicted("a"), minute=1)]).exitstatus == 0
    more = predicted("a", failure="needs more")
    assert merge([part(more), part(skipped, minute=1)]).results == [more]


def test_a_dry_run_and_a_trace_for_the_same_gpu_stand_beside_each_other() -> None:
    traced = predicted("a", failure="needs more")
    dry = predicted_result(prediction(dry_run=DryRun(asked_bytes=1, kernels={})), case="a")
    both = merge([part(traced), part(dry, minute=1)])
    assert (both.results, both.exitstatus) == ([traced, dry], 1)
    crashed = changed(failed("a"), place="h100-dry-run")
    assert merge([both, part(crashed, minute=2)]).results == [traced, crashed]


# --- A/B comparisons -------------------------------------------------------------------------------------------


def test_a_comparison_does_not_take_back_what_the_baseline_says() -> None:
    """Of memory, which no turns look at again: the workflow for a GPU merges these two."""
    worse = result("a", Verdict.REGRESSED, failure="hungrier")
    in_turns = result("a", outcome=ComparedCase(case="a", environment=environment()))
    both = merge([part(worse), part(in_turns, minute=1)])
    assert (both.results, both.exitstatus) == ([worse, in_turns], 1)
    assert merge([both, part(result("a"), minute=2)]).exitstatus == 0
    assert names_of(both.results) == ["a", "a A/B"]
    (run,) = gather([Source("merged", both)]).runs
    assert [(case.name, case.variant) for case in run.cases] == [("a", ""), ("a A/B", "A/B")]


def test_a_comparison_that_came_to_nothing_is_taken_back_by_a_comparison_alone() -> None:
    broken = part(changed(failed("a"), compared=True))
    assert merge([broken, part(result("a"), minute=1)]).exitstatus == 1
    in_turns = result("a", outcome=ComparedCase(case="a", environment=environment()))
    assert merge([broken, part(in_turns, minute=1)]).exitstatus == 0


def test_a_prediction_belongs_to_no_study_whose_findings_could_be_lost() -> None:
    measured = part(result("a", study="s"), findings={"s": ["a is fast"]})
    assert merge([measured, part(predicted("b", study="s"), minute=1)]).findings == {"s": ["a is fast"]}


def test_a_journal_is_of_a_failed_run_if_a_case_of_it_failed(tmp_path: Path) -> None:
    for cases, exitstatus in (([result("a"), failed("b")], 1), ([result("a")], 0)):
        (tmp_path / "run.jsonl").write_bytes(b"".join(to_json(one) + b"\n" for one in cases))
        assert read_journal(tmp_path / "run.jsonl")[0].exitstatus == exitstatus
