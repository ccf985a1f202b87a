"""What is concluded of cases that gave no numbers: nothing that the head did wrong is passed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from perflab.compared.comparison import HEAD, Compared, Comparison
from perflab.compared.judge.paired import PairedPolicy
from perflab.compared.rounds import CaseRound
from perflab.compared.run.conclusions import conclude
from perflab.compared.sides.checkout import Tree
from perflab.compared.sides.messages import Ended
from perflab.records import Verdict
from perflab.results import Result

POLICY = PairedPolicy()
MAIN = Tree("main", Path())


def concluded(*rounds: CaseRound, confirming: bool = False) -> Result:
    """Of one case after these rounds, of which the last one may be of its confirming."""
    one = Compared("case")
    for number, found in enumerate(rounds):
        one.add(found, POLICY, confirming=confirming and number == len(rounds) - 1)
    (result,) = conclude(Comparison(cases={"case": one}), MAIN, POLICY, {}).values()
    return result


def ended(first: str | None = None, **outcomes: str) -> CaseRound:
    """A round in which the sides' tests ended so, without any turns."""
    ends = {side: Ended(case="case", outcome=outcome, text=f"{side} text") for side, outcome in outcomes.items()}
    return CaseRound(ended=ends, first=first)


@pytest.mark.parametrize("base", ["died", "failed", "passed", "skipped", "oom"])
@pytest.mark.parametrize("head", ["failed", "died"])
def test_a_head_that_fails_fails_its_test_whatever_the_base_does(head: str, base: str) -> None:
    result = concluded(ended(head=head, base=base))
    assert (result.judgement.verdict, result.failure) == (Verdict.FAILED, "head text")


@pytest.mark.parametrize("head", ["failed", "died"])
def test_a_head_that_fails_only_while_it_is_confirmed_fails_its_test_too(head: str) -> None:
    result = concluded(ended(head="passed", base="passed"), ended(head=head, base="passed"), confirming=True)
    assert (result.judgement.verdict, result.failure) == (Verdict.FAILED, "head text")


def test_a_base_that_dies_leaves_nothing_to_compare_with() -> None:
    for found in (ended(head="passed", base="died"), ended(base="died")):
        result = concluded(found)
        assert (result.judgement.verdict, result.failure) == (Verdict.INCOMPARABLE, None)


@pytest.mark.parametrize("found", [ended(), ended(base="passed")])
def test_a_case_that_no_process_of_the_head_collects_fails_its_test_and_says_what_to_do(found: CaseRound) -> None:
    result = concluded(found)
    assert result.judgement.verdict is Verdict.FAILED
    assert result.failure is not None
    assert "not collected again in a fresh process of this side, so nothing was compared" in result.failure
    assert "-> give it an id that is the same in every process" in result.failure


def test_a_case_that_was_not_asked_for_yet_has_no_result() -> None:
    assert conclude(Comparison(cases={"case": Compared("case")}), MAIN, POLICY, {}) == {}


def test_tests_that_passed_without_a_time_are_inconclusive_with_a_reason() -> None:
    result = concluded(ended(head="passed", base="passed"))
    assert (result.judgement.verdict, result.judgement.reasons) == (Verdict.INCONCLUSIVE, ["it was not timed"])


@pytest.mark.parametrize(
    ("base", "verdict"),
    [("passed", "regressed"), ("oom", "oom"), ("failed", "incomparable"), ("skipped", "incomparable")],
)
def test_memory_that_runs_out_is_a_regression_only_beside_a_base_that_passed(base: str, verdict: str) -> None:
    result = concluded(ended(HEAD, head="oom", base=base))
    assert result.judgement.verdict == verdict
    assert result.judgement.reasons[0].startswith("out of memory")
    assert (f"{base} in main" in result.judgement.reasons[0]) == (verdict == "incomparable")
