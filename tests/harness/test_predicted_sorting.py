"""What sorting, counting and scattering launch and take, held to what PyTorch's CUDA build did in each call."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from perflab.predicted.cuda.kernels import ON_CUDA
from tests.harness.routed_calls import CALLS, Call


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name.removeprefix("aten::"))
def test_a_call_launches_and_takes_what_it_did_on_cuda(call: Call) -> None:
    arguments = call.arguments(meta)
    assert ON_CUDA.launches_of(call.name, arguments, call.keywords) == call.launches
    assert sum(ON_CUDA.blocks_of(call.name, arguments, call.keywords)) == call.hidden_bytes
