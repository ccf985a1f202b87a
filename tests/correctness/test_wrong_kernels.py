"""The suite is held to its own word: kernels that are wrong on purpose must not pass it, and are told their fault."""

import pytest
import torch

from perflab.attention.candidate import from_callable
from perflab.attention.grid import Case
from perflab.attention.hold import complaint, inputs_of
from perflab.lab.attention import reference_attention
from tests.studies.write_table import PAGE, with_table

from .wrong_kernels import WRONG_KERNELS, Drifting, WrongKernel, attend

pytestmark = pytest.mark.correctness

CASES = list({str(wrong.case): wrong.case for wrong in WRONG_KERNELS}.values())


@pytest.mark.parametrize("wrong", WRONG_KERNELS, ids=lambda wrong: wrong.name)
def test_a_wrong_kernel_is_caught_and_told_its_fault(wrong: WrongKernel, device: torch.device) -> None:
    assert wrong.clue in " ".join(complaint(wrong.candidate(device), wrong.case, device).text.split())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_same_kernel_without_its_faults_passes(case: Case, device: torch.device) -> None:
    assert complaint(from_callable("right", attend, device), case, device).text == ""


@pytest.mark.parametrize("wrong", WRONG_KERNELS, ids=lambda wrong: wrong.name)
def test_what_allclose_at_one_shape_says_of_it(wrong: WrongKernel, device: torch.device) -> None:
    """The habitual check: one shape, standard normal float32, atol = rtol = 1e-2, the output alone."""
    inputs = inputs_of(Case(128, 128, 64, "fp32"), device)(0)
    wanted = reference_attention(*inputs.values())[0].float()
    out, _ = wrong.make()(*(x.clone() for x in inputs.values()), is_causal=False, scale=None)
    assert torch.allclose(out, wanted, atol=1e-2, rtol=1e-2) == wrong.allclose


def test_a_kernel_that_does_not_repeat_itself_is_seen(device: torch.device) -> None:
    kernel = Drifting()
    inputs = inputs_of(Case(17, 3, 16, "fp32"), device)(0).values()
    one, other = (kernel(*inputs, is_causal=True, scale=None)[0] for _ in range(2))
    assert not torch.equal(one, other)


def test_the_documented_table_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page), "python -m tests.studies.write_table"


def test_there_are_enough_of_them_and_each_has_a_name_of_its_own() -> None:
    assert len({wrong.name for wrong in WRONG_KERNELS}) == len(WRONG_KERNELS) >= 25
