"""The gated linear recurrence: every form against the definition, within derived budgets, and what it refuses."""

import pytest
import torch

from perflab.correctness import OperatorCase
from perflab.lab.recurrence import linear_recurrence

from .recurrence import RECURRENCE

pytestmark = [
    pytest.mark.correctness,
    # In the interpreter NumPy speaks up for what lanes outside of the mask compute, which nobody reads.
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
]

# In Triton's interpreter a chunk of one head costs some 60 ms a kernel.
INTERPRETED = RECURRENCE.cases(length=(1, 15, 16, 17, 33), batch=(1,), heads=(2,), width=("k16v16", "k5v3", "k1v1"))


@pytest.mark.parametrize("case", RECURRENCE.cases(), ids=str)
def test_the_chunked_form_is_right(case: OperatorCase, device: torch.device) -> None:
    RECURRENCE.check(linear_recurrence, case, device, form="chunked", chunk=16 if case["length"] < 64 else 64)


@pytest.mark.parametrize("case", INTERPRETED, ids=str)
def test_the_triton_kernels_are_right(case: OperatorCase, device: torch.device) -> None:
    RECURRENCE.check(linear_recurrence, case, device, form="triton", chunk=16)
