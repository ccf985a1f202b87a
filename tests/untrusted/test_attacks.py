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
UNBUILT = (Finding.WRONG, Reason.UNBUILT)


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
    if name == "hangs":
        holding = replace(holding, limit_s=2.0)
    text = (HERE / f"{kind}.py").read_text()
    return judge(Source(name, Entry(name=f"{kind}:{name}", source=text)), case, holding)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_caught(name: str, holding: Holding) -> None:
    found = judged("attacks", name, holding)
    assert found.finding in (Finding.WRONG, Finding.SUSPICIOUS, Finding.SLOWER), found
    print(found.finding, found.reason, found.text[-300:])


@pytest.mark.parametrize("name", CONTROLS)
def test_an_honest_candidate_is_not_accused(name: str, holding: Holding) -> None:
    found = judged("controls", name, holding)
    assert found.reason in (Reason.NONE, Reason.TIME), found
    assert not found.notes
    print(found.finding, [f"{one.value:.2f}" for one in found.ratios], found.checked)
