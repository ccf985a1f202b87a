"""A run as GitHub Markdown: what needs looking at first, and nothing that a name could break."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from perflab.report.summary import markdown
from perflab.results.records import Judgement, Policy, Verdict
from perflab.results.result import Document, Result
from perflab.tables.escaping import bars_block, code, text_bars
from tests.harness.make import cuda_environment, document, entry, judge, quiet, record, replicate, result


def regressed(case: str = "t.py::test_slow", failure: str = "slow is slower than its baseline\nwhy: code") -> Result:
    now = record(replicate(130e6), fresh=quiet(130e6), case=case)
    return Result(case=case, outcome=now, judgement=judge(now, entry(), Policy()), failure=failure)


def cells(text: str) -> list[list[str]]:
    """The table as GitHub splits it: at every pipe that no backslash is before."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_a_run_reads_with_its_regressions_first_and_their_failures_to_unfold(snapshot: SnapshotAssertion) -> None:
    assert markdown(document(result("t.py::test_good"), regressed(), exitstatus=1)) == snapshot


def test_bars_are_as_long_as_their_numbers_and_no_name_ends_their_block() -> None:
    lines = text_bars(
        [("a", 4.0, "4 ms"), ("``` b", 1.0, "1 ms"), ("c", 0.0125, "12.5 µs"), ("d", 1e-9, "–"), ("e", 0, "0 s")]
    )
    assert lines == [
        f"a     {40 * '█'} 4 ms", f"``` b {10 * '█'} 1 ms", "c     ▏ 12.5 µs", "d     ▏ –", "e       0 s",
    ]  # fmt: skip
    (block,) = bars_block("title", [("```", 1.0, "x"), ("y" * 99, 2.0, "z\n```")])
    assert (block.split("\n")[0], block.split("\n")[-1], len(block.split("\n"))) == ("````text", "````", 5)
    assert bars_block("title", [("a", 1.0, "x")]) == []


def test_side_by_side_has_bars_of_letters_in_markdown(snapshot: SnapshotAssertion) -> None:
    levels = {"flash": 5e6, "math": 10e6}
    ones = [
        result(
            f"t.py::test_a[{name}]",
            outcome=record(replicate(ns), parameters={"impl": name}),
            judgement=Judgement(verdict=Verdict.OK, beside=["busy"] if name == "math" else []),
            side_by_side="impl",
        )
        for name, ns in levels.items()
    ]
    assert markdown(document(*ones)) == snapshot


def test_a_run_that_was_not_compared_with_baselines_names_none_and_says_first_with_what_it_was(
    snapshot: SnapshotAssertion,
) -> None:
    assert markdown(document(regressed(), baselines=None, preface=["against main (8009b65)"])) == snapshot


def test_what_failed_stands_before_what_is_only_unclear_and_the_rest_keeps_its_order() -> None:
    judged = [Verdict.OK, Verdict.NEW, Verdict.INCONCLUSIVE, Verdict.FAILED, Verdict.REGRESSED, Verdict.OK]
    run = [
        Result(case=f"t.py::test_{number}", judgement=Judgement(verdict=verdict))
        for number, verdict in enumerate(judged)
    ]
    assert [row[0] for row in cells(markdown(document(*run)))[2:]] == ["`4`", "`3`", "`2`", "`0`", "`1`", "`5`"]


def test_reasons_stand_with_the_verdict_and_are_no_markup() -> None:
    why = Judgement(verdict=Verdict.INCONCLUSIVE, reasons=["a|b <b>*bold*</b> `x`"])
    (row,) = cells(markdown(document(result("t.py::test_x", judgement=why))))[2:]
    assert row[-1] == r"inconclusive<br>a\|b &lt;b&gt;\*bold\*&lt;/b&gt; \`x\`"


@pytest.mark.parametrize("name", ["t[a|b]", "t[`a`]", "t[```]", "t[a\\|b]", "t[<b>]", "t[*a*_b_]", "t[é|x]"])
def test_a_name_with_a_pipe_or_a_backtick_stays_in_its_cell(name: str) -> None:
    text = markdown(document(regressed(f"t.py::test_{name}"), exitstatus=1))
    rows = cells(text)
    assert [len(row) for row in rows] == [6, 6, 6]
    shown = rows[2][0]
    if shown.startswith("`"):
        assert shown == f"`{name}`"
        assert not set("`|\\") & set(name)
    else:
        inner = shown.removeprefix("<code>").removesuffix("</code>")
        assert re.sub(r"&#(\d+);", lambda found: chr(int(found[1])), inner) == name
    assert "<b>" not in re.sub(r"`[^`]*`", "", text)


@given(st.text(min_size=1))
def test_code_never_breaks_a_table(text: str) -> None:
    shown = code(text)
    assert "\n" not in shown
    assert "|" not in shown
    assert shown.count("`") in (0, 2)


def test_a_failure_that_holds_fences_does_not_end_its_own_and_a_long_one_is_cut_at_its_beginning() -> None:
    text = markdown(document(regressed(failure="````\n" + "\n".join(f"line {n}" for n in range(200)) + "\n```")))
    assert "`````" not in text
    text = markdown(document(regressed(failure="````")))
    assert "`````text\n````\n`````\n" in text
    text = markdown(document(regressed(failure="\n".join(f"line {n}" for n in range(200)))))
    assert "... (120 lines before)\nline 120\n" in text
    assert "line 199\n" in text


def test_every_environment_has_its_line(snapshot: SnapshotAssertion) -> None:
    gpu = result("t.py::test_gpu", outcome=record(environment=cuda_environment()))
    assert markdown(document(result("t.py::test_cpu"), gpu)) == snapshot


@pytest.mark.parametrize(
    "run",
    [
        document(exitstatus=5),
        document(exitstatus=2, other_failures=["t_x.py"]),
        document(result(), exitstatus=2),
        document(result(), exitstatus=-9),
        document(result(), exitstatus=1),
    ],
    ids=["no case", "others failed", "interrupted", "ended early", "failed without a case"],
)
def test_a_run_that_was_no_success_says_why_where_the_table_does_not(
    run: Document, snapshot: SnapshotAssertion
) -> None:
    assert markdown(run) == snapshot
