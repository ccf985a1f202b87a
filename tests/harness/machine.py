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
from pathlib import Path
from types import SimpleNamespace

import pytest

from perflab.base.errors import InShort
from perflab.judging.interleave import Reading, TurnTime
from perflab.judging.paired import PairedFinding, PairedPolicy, latency_findings
from perflab.turns import comparison
from perflab.turns.comparison import BASE, HEAD, TWIN, Comparison, Limits, compare
from perflab.turns.messages import Ended, Ready
from perflab.turns.process import Start
from perflab.turns.rounds import CaseRound, CaseTurns, NotStartedError, RoundPlan
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
    ruined_rounds: int = 0
    """The first so many rounds fall into such a stretch as a whole."""
    holds: int = 3
    """Processes of a case that memory holds: of more, the last one dies."""
    unstarted: frozenset[int] = frozenset()
    """Rounds whose processes do not start, by their number from 0, attempts counted."""
    attempts: int = 0
    drift: float = 0.02
    """How much slower the machine becomes within a block."""
    bias: float = 0.0
    """What the first base is faster by than any other process of its code: the control is off by that."""
    seconds: float = 0.0
    rounds: list[list[str]] = field(default_factory=list)
    """The cases of each."""
    lost: dict[str, InShort] = field(default_factory=dict)
    """Cases that could not be confirmed, and why."""

    def take(self, slowdown: float, sides: Sequence[str]) -> CaseRound:
        """One case in one pair of processes."""
        offsets = {side: self.draw.gauss(0.0, self.processes) for side in sides}
        offsets[HEAD] = offsets.get(HEAD, 0.0) + math.log1p(slowdown)
        offsets[BASE] = offsets.get(BASE, 0.0) - self.bias
        is_ruined = self.draw.random() < self.ruined or 0 < len(self.rounds) <= self.ruined_rounds
        spread = 0.3 if is_ruined else self.readings
        turns: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(BLOCKS):
            order = self.draw.sample(list(sides), len(sides))
            for place, side in enumerate([*order, *reversed(order)]):
                slower = self.drift * place / (2 * len(sides)) + offsets[side] + self.draw.gauss(0.0, spread)
                turns[side].append(1e7 * math.exp(slower))
        found = CaseRound(first=sides[0])
        for side in sides:
            ready = Ready(case="", device="cpu", environment=environment(), parameters={})
            found.turns[side] = CaseTurns(ready, turns=[TurnTime(ns, ns) for ns in turns[side]])
            found.ended[side] = Ended(case="", outcome="passed")
        if len(sides) > self.holds:
            found.turns = {side: CaseTurns(turns.ready) for side, turns in found.turns.items()}
            found.ended[sides[-1]] = Ended(case="", outcome="died", text="its process was killed by signal 9")
        return found


def steady(*logs: float) -> list[Reading]:
    """Pairs of processes whose calls all differ alike."""
    return [Reading(log) for log in logs]


def compared(
    machine: Machine, slowdowns: Mapping[str, float], total_s: float | None = None, floor_ns: float = 0.0
) -> dict[str, PairedFinding]:
    """What a comparison of these cases finds on this machine, of each of them, in ``total_s`` at most."""

    class MadeUpRound:
        def __init__(self, starts: dict[str, Start], *_others: object) -> None:
            machine.attempts += 1
            if machine.attempts - 1 in machine.unstarted:
                raise NotStartedError("head", "its process was killed", "wait", output="")
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
        return Start("", list(slowdowns if cases is None else cases), {}, Path())

    found = Comparison()

    def left_s() -> float | None:
        return None if total_s is None else total_s - machine.seconds

    limits = Limits(dict.fromkeys(slowdowns, 1e9), left_s, weighs=False, floor_ns=dict.fromkeys(slowdowns, floor_ns))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(comparison, "Round", MadeUpRound)
        patched.setattr(comparison, "time", SimpleNamespace(monotonic=lambda: machine.seconds))
        compare(list(slowdowns), start, POLICY, limits, lambda _case, _what: None, into=found)
    findings = latency_findings(found.judged, found.controls, POLICY)
    assert findings.keys() == slowdowns.keys(), "a case that is not judged passes"
    machine.lost = {case: one.lost for case, one in found.cases.items() if one.lost is not None}
    return findings
