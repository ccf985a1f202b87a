"""Shapes of counts by value and of grouped products, as in mixtures of experts, for input that a CPU build refuses.

``histc`` counts integers on CUDA alone (``ATen/native/cuda/SummaryOps.cu``). The length of the result of ``bincount``
depends on the largest value, which fake tensors do not know. With ``minlength`` the result is taken to have that
length, which is right if every value is below ``minlength``, as an expert's number is. ``grouped_mm`` multiplies
float32 and float16 too, while PyTorch's shape function accepts bfloat16 alone.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from perflab.internals.of_torch import FakeTensorMode
from perflab.internals.of_torch.dispatch import aten, without_dispatch_modes
from perflab.internals.of_torch.tracing import shape_rule_replaced_in
from perflab.predicted.cuda.patching import shape_rules_replaced

_REFUSED = (torch.float16, torch.bfloat16, torch.bool)
_MULTIPLIED = (torch.float32, torch.bfloat16, torch.float16)
_ROW_BYTES = 16
"""The alignment of the rows of grouped products: each row begins at a multiple of this size."""


def cuda_histograms() -> AbstractContextManager[None]:
    """Within the block, ``histc``, ``bincount`` and ``grouped_mm`` give fake tensors the results of CUDA's kernels."""
    histc, bincount = torch.ops.aten.histc.default, torch.ops.aten.bincount.default
    grouped_mm = aten("_grouped_mm.default", "predict grouped products as CUDA runs them")
    table = shape_rule_replaced_in(bincount, "know how long counts are")
    usual: Any = table[bincount]

    def counted(
        mode: FakeTensorMode, func: Any, values: Tensor, weights: Tensor | None = None, minlength: int = 0
    ) -> Any:
        if minlength <= 0:
            return usual(mode, func, values, weights, minlength)
        _check_counted(values, weights)
        dtype = torch.int64 if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
        return values.new_empty(minlength, dtype=dtype)

    # ``histc`` and ``grouped_mm`` have no rule in the table, and shape functions that refuse such input.
    return shape_rules_replaced(table, {bincount: counted, histc: _histc, grouped_mm: _grouped_mm})


def _histc(mode: FakeTensorMode, func: Any, values: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    if values.dtype in _REFUSED or values.dtype.is_complex:
        raise RuntimeError(f"histc is not implemented for {values.dtype} on CUDA")
    if bins <= 0:
        raise RuntimeError(f"histc(): bins must be > 0, but got {bins}")
    if max < min:
        raise RuntimeError("histc(): max must be larger than min")
    return values.new_empty(bins)


def _check_counted(values: Tensor, weights: Tensor | None) -> None:
    if values.dtype.is_floating_point or values.dtype.is_complex or values.dtype == torch.bool:
        raise RuntimeError(f"bincount is not implemented for {values.dtype} on CUDA")
    if values.dim() != 1:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and weights.shape != values.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")


def _grouped_mm(
    mode: FakeTensorMode,
    func: Any,
    left: Tensor,
    right: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the result as in ``ATen/native/GroupedMMUtils.h``: in the operands' dtype, with padded rows."""
    if {left.dtype, right.dtype, out_dtype or left.dtype} not in ({one} for one in _MULTIPLIED):
        raise RuntimeError(
            f"Expected mat_a and mat_b to have the same dtype, Float32, BFloat16 or Float16, and so the output; "
            f"got {left.dtype}, {right.dtype} and {out_dtype}"
        )
    # PyTorch's shape function checks everything else, on bfloat16 tensors with the same layout in bytes.
    with without_dispatch_modes():
        shape = func(*(_in_bfloat16(one) for one in (left, right)), *(_on_meta(one) for one in (offs, bias))).shape
    in_a_row = _ROW_BYTES // left.element_size()
    padded = math.ceil(shape[-1] / in_a_row) * in_a_row
    return left.new_empty_strided(shape, (shape[-2] * padded, padded, 1)[-len(shape) :])


def _in_bfloat16(matrix: Tensor) -> Tensor:
    strides = [one if one == 1 else one * matrix.element_size() // 2 for one in matrix.stride()]
    return torch.empty_strided(matrix.shape, strides, dtype=torch.bfloat16, device="meta")


def _on_meta(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
