"""Ratios of a table's rows: how often their intervals hold the truth, on a machine that is made up."""

from __future__ import annotations

import math
import random

import pytest

from perflab.judging.interleave import Reading
from perflab.judging.trimmed import LEAST_PAIRS
from perflab.measured.run.tables import ROUNDS, Row, ratio_of
from perflab.turns.comparison import BASE, HEAD
from perflab.turns.messages import Ready
from perflab.turns.rounds import CaseTurns
from tests.harness.machine import Machine
from tests.harness.make import environment, result

TABLES = 600


@pytest.mark.parametrize("rounds", [LEAST_PAIRS, ROUNDS])
@pytest.mark.parametrize(("slowdown", "ruined"), [(0.0, 0.0), (0.0, 0.15), (0.5, 0.05)])
def test_an_interval_holds_the_true_ratio_in_95_of_100_tables(rounds: int, slowdown: float, ruined: float) -> None:
    machine = Machine(random.Random(32), ruined=ruined)
    held = 0
    for _ in range(TABLES):
        taken = [machine.take(slowdown, (HEAD, BASE)) for _ in range(rounds)]
        found = ratio_of([one.log for turns in taken if (one := turns.reading(HEAD, BASE)) is not None])
        held += found.low <= 1 + slowdown <= found.high
    two_errors = 2 * math.sqrt(0.95 * 0.05 / TABLES)
    assert held / TABLES > 0.95 - two_errors


def test_a_row_whose_fastest_calls_alone_are_like_its_base_s_has_the_ratio_of_the_means() -> None:
    row = Row(result("t.py::test_a[1]"), result("t.py::test_a[0]"))
    row.readings = [Reading(noise, 0.01, math.log(2.0), 0.01, math.log(2.0), 0.1) for noise in (-0.01, 0.0, 0.01) * 2]
    assert row.beside.call is not None
    assert row.beside.call.value == pytest.approx(2.0, rel=0.01)


def test_phases_have_ratios_of_their_own_and_too_few_rounds_have_none() -> None:
    def turns(forward_ns: int, repetitions: int) -> CaseTurns:
        ready = Ready(case="", device="cpu", environment=environment(), parameters={})
        return CaseTurns(ready, phases_ns={"forward": [forward_ns * repetitions] * 4}, repetitions=repetitions)

    row = Row(result("t.py::test_a[1]"), result("t.py::test_a[0]"))
    for _ in range(LEAST_PAIRS):
        row.take(turns(300, 7), turns(100, 2), Reading(math.log(2.0)))
    assert row.beside.call is not None
    assert (row.beside.call.value, row.beside.phases["forward"].value) == (pytest.approx(2.0), pytest.approx(3.0))
    row.readings.pop()
    row.problem = "the run was over"
    assert (row.beside.call, row.beside.problem) == (None, "the run was over")
