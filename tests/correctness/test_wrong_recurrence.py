"""The suite is held to its own word: recurrences that are wrong on purpose must not pass, and are told their fault."""

import pytest
import torch

from perflab.lab.recurrence.definition import recurrence_definition

from .recurrence import RECURRENCE, with_fault
from .wrong_recurrence import WRONG_RECURRENCES, WrongRecurrence, recur

pytestmark = pytest.mark.correctness

CASES = {str(wrong.case): wrong.case for wrong in WRONG_RECURRENCES}


@pytest.mark.parametrize("wrong", WRONG_RECURRENCES, ids=lambda wrong: wrong.name)
def test_a_wrong_recurrence_is_caught_and_told_its_fault(wrong: WrongRecurrence, device: torch.device) -> None:
    with pytest.raises(AssertionError) as caught:
        RECURRENCE.check(wrong.make(), wrong.case, device)
    assert wrong.clue in " ".join(str(caught.value).split())


@pytest.mark.parametrize("name", CASES)
def test_the_same_recurrence_without_its_faults_passes(name: str, device: torch.device) -> None:
    RECURRENCE.check(recur, CASES[name], device)


def test_allclose_of_the_output_at_one_shape_passes_half_of_them(device: torch.device) -> None:
    """The habitual check: one chunk of float32 with weak decay, atol = rtol = 1e-2, the output alone."""
    case = RECURRENCE.case(width="k16v16", length=16, decay="weak", state=True)
    given = RECURRENCE.inputs(case, torch.Generator(device).manual_seed(0))
    wanted = recurrence_definition(**given)[0].float()
    passed = {
        wrong.name
        for wrong in WRONG_RECURRENCES
        if torch.allclose(wrong.make()(**given)[0], wanted, atol=1e-2, rtol=1e-2)
    }
    assert {"carried-twice", "not-carried", "bonus-backward", "state-backward", "bleeds", "tail-unwritten"} <= passed


def test_without_a_fault_the_predictions_are_the_definition(device: torch.device) -> None:
    case = RECURRENCE.case(width="k5v3", length=17, bonus=True, state=True, starts=True)
    given = RECURRENCE.inputs(case, torch.Generator(device).manual_seed(0))
    for one, other in zip(with_fault(**given), recurrence_definition(**given), strict=True):
        assert torch.equal(one, other)
    assert len({wrong.name for wrong in WRONG_RECURRENCES}) == len(WRONG_RECURRENCES) >= 6
