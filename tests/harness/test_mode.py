"""A case's mode in the name that its numbers are stored under: the default adds nothing, and all can be taken off."""

from __future__ import annotations

import msgspec
import pytest

from perflab.base.identity import DEFAULT, Mode, function_of, identity, leaf_of, parameters_of, without_mode
from perflab.base.identity import test_of as without_parameters
from perflab.results.documents import merge
from perflab.results.records import Verdict
from tests.harness.make import document, result

MODES = (DEFAULT, Mode(cache="cold"), Mode(cuda_graph=True), Mode(cache="cold", cuda_graph=True))
CASES = ("t/test_x.py::test_y", "t/test_x.py::TestX::test_y[a-{cold}]", "t/test_x.py::test_y[1]@gpu")


def test_every_mode_but_the_default_adds_its_name() -> None:
    assert [identity("test_x.py::test_y[a]", mode) for mode in MODES] == [
        "test_x.py::test_y[a]",
        "test_x.py::test_y[a] {cold}",
        "test_x.py::test_y[a] {graph}",
        "test_x.py::test_y[a] {cold, graph}",
    ]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mode", MODES)
def test_the_case_of_an_identity_is_the_case_that_it_was_made_of(case: str, mode: Mode) -> None:
    assert without_mode(identity(case, mode)) == case


def test_parts_of_a_name_are_found_and_a_mode_that_does_not_exist_is_not_read() -> None:
    case = "[old] v2/test_x.py::TestX::test_y[k::8 [a]/b]"
    assert without_parameters(case) == "[old] v2/test_x.py::TestX::test_y"
    assert (leaf_of(case), parameters_of(case)) == ("test_y[k::8 [a]/b]", "k::8 [a]/b")
    assert function_of("test_y[k::8] {cold}") == "test_y"
    with pytest.raises(msgspec.ValidationError, match=r"Invalid enum value 'hot' - at `\$\.cache`"):
        msgspec.convert({"cache": "hot"}, Mode)


def test_merging_keeps_a_case_in_each_mode_that_it_was_measured_in() -> None:
    warm, cold = result(verdict=Verdict.NEW), result(verdict=Verdict.NEW, mode=Mode(cache="cold"))
    again = result(verdict=Verdict.OK, mode=Mode(cache="cold"))
    assert merge([document(warm), document(cold), document(again)]).results == [warm, again]
