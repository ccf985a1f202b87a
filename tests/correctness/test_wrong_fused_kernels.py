"""The fused kernels' suite is held to its own word: kernels that are wrong on purpose must not pass it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from perflab.correctness import expanded_ones, random_upstream

from .fused_operators import OPERATORS, Operator, normal
from .wrong_fused_kernels import RIGHT, WRONG_KERNELS, WrongKernel

pytestmark = pytest.mark.correctness


def faint(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Below eps, for a norm."""
    return 1e-4 * normal(shape, generator)


def large(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return 300 * normal(shape, generator)


# Rows, dtype, numbers, upstream: a few of the cases that the kernels themselves go through.
CASES = (
    ((19, 70), torch.float32, normal, random_upstream),
    ((19, 70), torch.float32, normal, expanded_ones),
    ((19, 70), torch.float32, faint, random_upstream),
    ((19, 70), torch.float32, large, random_upstream),
    ((5, 1023), torch.bfloat16, normal, random_upstream),
)


def complaints(operator: Operator, candidate: Callable[..., Tensor], device: torch.device) -> str:
    """What the suite says of a candidate, all cases together."""
    found = []
    for shape, dtype, draw, upstream in CASES:
        try:
            operator.hold(operator.make_inputs(shape, dtype, device, draw), candidate=candidate, upstream=upstream)
        except AssertionError as error:
            found.append(str(error))
    return "\n".join(found)


@pytest.mark.parametrize("wrong", WRONG_KERNELS, ids=lambda wrong: wrong.name)
def test_a_wrong_kernel_is_caught_and_its_report_says_why(wrong: WrongKernel, device: torch.device) -> None:
    operator = next(operator for operator in OPERATORS if operator.name == wrong.operator)
    assert wrong.clue in complaints(operator, wrong.candidate, device)


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_the_same_kernel_without_its_faults_passes(operator: Operator, device: torch.device) -> None:
    assert complaints(operator, RIGHT[operator.name], device) == ""


def test_allclose_of_the_forward_at_one_shape_passes_most_of_them(device: torch.device) -> None:
    """The habitual check: whole tiles of standard normal float32, atol = rtol = 1e-2, the output alone."""
    passed = set()
    for wrong in WRONG_KERNELS:
        operator = next(operator for operator in OPERATORS if operator.name == wrong.operator)
        inputs = operator.make_inputs((16, 64), torch.float32, device)(0)
        wanted = operator.reference(*inputs.values()).float()
        if torch.allclose(wrong.candidate(*(x.clone() for x in inputs.values())), wanted, atol=1e-2, rtol=1e-2):
            passed.add(wrong.name)
    assert {wrong.name for wrong in WRONG_KERNELS} - passed == {"bf16-accumulator", "ignored-rows-counted"}
