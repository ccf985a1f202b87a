"""Counts by value, as mixtures of experts count tokens: on CUDA their kernels take what a CPU build refuses.

``histc`` counts whole numbers on CUDA alone (``ATen/native/cuda/SummaryOps.cu``). The result of ``bincount`` is as long
as the largest value says, which fake tensors do not know; with ``minlength`` it is taken to be as long as that, which
holds for every value below it, such as the number of an expert.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from perflab.predicted.cuda.patching import entry_replaced
from perflab.torch_internals import FakeTensorMode
from perflab.torch_internals.fakes import forget_shapes, shape_rule_replaced_in

_REFUSED = (torch.float16, torch.bfloat16, torch.bool)


@contextmanager
def cuda_histograms() -> Iterator[None]:
    """Within, fake tensors have the results of CUDA's kernels of ``histc`` and ``bincount``."""
    histc, bincount = torch.ops.aten.histc.default, torch.ops.aten.bincount.default
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

    with entry_replaced(table, bincount, counted):
        table[histc] = _histc  # it has no rule, and a shape function that refuses
        forget_shapes()
        try:
            yield
        finally:
            del table[histc]
            forget_shapes()


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
