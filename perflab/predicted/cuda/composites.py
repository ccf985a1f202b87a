"""Operators that decompose on a CPU and have a kernel of their own on CUDA, or the reverse.

The kernels follow PyTorch 2.13: ``ATen/native/Dropout.cpp``, ``SoftMax.cpp``, ``layer_norm.cpp``, and for attention
``perflab.predicted.cuda.attention``. They are registered for CPU tensors while a prediction runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from perflab.internals.of_torch import FakeTensorMode
from perflab.internals.of_torch.dispatch import aten, kernels_registered
from perflab.internals.of_torch.patched import enter_without_gradients
from perflab.internals.of_torch.tracing import shape_rule_replaced_in
from perflab.predicted.cuda.attention import Asked, attend
from perflab.predicted.cuda.patching import attributes_replaced, shape_rules_replaced

_SOFTMAX = "predict softmax as CUDA runs it"
_ON_CUDA_ALONE = ("_fused_rms_norm", "_fused_rms_norm_backward")
_HALVES = (torch.float16, torch.bfloat16)


@contextmanager
def cuda_composites(capability: tuple[int, int]) -> Iterator[None]:
    """Within the block, ``dropout``, ``softmax``, norms and attention run on fake CPU tensors as they do on CUDA."""
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
    with kernels_registered(kernels), _layer_norm_statistics_in_float32(), without_inference_mode:
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


def _layer_norm_statistics_in_float32() -> AbstractContextManager[None]:
    """Within the block, mean and reciprocal deviation of half-precision input are float32, as on CUDA.

    On a CPU they have the input's dtype.
    """
    operator = torch.ops.aten.native_layer_norm.default
    table = shape_rule_replaced_in(operator, "give norms CUDA's dtypes")
    usual: Any = table[operator]

    def layer_norm(mode: FakeTensorMode, func: Any, *arguments: Any, **keywords: Any) -> Any:
        out, mean, rstd = usual(mode, func, *arguments, **keywords)
        return (out, mean.float(), rstd.float()) if out.dtype in _HALVES else (out, mean, rstd)

    return shape_rules_replaced(table, {operator: layer_norm})
