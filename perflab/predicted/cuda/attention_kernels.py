"""Temporary memory and launches of attention kernels.

The rules follow PyTorch's sources; file names are relative to ``aten/src/ATen/native``. Shapes: query ``(B, H, N, D)``,
key ``(B, G, M, D)``, value ``(B, G, M, Dv)``. Bytes are as requested, unrounded, at the peak within the call. Left out:
FlashAttention's split keys for a handful of queries and its deterministic backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

_FLOAT32 = 4


def _round(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _copy_if_strided(tensor: torch.Tensor) -> int:
    """Bytes that ``tensor.transpose(1, 2).contiguous()`` allocates: kernels require ``(B, N, H, D)``."""
    return 0 if tensor.transpose(1, 2).is_contiguous() else tensor.nbytes


def _flash_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    *_: Any,
    **__: Any,
) -> int:
    """Bytes of float32 dq, ``softmax_d``, dk and dv of every head if heads are grouped, and copies of strided operands.

    ``mha_bwd`` in ``transformers/cuda/flash_attn/flash_api.cpp``.
    """
    batch, heads, length, size = query.shape
    rounded_length, rounded_size = _round(length, 128), _round(size, 32 if size <= 128 else 64)
    accumulated = batch * heads * rounded_length * (rounded_size + 1) * _FLOAT32
    expanded = 2 * batch * key.shape[2] * heads * size * key.element_size() if key.shape[1] != heads else 0
    return accumulated + expanded + _copy_if_strided(grad) + _copy_if_strided(out)


def _cudnn_backward(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> int:
    """Estimate the bytes of cuDNN's workspace, which is unknown, as float32 dq and one number per query.

    The other backends need these two.
    """
    batch, heads, length, size = query.shape
    return batch * heads * length * (size + 1) * _FLOAT32


def _efficient_forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> int:
    """Bytes of the float32 accumulator of the output, for half precision with a head size above 128; else 0.

    ``kNeedsOutputAccumulatorBuffer`` in ``mem_eff_attention/kernel_forward.h``.
    """
    if query.element_size() == _FLOAT32 or max(query.shape[-1], value.shape[-1]) <= 128:
        return 0
    batch, heads, length = query.shape[:3]
    return int(batch * heads * length * value.shape[-1] * _FLOAT32)


def _efficient_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    *_: Any,
    **__: Any,
) -> int:
    """Bytes of delta, of the workspace (``workspace_size``), and of the copy of a strided gradient.

    ``transformers/cuda/attention_backward.cu`` and ``transformers/cuda/mem_eff_attention/kernel_backward.h``. Tiles are
    those that ``kernels/cutlassB.h`` tries first on compute capability 8.0. In float32, delta is computed from full
    products before the kernel runs.
    """
    batch, heads, length, size = query.shape
    size_of_values = value.shape[-1]
    largest = max(size, size_of_values)
    half = query.element_size() < _FLOAT32
    rows, columns = _efficient_tiles(query, value)
    each = math.ceil(length / rows) * math.ceil(size / columns) * (16 + rows * columns * _FLOAT32)
    if half and largest > 128:  # dk and dv do not stay in registers
        splits = _efficient_splits(query, key, value)
        each += splits * columns * (_round(size, rows) + _round(size_of_values, rows)) * _FLOAT32
    workspace = batch * heads * _round(each, 16)
    delta = batch * heads * length * _FLOAT32
    products = 0 if half else batch * heads * length * size_of_values * _FLOAT32
    return max(delta + workspace, products + delta) + _copy_if_strided(grad)


def _efficient_tiles(query: torch.Tensor, value: torch.Tensor) -> tuple[int, int]:
    largest, half = max(query.shape[-1], value.shape[-1]), query.element_size() < _FLOAT32
    return (64, 64) if largest <= 64 else ((128, 128) if half and largest <= 128 else (128, 64))


def _efficient_splits(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> int:
    """The number of blocks that share the keys (``num_splits_key``); fewer if each block keeps dk and dv in memory."""
    _, columns = _efficient_tiles(query, value)
    blocks, keys = query.shape[0] * query.shape[1], key.shape[2]
    splits = 1 if blocks >= 256 and keys <= 2 * columns else math.ceil(keys / columns)
    if query.element_size() < _FLOAT32 and max(query.shape[-1], value.shape[-1]) > 128:
        splits = min(splits, 200 // blocks)
    return max(1, splits)


def _flash_backward_launches(grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, *_: Any, **__: Any) -> int:
    """Launches: the rows' products, dk and dv, the conversion of dq; with grouped heads two sums more.

    ``flash_bwd_launch_template.h``.
    """
    return 3 if key.shape[1] == query.shape[1] else 5


def _efficient_backward_launches(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> int:
    """Launches: the kernel; zeros for the workspace if keys are divided; in float32 product, sum and copy for delta.

    One more to copy a strided gradient.
    """
    splits, strided = _efficient_splits(query, key, value) > 1, _copy_if_strided(grad) > 0
    return 1 + splits + strided + 3 * (grad.element_size() == _FLOAT32)


HIDDEN: dict[str, Callable[..., int]] = {
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
    "_scaled_dot_product_efficient_attention": _efficient_forward,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
}

LAUNCHES: dict[str, int | Callable[..., int]] = {
    "_scaled_dot_product_flash_attention_backward": _flash_backward_launches,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward_launches,
    "_scaled_dot_product_cudnn_attention_backward": 3,
}

ON_HOST = {"_scaled_dot_product_efficient_attention": (2, 3)}
"""Positions of results in host memory, by operator: seed and offset (``transformers/cuda/attention.cu``). While a CUDA
graph is captured, both are in GPU memory."""
