"""Every number that a test gives to ``perf``: one that is none is refused by name, before it spoils a run's report."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch

import perflab
from perflab.base.errors import UsageError
from perflab.running.case.perf import CaseState, Perf, Way
from perflab.running.case.statements import Claim

NO_NUMBERS = (math.inf, -math.inf, math.nan, -1, -0.5, 1e300, True, "8 GiB", [1], 1j, torch.tensor(1.0))


class Noting:
    """A way that keeps what it is asked for."""

    def __init__(self) -> None:
        self.claims: list[Claim] = []

    def requires(self, claim: Claim) -> Way:
        self.claims.append(claim)
        return cast("Way", self)


def perf_of(way: Noting) -> Perf:
    """Its settings are never asked for: each argument that they stand for is given."""
    return Perf(CaseState("t.py::test_a", cast("Any", None)), torch.device("cpu"), cast("Way", way))


CALLS: dict[str, Callable[[Perf, Any], object]] = {
    "perf.requires(memory_bytes=": lambda perf, number: perf.requires(memory_bytes=number),
    "perf.requires(flops=": lambda perf, number: perf.requires(flops=number),
    "perf.requires(seconds=": lambda perf, number: perf.requires(seconds=number, setup_seconds=1),
    "perf.requires(setup_calls=": lambda perf, number: perf.requires(seconds=1, setup_calls=number),
    "perf.requires(setup_seconds=": lambda perf, number: perf.requires(setup_seconds=number),
    "perf.work(tokens=": lambda perf, number: perf.work(tokens=number),
    "perf.quote('H100', seconds=": lambda perf, number: perf.quote("H100", seconds=number),
    "perf.quote('H100', forward=": lambda perf, number: perf.quote("H100", seconds=1, forward=number),
    "perf.fits(sizes={'n': ": lambda perf, number: perf.fits(int, sizes={"n": number}),
    "perf.step(micro_batches=": lambda perf, number: perf.step(forward=int, micro_batches=number),
    "perflab.compare(budget_s=": lambda _, number: perflab.compare(int, int, budget_s=number),
    "perflab.compare(threshold=": lambda _, number: perflab.compare(int, int, threshold=number),
}


@pytest.mark.parametrize("number", NO_NUMBERS, ids=str)
@pytest.mark.parametrize("call", CALLS)
def test_a_number_that_is_none_is_refused_and_the_error_names_the_argument(call: str, number: object) -> None:
    way = Noting()
    with pytest.raises(UsageError, match=rf"^{re.escape(call)}[\s\S]*\n  -> give "):
        CALLS[call](perf_of(way), number)
    assert not way.claims


@pytest.mark.parametrize("call", [call for call in CALLS if not call.startswith(("perf.fits", "perf.step"))])
def test_a_number_that_no_float_holds_is_refused_in_few_words(call: str) -> None:
    with pytest.raises(UsageError, match=rf"^{re.escape(call)}an int of 16610 bits\)\n"):
        CALLS[call](perf_of(Noting()), 10**5000)


@pytest.mark.parametrize("name", ["memory_bytes", "flops", "seconds"])
def test_a_need_of_nothing_is_refused_and_set_up_may_take_none(name: str) -> None:
    way = Noting()
    with pytest.raises(UsageError, match=rf"^perf\.requires\({name}=0\)\n"):
        perf_of(way).requires(**{name: 0})
    perf_of(way).requires(seconds=2, setup_calls=0, setup_seconds=0.0)
    assert way.claims == [Claim(None, None, 2.0, 0.0, 0.0, "fp32")]
