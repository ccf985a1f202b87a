"""What is concluded of cases that gave no numbers: nothing that the head did wrong is passed over."""

from __future__ import annotations

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from perflab.base.data import changed
from perflab.judging.paired import PairedPolicy
from perflab.report.summary import hint
from perflab.results.records import Judgement, Verdict
from perflab.results.result import Result
from perflab.turns.checkout import Tree
from perflab.turns.comparison import HEAD, Compared, Comparison
from perflab.turns.conclusions import conclude, with_outputs
from perflab.turns.messages import Ended, Ready, Warmed
from perflab.turns.rounds import CaseRound, CaseTurns
from tests.harness.make import document, environment, result

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
def test_a_case_that_no_process_of_the_head_collects_fails_its_test_and_says_what_to_do(
    found: CaseRound, snapshot: SnapshotAssertion
) -> None:
    result = concluded(found)
    assert result.judgement.verdict is Verdict.FAILED
    assert result.failure == snapshot


def test_a_case_that_was_not_timed_is_inconclusive_and_one_not_asked_for_has_no_result() -> None:
    assert conclude(Comparison(cases={"case": Compared("case")}), MAIN, POLICY, {}) == {}
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


def turned(value: float, other: float | None) -> Compared:
    """A case in two rounds; its base gave 1 and ``1 + 1e-6``, its head ``value`` and ``other``."""

    def turns(returned: float) -> CaseTurns:
        ready = Ready(case="case", device="cpu", environment=environment(), parameters={})
        outputs = {"the returned value": [repr(returned)]}
        return CaseTurns(ready, Warmed(repetitions=1, sample_ns=1, calls=1, settled=True, outputs=outputs))

    pairs = [(1.0, value), *([(1.0 + 1e-6, other)] if other is not None else [])]
    return Compared("case", rounds=[CaseRound(turns={"base": turns(a), "head": turns(b)}) for a, b in pairs])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((2.0, 2.0), "outputs differ: the returned value by 5.0e-01 of the largest"),
        ((float("nan"), float("nan")), "outputs differ: the returned value in shape, type or NaN"),
        ((1.0 + 3e-6, 1.0 + 2e-6), None),
        ((2.0, 1.7), None),
        ((2.0, None), None),
    ],
    ids=["differs", "is NaN", "by as little as in two calls of one side", "is random", "was seen once"],
)
def test_outputs_differ_only_where_each_side_computes_the_same_each_time(
    values: tuple[float, float | None], said: str | None
) -> None:
    judgement = with_outputs(Judgement(verdict=Verdict.IMPROVED), turned(*values))
    assert (judgement.reasons, judgement.outputs_differ) == ([said] if said else [], bool(said))


def test_what_computes_something_else_is_not_offered_for_acceptance_without_saying_so(
    snapshot: SnapshotAssertion,
) -> None:
    faster = Judgement(verdict=Verdict.IMPROVED)
    assert hint(document(result(judgement=faster))) == snapshot
    other = changed(faster, outputs_differ=True)
    assert hint(document(result(judgement=other))) == snapshot
