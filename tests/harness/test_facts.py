"""What a case may note: plain data, by names that a table has no column of yet."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from perflab.base.amounts import positive
from perflab.base.errors import UsageError
from perflab.results.documents import read_document, write_document
from perflab.running.case.statements import checked_facts
from perflab.tables.view import STANDARD
from tests.harness.make import document, record, result


def test_facts_survive_a_file_numbers_that_json_lacks_included(tmp_path: Path) -> None:
    given = {"a": 1, "b": 0.5, "c": "text", "d": None, "e": True, "f": math.nan, "g": math.inf, "h": -math.inf}
    facts = checked_facts(given)
    assert facts == {"a": 1, "b": 0.5, "c": "text", "d": None, "e": True, "f": "nan", "g": "inf", "h": "-inf"}
    file = tmp_path / "perf.json"
    write_document(document(result(outcome=record(facts=facts))), file)
    (read,) = read_document(file).results
    assert read.record is not None
    assert list(read.record.facts.items()) == list(facts.items())


@pytest.mark.parametrize("value", [torch.tensor(1.0), [1], {"a": 1}, object(), 1j])
def test_what_is_no_plain_data_is_refused_with_what_to_note_instead(value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        checked_facts({"loss": value})
    assert str(caught.value) == (
        f"perf.note(loss=...) got {type(value).__name__!r}\n"
        "  -> note a str, an int, a float, a bool or None; of a tensor of one element its .item()"
    )


@pytest.mark.parametrize("name", sorted(STANDARD))
def test_a_name_that_tables_have_already_is_refused(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        checked_facts({name: 1})
    assert str(caught.value) == (
        f"perf.note({name}=1): tables of studies have a column {name!r} already\n"
        f"  -> call the fact something else, such as noted_{name}"
    )


@pytest.mark.parametrize("name", ["tokens/s", "a, b", "", "1st"])
def test_a_name_that_no_list_of_columns_could_hold_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be a column's name\n  -> name facts as Python names variables"):
        checked_facts({name: 1})


def test_an_int_that_a_file_cannot_hold_is_refused() -> None:
    assert checked_facts({"n": 2**62}) == {"n": 2**62}
    with pytest.raises(UsageError, match=r"perf.note\(n=...\): an int of more than 63 bits\n  -> note it as a float"):
        checked_facts({"n": 2**64})


@pytest.mark.parametrize("amount", [0, -1.0, math.nan, math.inf, 10**400, 1e300, True, "3", torch.tensor(1.0)])
def test_amounts_that_json_cannot_hold_are_refused_with_the_call_that_gave_them(amount: object) -> None:
    with pytest.raises(UsageError, match=r"^perf\.work\(tokens=.*\n  -> give units$"):
        positive("perf.work(tokens=", amount, "give units", 1e9)


def test_an_amount_is_a_float_in_the_unit_that_is_stored() -> None:
    assert positive("perf.quote(", 2, "", 1e9) == 2e9
