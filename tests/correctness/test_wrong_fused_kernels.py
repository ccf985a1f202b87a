"""The fused kernels' suite is held to its own word: kernels that are wrong on purpose must not pass it."""

import pytest
import torch

from .fused_operators import OPERATORS, Operator
from .wrong_fused_kernels import RIGHT, WRONG_KERNELS, WrongKernel

pytestmark = pytest.mark.correctness


def complaints(operator: Operator, candidate: WrongKernel | None, device: torch.device) -> str:
    """What the suite's cases say of a candidate, all shapes, numbers and gradients together."""
    function = candidate.candidate if candidate else RIGHT[operator.name]
    small = operator.make_inputs((19, 70), torch.float32, device)
    faint = operator.make_inputs((19, 70), torch.float32, device, faint_rows)
    long = operator.make_inputs((5, 1023), torch.bfloat16, device)
    large = operator.make_inputs((19, 70), torch.float32, device, large_rows)
    found = []
    for make, upstream in ((small, random_upstream), (small, expanded_ones), *((x, random_upstream) for x in (faint, long, large))):
        try:
            operator.hold(make, candidate=function, upstream=upstream)
        except AssertionError as error:
            found.append(str(error))
    return "\n".join(found)
