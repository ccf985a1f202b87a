"""``histc`` and ``bincount`` on fake tensors, as a mixture of experts calls them: with CUDA's results and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from perflab.predicted.cuda.as_cuda import as_cuda
from perflab.predicted.cuda.fake import fake_tensors
from perflab.predicted.prediction import ON_CUDA, traced
from tests.harness.traced import ops, work

EXPERTS = 8


def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.zeros(*shape, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.float32, torch.float64])
def test_histc_has_as_many_counts_as_bins_in_its_inputs_dtype(dtype: torch.dtype) -> None:
    with fake_tensors(), as_cuda():
        counts = torch.histc(zeros(1024, 2, dtype=dtype), bins=EXPERTS, min=0, max=EXPERTS - 1)
    assert (counts.shape, counts.dtype) == ((EXPERTS,), dtype)


@pytest.mark.parametrize(
    ("weights", "dtype"),
    [
        (None, torch.int64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float64),
        (torch.int32, torch.float64),
    ],
)
def test_bincount_is_as_long_as_the_least_that_is_asked_for(weights: torch.dtype | None, dtype: torch.dtype) -> None:
    with fake_tensors(), as_cuda():
        weighed = None if weights is None else zeros(1024, dtype=weights)
        counts = torch.bincount(zeros(1024), weighed, minlength=EXPERTS)
    assert (counts.shape, counts.dtype) == ((EXPERTS,), dtype)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: torch.histc(zeros(4, dtype=torch.float16)), "histc is not implemented for torch.float16"),
        (lambda: torch.histc(zeros(4, dtype=torch.bool)), "histc is not implemented for torch.bool"),
        (lambda: torch.histc(zeros(4), bins=0), "bins must be > 0"),
        (lambda: torch.histc(zeros(4), bins=4, min=3, max=2), "max must be larger than min"),
        (
            lambda: torch.bincount(zeros(4, dtype=torch.float32), minlength=4),
            "bincount is not implemented for torch.float32",
        ),
        (lambda: torch.bincount(zeros(2, 2), minlength=4), "only supports 1-d"),
        (lambda: torch.bincount(zeros(4), zeros(3), minlength=4), "same length as input"),
    ],
)
def test_what_cuda_refuses_is_refused(call: Callable[[], Any], said: str) -> None:
    with fake_tensors(), as_cuda(), pytest.raises(RuntimeError, match=said):
        call()


def test_how_long_bincount_is_by_itself_hangs_on_values() -> None:
    with fake_tensors(), as_cuda(), pytest.raises(DynamicOutputShapeException):
        torch.bincount(zeros(4))


def test_both_are_as_before_afterwards() -> None:
    with fake_tensors():
        with as_cuda():
            torch.histc(zeros(4), bins=2)
            torch.bincount(zeros(4), minlength=2)
        with pytest.raises(RuntimeError, match="histogram_cpu"):
            torch.histc(zeros(4), bins=2)
        with pytest.raises(DynamicOutputShapeException):
            torch.bincount(zeros(4), minlength=2)
    assert torch.histc(torch.tensor([0.0, 1.0, 1.0]), bins=2).tolist() == [1.0, 2.0]


class Experts(nn.Module):
    """A mixture of experts, (S, 64) -> (S, 64): each token goes to two of eight, tokens sorted by expert."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(64, EXPERTS)
        self.up = nn.Parameter(torch.zeros(EXPERTS, 64, 128))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = torch.topk(self.router(x).softmax(-1), 2)
        expert, order = torch.sort(chosen.flatten())
        counts = torch.histc(expert.int(), bins=EXPERTS, min=0, max=EXPERTS - 1)
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        out = torch._grouped_mm(x[order // 2].bfloat16(), self.up.bfloat16(), offs=ends)
        return out.float() * weights.flatten()[order, None]


def test_a_mixture_of_experts_is_predicted_with_the_launches_of_its_routing() -> None:
    """Written as the experts of ``transformers`` are; ``tests.correctness.public_models_against_real`` has those."""
    with fake_tensors(), as_cuda((9, 0)):
        experts, x = Experts(), torch.zeros(512, 64)
        trace = traced(work(lambda: experts(x).sum().backward(), experts, x), ON_CUDA).trace
    seen = {op.name: op.launches for op in ops(trace)}
    routing = ("sort", "histc", "cumsum", "topk", "_grouped_mm")
    assert [seen[f"aten::{name}"] for name in routing] == [5, 2, 2, 2, 2]
    # Rows that were picked are added up where they came from, in place and unchecked: autograd knows its indices.
    assert seen["aten::index_put"] == 6
    assert seen["aten::scatter"] == 1
