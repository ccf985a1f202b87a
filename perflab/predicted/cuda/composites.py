"""Operators that a CPU build decomposes, refuses or gives other shapes than CUDA does, registered as on CUDA.

Kernels follow PyTorch 2.13: ``ATen/native/Dropout.cpp``, ``Onehot.cpp``, ``SoftMax.cpp``, ``layer_norm.cpp``, and for
attention ``perflab.predicted.cuda.attention``. They are registered for CPU tensors while a prediction runs.

``histc`` counts integers on CUDA alone (``ATen/native/cuda/SummaryOps.cu``). The length of the result of ``bincount``
depends on the largest value, which fake tensors do not know. With ``minlength`` the result is taken to have that
length, which is right if every value is below ``minlength``, as an expert's number is. ``grouped_mm`` multiplies
float32 and float16 too, while PyTorch's shape function accepts bfloat16 alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from perflab.internals.of_torch import FakeTensorMode
from perflab.internals.of_torch.dispatch import aten, kernels_registered, without_dispatch_modes
from perflab.internals.of_torch.patched import attributes_replaced, enter_without_gradients, shape_rules_replaced
from perflab.internals.of_torch.tracing import decomposition_of, shape_rule_replaced_in
from perflab.predicted.cuda.attention import Asked, attend

_SOFTMAX = "predict softmax as CUDA runs it"
_ON_CUDA_ALONE = ("_fused_rms_norm", "_fused_rms_norm_backward")
_HALVES = (torch.float16, torch.bfloat16)
_REFUSED = (torch.float16, torch.bfloat16, torch.bool)
_MULTIPLIED = (torch.float32, torch.bfloat16, torch.float16)
_ROW_BYTES = 16
"""The alignment of the rows of grouped products: each row begins at a multiple of this size."""


@contextmanager
def cuda_composites(capability: tuple[int, int]) -> Iterator[None]:
    """Within the block, the operators of this module run on fake CPU tensors as they do on CUDA."""
    for name in _ON_CUDA_ALONE:
        aten(name, "predict norms as CUDA runs them")
    kernels = [
        *((name, kernel, "AutogradCPU") for name, kernel in _above_autograd(capability)),
        # A registered kernel is enough: autograd then records the operator itself instead of its decomposition.
        *((name, _only_on_fake_tensors, "CPU") for name in _ON_CUDA_ALONE),
    ]
    # inference_mode skips the dispatch key of these kernels, so no_grad replaces it. Neither of the two keeps anything
    # for backward, so the operators and their memory are the same.
    without_inference_mode = attributes_replaced([(torch.inference_mode, "__enter__", enter_without_gradients)])
    with kernels_registered(kernels), _shapes_as_on_cuda(), without_inference_mode:
        yield


def _above_autograd(capability: tuple[int, int]) -> list[tuple[str, Callable[..., Any]]]:
    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        asked = Asked(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
        _check(asked)
        return attend(asked, scale, capability)

    return [
        ("scaled_dot_product_attention", attention),
        ("dropout", _dropout),
        ("cumprod_backward", _cumprod_backward),
        ("one_hot", _one_hot),
        ("softmax.int", _softmax(aten("_softmax.default", _SOFTMAX))),
        ("log_softmax.int", _softmax(aten("_log_softmax.default", _SOFTMAX))),
    ]


def _check(asked: Asked) -> None:
    """Raise ``RuntimeError`` for arguments that ``validate_sdpa_input`` refuses."""
    if asked.mask is not None and asked.is_causal:
        raise RuntimeError("_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True")
    dtypes = {one.dtype for one in (asked.query, asked.key, asked.value)}
    if len(dtypes) > 1:
        raise RuntimeError(
            f"Expected query, key, and value to have the same dtype, but got {', '.join(sorted(map(str, dtypes)))}"
        )


def _dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if p == 0.0 or not train or input.numel() == 0:
        return input
    if p == 1.0:
        return input.mul(torch.zeros((), dtype=input.dtype, device=input.device))
    dropped: torch.Tensor = torch.ops.aten.native_dropout(input, p, train)[0]
    return dropped


def _cumprod_backward(grad: Tensor, input: Tensor, dim: int, output: Tensor) -> Tensor:
    """Return the gradient for inputs without zeros; PyTorch looks whether there are any (``FunctionsManual.cpp``)."""
    if input.numel() <= 1 or input.shape[dim] == 1:
        return grad
    products, is_zero = output.conj() * grad, input == 0
    is_zero.any()
    return _reversed_sums(products, dim).div(input.conj())


def _reversed_sums(tensor: Tensor, dim: int) -> Tensor:
    flipped = tensor.flip(dim)
    summed = flipped.cumsum(dim)
    return summed.flip(dim)


def _one_hot(self: Tensor, num_classes: int = -1) -> Tensor:
    if self.dtype != torch.int64:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    if num_classes == -1:
        num_classes = int(self.max().item()) + 1
    if num_classes < 1:
        raise RuntimeError("num_classes should be positive")
    zeros = torch.zeros((*self.shape, num_classes), dtype=torch.int64, device=self.device)
    return zeros.scatter_(-1, self.unsqueeze(-1), 1)


def _softmax(operator: Any) -> Callable[..., torch.Tensor]:
    def kernel(self: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        if self.dtype == torch.float16 and dtype == torch.float32:
            result: torch.Tensor = operator(self, dim, True)  # one kernel converts and computes, for float16 alone
        else:
            result = operator(self if dtype is None else self.to(dtype), dim, False)
        return result

    return kernel


def _only_on_fake_tensors(*_arguments: Any) -> Any:
    raise RuntimeError("this operator has a kernel on CUDA only; while a prediction runs, CPU tensors have to be fake")


@contextmanager
def _shapes_as_on_cuda() -> Iterator[None]:
    """Within the block, fake tensors have the shapes and dtypes that CUDA's kernels give.

    The mean and the reciprocal deviation of half-precision input are float32; on a CPU they have the input's dtype.
    ``histc``, ``bincount`` and ``grouped_mm`` accept the input that CUDA's kernels accept.
    """
    norm, bincount = torch.ops.aten.native_layer_norm.default, torch.ops.aten.bincount.default
    table = shape_rule_replaced_in(norm, "give norms CUDA's dtypes")
    usual_norm: Any = table[norm]
    usual_batch_norm: Any = decomposition_of(torch.ops.aten.native_batch_norm.default, "give norms CUDA's dtypes")
    usual_count: Any = shape_rule_replaced_in(bincount, "know how long counts are")[bincount]

    def widened(out: Tensor, mean: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return (out, mean.float(), rstd.float()) if out.dtype in _HALVES else (out, mean, rstd)

    def batch_norm(mode: FakeTensorMode, func: Any, *arguments: Any, **keywords: Any) -> Any:
        with mode:
            out = usual_batch_norm(*arguments, **keywords)
        return widened(*out)

    def counted(
        mode: FakeTensorMode, func: Any, values: Tensor, weights: Tensor | None = None, minlength: int = 0
    ) -> Any:
        if minlength <= 0:
            return usual_count(mode, func, values, weights, minlength)
        if values.dtype.is_floating_point or values.dtype.is_complex or values.dtype == torch.bool:
            raise RuntimeError(f"bincount is not implemented for {values.dtype} on CUDA")
        if values.dim() != 1:
            raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
        if weights is not None and weights.shape != values.shape:
            raise RuntimeError("weights should be 1-d and have the same length as input")
        dtype = torch.int64 if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
        return values.new_empty(minlength, dtype=dtype)

    # ``histc`` and ``grouped_mm`` have no rule in the table, and shape functions that refuse such input.
    grouped_mm = aten("_grouped_mm.default", "predict grouped products as CUDA runs them")
    ops = torch.ops.aten
    rules = {
        norm: lambda *given, **named: widened(*usual_norm(*given, **named)),
        bincount: counted,
        grouped_mm: _grouped_mm,
        ops.histc.default: _histc,
        # The buffer is the CPU's.
        ops.log_sigmoid_forward.default: lambda _mode, _func, values: (torch.empty_like(values), values.new_empty(0)),
        ops.native_batch_norm.default: batch_norm,
    }
    with shape_rules_replaced(table, rules):
        yield


def _histc(mode: FakeTensorMode, func: Any, values: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    if values.dtype in _REFUSED or values.dtype.is_complex:
        raise RuntimeError(f"histc is not implemented for {values.dtype} on CUDA")
    if bins <= 0:
        raise RuntimeError(f"histc(): bins must be > 0, but got {bins}")
    if max < min:
        raise RuntimeError("histc(): max must be larger than min")
    return values.new_empty(bins)


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
