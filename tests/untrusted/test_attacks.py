"""Attacks are caught with the reason that fits, and no honest candidate is accused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from perflab.untrusted.command import held
from perflab.untrusted.judge import Case, Source, judge
from perflab.untrusted.messages import Entry
from perflab.untrusted.records import Finding, Judged, Reason
from perflab.untrusted.stranger import Holding
from tests.untrusted import task
from tests.untrusted.attacks import ATTACKS
from tests.untrusted.controls import CONTROLS

HERE = Path(__file__).parent
RESULT, CLOCK, FORM = (Finding.WRONG, Reason.RESULT), (Finding.SUSPICIOUS, Reason.CLOCK), (Finding.WRONG, Reason.FORM)
RAISED, CRASHED = (Finding.WRONG, Reason.RAISED), (Finding.WRONG, Reason.CRASHED)
CHANGED, RETURNED = (Finding.WRONG, Reason.INPUTS_CHANGED), (Finding.WRONG, Reason.INPUTS_RETURNED)
SLOWER, AHEAD = (Finding.SLOWER, Reason.NONE), (Finding.SUSPICIOUS, Reason.AHEAD)


@pytest.fixture(scope="module")
def holding() -> Iterator[Holding]:
    with held("cpu", 60.0, [], []) as found:
        yield found


def judged(kind: str, name: str, holding: Holding, budget_s: float = 0.6) -> Judged:
    case = Case(
        definition=task.definition,
        plain=task.definition,
        draws=[task.inputs],
        rivals=[Source("the reference", Entry(name="tests.untrusted.task:definition"))],
        budget_s=budget_s,
    )
    if name in ("hangs", "says_that_it_lives"):
        holding = replace(holding, limit_s=2.0)
    text = (HERE / f"{kind}.py").read_text()
    return judge(Source(name, Entry(name=f"{kind}:{name}", source=text)), case, holding)


COMES_TO = {
    "works_in_a_process": (RAISED, RESULT),  # shared memory is refused; without it the child's work is nowhere
    "is_lazy": (FORM,),
    "overrides_its_output": (CLOCK, SLOWER),
    "computes_ahead": (AHEAD, SLOWER),
    "replaces_the_clock": (CLOCK,),
    "replaces_events": (CLOCK,),
    "replaces_the_harness": (CLOCK,),
    "answers_itself": (CRASHED, RESULT),
    "calls_the_reference": (RAISED,),
    "reads_the_reference": (RAISED,),
    "reads_the_judges_memory": (RAISED,),
    "returns_its_input": (RETURNED,),
    "overwrites_its_inputs": (CHANGED,),
    "works_in_its_input": (CHANGED,),
    "ends_with_success": (CRASHED,),
    "exits": (RAISED,),
    "crashes": (CRASHED,),
    "hangs": ((Finding.WRONG, Reason.HUNG),),
    "says_that_it_lives": ((Finding.WRONG, Reason.HUNG),),
    "kills_the_judge": (RAISED,),
    "asks_the_network": (RAISED,),
    "overwrites_open_files": (CRASHED, RESULT),
    "falls_back": (RAISED,),
}
"""What an attack may come to, where it is not a wrong result."""


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_caught(name: str, holding: Holding) -> None:
    found = judged("attacks", name, holding)
    assert (found.finding, found.reason) in COMES_TO.get(name, (RESULT,)), found


@pytest.mark.parametrize("name", CONTROLS)
def test_an_honest_candidate_is_not_accused(name: str, holding: Holding) -> None:
    found = judged("controls", name, holding)
    assert found.reason in (Reason.NONE, Reason.TIME), found
    assert found.checked >= 5
    assert {one.rival for one in found.ratios} == {"the reference"}
    assert not found.notes


def test_there_are_as_many_kinds_as_promised() -> None:
    assert len(ATTACKS) >= 32
    assert len(CONTROLS) >= 16
    assert all(source.startswith("https://") for _, source in ATTACKS.values())
