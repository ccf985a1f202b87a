"""What a case states: facts that are plain data, and numbers that are numbers, before they spoil a run's report."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from syrupy.assertion import SnapshotAssertion

import perflab
from perflab.base.amounts import positive
from perflab.base.errors import UsageError
from perflab.results.documents import read_document, write_document
from perflab.running.case.perf import CaseState, Perf, Way
from perflab.running.case.statements import Claim, checked_facts
from perflab.tables.view import STANDARD
from tests.harness.make import document, record, result


def test_facts_survive_a_file_numbers_that_json_lacks_included(tmp_path: Path) -> None:
    given = {"a": 2**62, "b": 0.5, "c": "text", "d": None, "e": True, "f": math.nan, "g": math.inf, "h": -math.inf}
    facts = checked_facts(given)
    assert facts == {"a": 2**62, "b": 0.5, "c": "text", "d": None, "e": True, "f": "nan", "g": "inf", "h": "-inf"}
    file = tmp_path / "perf.json"
    write_document(document(result(outcome=record(facts=facts))), file)
    (read,) = read_document(file).results
    assert read.record is not None
    assert list(read.record.facts.items()) == list(facts.items())


REFUSED_FACTS: dict[str, dict[str, object]] = {
    **{f"a {type(value).__name__}": {"loss": value} for value in (torch.tensor(1.0), [1], {"a": 1}, object(), 1j)},
    **{f"a name that tables have, {name}": {name: 1} for name in STANDARD},
    **{f"no name of a column, '{name}'": {name: 1} for name in ("tokens/s", "a, b", "", "1st")},
    "an int that no file holds": {"n": 2**64},
}


@pytest.mark.parametrize("what", REFUSED_FACTS)
def test_a_fact_that_tables_or_files_cannot_hold_is_refused_with_what_to_note_instead(
    what: str, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(UsageError) as caught:
        checked_facts(REFUSED_FACTS[what])
    assert str(caught.value) == snapshot


@pytest.mark.parametrize("amount", [0, -1.0, math.nan, math.inf, 10**400, 1e300, True, "3", torch.tensor(1.0)])
def test_amounts_that_json_cannot_hold_are_refused_with_the_call_that_gave_them(amount: object) -> None:
    with pytest.raises(UsageError, match=r"^perf\.work\(tokens=.*\n  -> give units$"):
        positive("perf.work(tokens=", amount, "give units", 1e9)


def test_an_amount_is_a_float_in_the_unit_that_is_stored() -> None:
    assert positive("perf.quote(", 2, "", 1e9) == 2e9


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
    "perf.reference(multiple=": lambda perf, number: perf.reference(int, multiple=number),
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
