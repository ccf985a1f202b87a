"""What is said of skipped cases: a line a reason, and a command that runs them."""

from __future__ import annotations

from syrupy.assertion import SnapshotAssertion

from perflab.report.summary import markdown, summary
from perflab.results.records import Judgement, Shortage, Verdict
from perflab.results.result import Result
from perflab.tables.failing import not_run
from perflab.tables.view import View
from tests.harness.make import document, result

COMMAND = "pytest -m perf --model=small"
GIB = 2**30


def skipped(name: str, *short_of: Shortage, reason: str = "not today") -> Result:
    judgement = Judgement(verdict=Verdict.SKIPPED, reasons=[reason], short_of=list(short_of))
    return Result(case=f"t.py::test_{name}", judgement=judgement)


def late(name: str, needed_s: float) -> Result:
    return skipped(name, Shortage(of="--perf-total-budget", needed=needed_s, given=155.0), reason=f"needs {needed_s}")


def too_long(name: str, needed_s: float, of: str = "--perf-budget") -> Result:
    return skipped(name, Shortage(of=of, needed=needed_s, given=15.0), reason=f"needs {needed_s} s of 15.0 s")


def test_cases_that_came_too_late_are_one_line_and_the_command_has_room_for_all_of_them(
    snapshot: SnapshotAssertion,
) -> None:
    run = document(*(late(f"case[{n}]", 20.0 + n) for n in range(5)), command=COMMAND, total_budget_s=155.0)
    assert not_run(run) == snapshot


def test_what_nobody_knows_the_cost_of_takes_the_limit_away(snapshot: SnapshotAssertion) -> None:
    run = document(late("a", 20.0), late("b", 0.0), command=COMMAND, total_budget_s=155.0)
    assert not_run(run) == snapshot


def test_cases_that_are_too_long_name_the_budget_that_the_longest_needs(snapshot: SnapshotAssertion) -> None:
    run = document(too_long("a", 28.4), too_long("b", 126.9), command=COMMAND)
    said = "2 not run: up to 2.12 min needed, more than --perf-budget (15.0 s) (a, b)"
    assert not_run(run) == [(said, f"{COMMAND} --perf-budget=127")]
    with_total = document(too_long("a", 28.4), command=COMMAND, total_budget_s=540.0)
    assert not_run(with_total)[0][1] == snapshot


def test_what_no_option_helps_has_no_command(snapshot: SnapshotAssertion) -> None:
    run = document(
        too_long("marked", 28.4, of="the mark's budget"),
        skipped("large", Shortage(of="memory", needed=57 * GIB, given=19 * GIB)),
        skipped("larger", Shortage(of="memory", needed=60 * GIB, given=18 * GIB)),
        skipped(
            "both",
            Shortage(of="--perf-budget", needed=20.0, given=15.0),
            Shortage(of="memory", needed=57 * GIB, given=19 * GIB),
        ),
        command=COMMAND,
    )
    assert not_run(run) == snapshot


def test_what_has_a_line_of_its_own_already_is_not_named_again_and_other_reasons_than_time_are_not_repeated(
    snapshot: SnapshotAssertion,
) -> None:
    run = document(late("a", 20.0), skipped("b", reason="no GPU"), command=COMMAND, total_budget_s=155.0)
    assert not_run(run, listed=True) == snapshot
    listed = [line.text for line in summary(run, view=View(every=True))]
    assert sum("no GPU" in text for text in listed) == 1
    assert "no GPU" in " ".join(line.text for line in summary(run)), "once in both"


def test_other_reasons_are_one_line_each_however_many_cases_have_them() -> None:
    run = document(*(skipped(f"fused[{n}]", reason="no GPU") for n in range(4)), skipped("other"), command=COMMAND)
    assert not_run(run) == [("4 skipped: no GPU", None), ("1 skipped: not today (other)", None)]


def test_a_summary_ends_with_what_was_not_run_and_lists_it_where_every_case_is_asked_for(
    snapshot: SnapshotAssertion,
) -> None:
    run = document(result("t.py::test_good"), *(late(f"case[{n}]", 20.0) for n in range(4)), command=COMMAND)
    shown = [line.text for line in summary(run)]
    assert shown[-3:] == snapshot
    assert not any("case[0]" in text for text in shown)
    listed = [line.text for line in summary(run, view=View(every=True))]
    assert [text.split()[0] for text in listed if "skipped: needs 20.0" in text] == [f"case[{n}]" for n in range(4)]
    assert listed[-3:] == shown[-3:]


def test_markdown_says_the_same_in_a_list(snapshot: SnapshotAssertion) -> None:
    run = document(result("t.py::test_good"), *(late(f"case[{n}]", 20.0) for n in range(4)), command=COMMAND)
    assert markdown(run) == snapshot
    assert "`case[0]`" in markdown(run, view=View(every=True))


def test_a_run_of_skipped_cases_alone_has_no_empty_table() -> None:
    shown = [line.text for line in summary(document(skipped("a"), skipped("b")))]
    assert shown == ["2 skipped: not today (a, b)", "2 skipped"]
