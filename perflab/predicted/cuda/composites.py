"""Operators that decompose on a CPU and have a kernel of their own on CUDA, or the reverse.

Each is what PyTorch 2.13 does: ``ATen/native/Dropout.cpp``, ``SoftMax.cpp``, ``layer_norm.cpp``, and for attention
``perflab.predicted.cuda.attention``. A kernel here is there for CPU tensors, for the time of a prediction.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.library
from torch._subclasses.fake_tensor import FakeTensorMode

from perflab.predicted.cuda.attention import Asked, attend
from perflab.predicted.cuda.patching import attributes_replaced, entry_replaced

_library: Any = torch.library.Library
_HALVES = (torch.float16, torch.bfloat16)


@contextmanager
def cuda_composites(capability: tuple[int, int]) -> Iterator[None]:
    """Within, fake tensors on the CPU go the way of CUDA's through ``dropout``, ``softmax``, norms and attention."""
    library: Any = _library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, kernel in _above_autograd(capability):
                library.impl(name, kernel, "AutogradCPU")
            for name in ("_fused_rms_norm", "_fused_rms_norm_backward"):
                # That there is a kernel is enough: then autograd knows the operator, instead of what it is made of.
                if hasattr(torch.ops.aten, name):
                    library.impl(name, _only_on_fake_tensors, "CPU")
        with ExitStack() as stack:
            stack.enter_context(_layer_norm_statistics_in_float32())
            stack.enter_context(_inference_mode_with_autograd_keys())
            yield
    finally:
        library._destroy()


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
        ("softmax.int", _softmax(torch.ops.aten._softmax.default)),
        ("log_softmax.int", _softmax(torch.ops.aten._log_softmax.default)),
    ]


def _check(asked: Asked) -> None:
    """What ``validate_sdpa_input`` refuses."""
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
            result: torch.Tensor = operator(self, dim, True)  # of float16, not of bfloat16, one kernel does both
        else:
            result = operator(self if dtype is None else self.to(dtype), dim, False)
        return result

    return kernel


def _only_on_fake_tensors(*_arguments: Any) -> Any:
    raise RuntimeError("this operator has a kernel on CUDA only; while a prediction runs, CPU tensors have to be fake")


@contextmanager
def _layer_norm_statistics_in_float32() -> Iterator[None]:
    """Of half-precision input, mean and reciprocal deviation: float32 on CUDA, the input's dtype on a CPU.

    What fake tensors compute is remembered by shape and dtype, so that memory is emptied on the way in and out.
    """
    implementations: Any = importlib.import_module("torch._subclasses.fake_impls")
    table = getattr(implementations, "op_implementations_dict", {})
    operator = torch.ops.aten.native_layer_norm.default
    usual: Any = table.get(operator)

    def layer_norm(mode: FakeTensorMode, func: Any, *arguments: Any, **keywords: Any) -> Any:
        out, mean, rstd = usual(mode, func, *arguments, **keywords)
        return (out, mean.float(), rstd.float()) if out.dtype in _HALVES else (out, mean, rstd)

    with entry_replaced(table, operator, layer_norm):
        FakeTensorMode.cache_clear()
        try:
            yield
        finally:
            FakeTensorMode.cache_clear()


@contextmanager
def _inference_mode_with_autograd_keys() -> Iterator[None]:
    """``torch.inference_mode`` as ``torch.no_grad``: with it operators are not dispatched where these kernels are.

    Neither keeps anything for backward, so the operators and their memory are the same.
    """
    mode: Any = torch.inference_mode

    def enter(self: Any) -> None:
        self._inference_mode_context = torch.no_grad() if self.mode else torch.enable_grad()
        self._inference_mode_context.__enter__()

    with attributes_replaced([(mode, "__enter__", enter)]):
        yield
