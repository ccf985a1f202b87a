"""A model of a shared machine that two versions are compared on: the real comparison, over rounds that are made up.

What it models: processes of the same code that differ from each other; readings that scatter; stretches that ruin a
case's turns; a machine that becomes slower as a block goes on; and a bias against one side's processes, which the null
control shows. Nothing runs, so that thousands of comparisons take seconds; what they would have taken is counted.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from perflab.compared import comparison
from perflab.compared.comparison import BASE, HEAD, TWIN, Comparison, Limits, compare
from perflab.compared.judge.paired import PairedFinding, PairedPolicy, latency_findings
from perflab.compared.rounds import CaseRound, CaseTurns, RoundPlan
from perflab.compared.sides.messages import Ended, Ready
from perflab.compared.sides.process import Start
from tests.harness.make import environment

POLICY = PairedPolicy()
BLOCKS = 10
START_S, CASE_S = 4.0, 2.2
"""What a round of two processes takes before its first case, and each case; a third process adds its share. As
measured on two cores: `docs/measuring.md`."""


@dataclass
class Machine:
    """How it disturbs, in log-ratios."""

    draw: random.Random
    processes: float = 0.006
    """How much processes of the same code differ, each from their mean."""
    readings: float = 0.03
    """How much turns of a process differ."""
    ruined: float = 0.0
    """Share of a case's pairs that fall into a stretch which ruins them."""
    drift: float = 0.02
    """How much slower the machine becomes within a block."""
    bias: float = 0.0
    """What the first base is faster by than any other process of its code: the control is off by that."""
    seconds: float = 0.0
    rounds: list[list[str]] = field(default_factory=list)
    """The cases of each."""

    def take(self, slowdown: float, sides: Sequence[str]) -> CaseRound:
        """One case in one pair of processes."""
        offsets = {side: self.draw.gauss(0.0, self.processes) for side in sides}
        offsets[HEAD] = offsets.get(HEAD, 0.0) + math.log1p(slowdown)
        offsets[BASE] = offsets.get(BASE, 0.0) - self.bias
        spread = 0.3 if self.draw.random() < self.ruined else self.readings
        turns: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(BLOCKS):
            order = self.draw.sample(list(sides), len(sides))
            for place, side in enumerate([*order, *reversed(order)]):
                slower = self.drift * place / (2 * len(sides)) + offsets[side] + self.draw.gauss(0.0, spread)
                turns[side].append(1e7 * math.exp(slower))
        found = CaseRound(first=sides[0])
        for side in sides:
            ready = Ready(case="", device="cpu", environment=environment(), parameters={})
            found.turns[side] = CaseTurns(ready, turns_ns=turns[side])
            found.ended[side] = Ended(case="", outcome="passed")
        return found


def compared(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, slowdowns: Mapping[str, float]
) -> dict[str, PairedFinding]:
    """What a comparison of these cases finds on this machine."""

    class MadeUpRound:
        def __init__(self, starts: dict[str, Start], *_others: object) -> None:
            self.cases = {side: list(start.command) for side, start in starts.items()}
            self.strays: dict[str, list[str]] = {}
            machine.seconds += START_S * len(starts) / 2
            machine.rounds.append([])

        def __enter__(self) -> MadeUpRound:
            return self

        def __exit__(self, *_error: object) -> None:
            pass

        def run(self, case: str, _following: Sequence[str], _plan: RoundPlan, _say: Callable[[str], None]) -> CaseRound:
            sides = [side for side in (HEAD, BASE, TWIN) if case in self.cases.get(side, ())]
            machine.seconds += CASE_S * len(sides) / 2
            machine.rounds[-1].append(case)
            return machine.take(slowdowns[case], sides)

    def start(_side: str, cases: Sequence[str] | None) -> Start:
        from pathlib import Path

        return Start("", list(slowdowns if cases is None else cases), {}, Path())

    monkeypatch.setattr(comparison, "Round", MadeUpRound)
    found = Comparison()
    limits = Limits(dict.fromkeys(slowdowns, 1e9), lambda: None, weighs=False)
    compare(list(slowdowns), start, POLICY, limits, lambda _case, _what: None, into=found)
    return latency_findings(found.judged, found.controls, POLICY)
