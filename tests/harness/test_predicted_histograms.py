"""``histc``, ``bincount`` and ``grouped_mm`` on fake tensors, as mixtures of experts call them: CUDA's way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from perflab.predicted.cuda.as_cuda import as_cuda
from perflab.predicted.cuda.fake import fake_tensors
from perflab.predicted.cuda.kernels import ON_CUDA, OnCuda
from perflab.predicted.data_sheets import MODELLED
from perflab.predicted.prediction import traced
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


def grouped(left: Tensor, right: Tensor, groups: int | None = EXPERTS, **keywords: Any) -> Tensor:
    offs = None if groups is None else zeros(groups, dtype=torch.int32)
    product: Tensor = torch.nn.functional.grouped_mm(left, right, offs=offs, **keywords)
    return product


FLOAT32, HALF = torch.float32, torch.bfloat16


@pytest.mark.parametrize("dtype", [FLOAT32, HALF, torch.float16])
@pytest.mark.parametrize(
    ("left", "right", "groups", "shape"),
    [
        ((64, 32), (EXPERTS, 32, 24), EXPERTS, (64, 24)),
        ((EXPERTS, 16, 32), (32, 64), EXPERTS, (16, 64)),
        ((16, 64), (64, 24), EXPERTS, (EXPERTS, 16, 24)),
        ((EXPERTS, 16, 32), (EXPERTS, 32, 24), None, (EXPERTS, 16, 24)),
    ],
)
def test_grouped_products_are_of_the_dtype_they_are_given_under_autocast_too(
    left: tuple[int, ...], right: tuple[int, ...], groups: int | None, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Neither device's autocast knows them; a CPU's kernel, which runs on real tensors, takes what CUDA's does."""
    real = grouped(torch.zeros(left, dtype=dtype), torch.zeros(right, dtype=dtype), groups)
    with fake_tensors(), as_cuda((9, 0)), torch.autocast("cuda", HALF):
        fake = grouped(zeros(*left, dtype=dtype), zeros(*right, dtype=dtype), groups)
    assert (fake.shape, fake.dtype, fake.stride()) == (shape, dtype, real.stride())


def test_rows_of_a_grouped_product_begin_at_sixteen_bytes() -> None:
    with fake_tensors(), as_cuda((9, 0)):
        product = grouped(zeros(64, 32, dtype=HALF), zeros(EXPERTS, 5, 32, dtype=HALF).mT)
        of_float32 = grouped(zeros(64, 4, dtype=FLOAT32), zeros(EXPERTS, 5, 4, dtype=FLOAT32).mT)
    assert (product.shape, product.stride()) == ((64, 5), (8, 1))
    assert (of_float32.shape, of_float32.stride()) == ((64, 5), (8, 1))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda a, b: grouped(a.double(), b.double()), "got torch.float64"),
        (lambda a, b: grouped(a, b.bfloat16()), "the same dtype.*got torch.float32, torch.bfloat16"),
        (lambda a, b: grouped(a, b, out_dtype=HALF), "the same dtype.*and torch.bfloat16"),
        (lambda a, b: grouped(a[None, None], b), "must be 2D or 3D"),
        (lambda a, b: grouped(a, b, None), "Offsets tensor not provided"),
        (lambda a, b: grouped(a, b, 3), "matrix batch sizes have to match"),
        (lambda a, b: grouped(a[:, :16], b), "contraction dimension of mat_a and mat_b must match"),
        (lambda a, b: grouped(a, b[..., :5].contiguous()), "to be multiple of 16 bytes"),
        (lambda a, b: grouped(a[:, :1].expand(64, 32), b), "Invalid strides/sizes"),
    ],
)
def test_grouped_products_that_cuda_refuses_are_refused(call: Callable[[Tensor, Tensor], Tensor], said: str) -> None:
    with fake_tensors(), as_cuda(), pytest.raises(RuntimeError, match=said):
        call(zeros(64, 32, dtype=FLOAT32), zeros(EXPERTS, 32, 24, dtype=FLOAT32))


@pytest.mark.parametrize(
    ("dtype", "architecture", "launches"),
    [(HALF, 90, 2), (HALF, 100, 2), (HALF, 80, 1 + EXPERTS), (FLOAT32, 90, 1 + EXPERTS)],
)
def test_groups_are_multiplied_at_once_where_a_kernel_does_and_one_by_one_elsewhere(
    dtype: torch.dtype, architecture: int, launches: int
) -> None:
    with fake_tensors(), as_cuda(divmod(architecture, 10)):
        left, right = zeros(64, 32, dtype=dtype), zeros(EXPERTS, 32, 24, dtype=dtype)
        trace = traced(
            work(lambda: grouped(left, right), left, right),
            OnCuda(replace(MODELLED["h100"], architecture=architecture)),
        ).trace
    assert {op.name: op.launches for op in ops(trace)}["aten::_grouped_mm"] == launches


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
    """Written as the experts of ``transformers`` are; ``tests.studies.public_models_against_real`` has those."""
    with fake_tensors(), as_cuda((9, 0)):
        experts, x = Experts(), torch.zeros(512, 64)
        trace = traced(work(lambda: experts(x).sum().backward(), experts, x), ON_CUDA).trace
    seen = {op.name: op.launches for op in ops(trace)}
    routing = ("sort", "histc", "cumsum", "topk", "_grouped_mm")
    assert [seen[f"aten::{name}"] for name in routing] == [5, 2, 2, 2, 2]
    # Rows that were picked are added up where they came from, in place and unchecked: autograd knows its indices.
    assert seen["aten::index_put"] == 6
    assert seen["aten::scatter"] == 1
