"""``scaled_dot_product_attention`` as on CUDA: the backend, its operator, its kernels' temporary memory and launches.

Shapes: query ``(B, H, N, D)``, key ``(B, G, M, D)``, value ``(B, G, M, Dv)``; ``G`` is ``H`` unless heads are grouped.
The choice follows ``ATen/native/transformers/cuda/sdp_utils.cpp`` and ``sdp_utils_cpp.h``; the calls follow
``ATen/native/transformers/attention.cpp``. Not supported: nested tensors, ROCm, FlashAttention 3.

Temporary memory is in bytes as requested, unrounded, at the peak within the call; names of files there are relative to
``aten/src/ATen/native``. Left out: FlashAttention's split keys for a handful of queries and its deterministic backward.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.backends.cuda
import torch.nn.attention
import torch.nn.functional as F

from perflab.internals.of_torch.dispatch import aten, attention_priority

_ATTEND = "predict attention as CUDA runs it"
_HALVES = (torch.float16, torch.bfloat16)
_SETTINGS: Any = torch.backends.cuda
_FLOAT32 = 4


class Asked(NamedTuple):
    """The arguments of one call of ``scaled_dot_product_attention``."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    is_causal: bool
    enable_gqa: bool

    @property
    def wants_gradients(self) -> bool:
        """Whether autograd needs a gradient of query, key or value."""
        return torch.is_grad_enabled() and any(one.requires_grad for one in (self.query, self.key, self.value))


def backend(asked: Asked, capability: tuple[int, int]) -> str:
    """Return the first backend that can run, in the order of preference: ``cudnn``, ``flash``, ``efficient``, ``math``.

    A backend that ``torch.nn.attention.sdpa_kernel`` disables is not chosen. Raises ``RuntimeError`` if no backend is
    left.
    """
    may = {
        "cudnn": _SETTINGS.cudnn_sdp_enabled() and _cudnn_can(asked, capability),
        "flash": _SETTINGS.flash_sdp_enabled() and _flash_can(asked, capability),
        "efficient": _SETTINGS.mem_efficient_sdp_enabled() and _efficient_can(asked, capability),
        "math": _SETTINGS.math_sdp_enabled(),
    }
    for name in _in_order(capability):
        if may[name]:
            return name
    raise RuntimeError("No available kernel. Aborting execution.")


def _in_order(capability: tuple[int, int]) -> tuple[str, ...]:
    """Return the order of preference: a user's (``sdpa_kernel(..., set_priority=True)``), or else CUDA's.

    CUDA's order begins with cuDNN on Hopper and Blackwell (compute capability 9.x and 10.x), unless the environment
    sets ``TORCH_CUDNN_SDPA_DEPRIORITIZED=1`` (``check_prefer_cudnn_attention``). PyTorch also requires a cuDNN newer
    than 9.15; wheels for CUDA 13 contain one, so the version is not checked here.
    """
    numbers: Any = torch.nn.attention.SDPBackend
    names = {
        int(numbers.CUDNN_ATTENTION): "cudnn",
        int(numbers.FLASH_ATTENTION): "flash",
        int(numbers.EFFICIENT_ATTENTION): "efficient",
        int(numbers.MATH): "math",
    }
    order = tuple(names[one] for one in attention_priority() if one in names)
    plain = ("flash", "efficient", "math", "cudnn")
    if order and order != plain:
        return order
    prefers_cudnn = capability[0] in (9, 10) and os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") != "1"
    return ("cudnn", "flash", "efficient", "math") if prefers_cudnn else plain


def _shapes_fit(asked: Asked, grouped: bool) -> bool:
    """Whether the shapes suit all fused kernels: four dimensions, no empty sequence, one batch size, matching heads."""
    query, key, value = asked.query, asked.key, asked.value
    if not query.dim() == key.dim() == value.dim() == 4:
        return False
    if not query.shape[0] == key.shape[0] == value.shape[0] or 0 in (query.shape[2], key.shape[2]):
        return False
    heads, groups = query.shape[1], key.shape[1]
    if asked.enable_gqa and grouped:
        return groups == value.shape[1] and heads % groups == 0
    return heads == groups == value.shape[1]


def _rows_are_dense(tensors: tuple[torch.Tensor | None, ...]) -> bool:
    return all(one is None or one.stride(-1) == 1 or one.shape[-1] == 1 for one in tensors)


def _flash_can(asked: Asked, capability: tuple[int, int]) -> bool:
    query, key, value = asked.query, asked.key, asked.value
    if capability < (8, 0) or asked.mask is not None or not _shapes_fit(asked, grouped=True):
        return False
    size = query.shape[-1]
    if not (size == key.shape[-1] == value.shape[-1] and size <= 256 and query.dtype in _HALVES):
        return False
    if asked.is_causal and query.shape[2] != key.shape[2]:
        return False
    small_shared_memory = (8, 6) <= capability <= (8, 9) or (12, 0) <= capability <= (12, 1)
    if asked.wants_gradients and small_shared_memory and not (size <= 192 or (asked.dropout == 0.0 and size > 224)):
        return False
    return query.dtype == key.dtype == value.dtype and _rows_are_dense((query, key, value))


def _efficient_can(asked: Asked, capability: tuple[int, int]) -> bool:
    query, key, value = asked.query, asked.key, asked.value
    dtypes = (torch.float16, torch.float32, torch.bfloat16) if capability >= (8, 0) else (torch.float16, torch.float32)
    if (
        not _shapes_fit(asked, grouped=False)
        or not query.dtype == key.dtype == value.dtype
        or query.dtype not in dtypes
    ):
        return False
    alignment = (8 if query.dtype in _HALVES else 4) if capability >= (8, 0) else (8 if query.dtype in _HALVES else 1)
    if query.shape[-1] != key.shape[-1] or query.shape[-1] % alignment or value.shape[-1] % alignment:
        return False
    if capability >= (8, 0) and any(one.storage_offset() % alignment for one in (query, key, value)):
        return False
    return all(one is None or one.stride(-1) == 1 for one in (query, key, value, asked.mask))


def _cudnn_can(asked: Asked, capability: tuple[int, int]) -> bool:
    query, key, value, mask = asked.query, asked.key, asked.value, asked.mask
    if capability < (8, 0) or torch.are_deterministic_algorithms_enabled():
        return False
    if not query.dtype == key.dtype == value.dtype or query.dtype not in _HALVES:
        return False
    if not _shapes_fit(asked, grouped=True) or (asked.dropout * 16) % 1 or not _rows_are_dense((query, key, value)):
        return False
    size, size_of_values = query.shape[-1], value.shape[-1]
    if size % 8 or size_of_values % 8 or not (max(size, size_of_values) <= 128 or (size, size_of_values) == (192, 128)):
        return False
    if key.shape[2] == 1 or (asked.dropout and query.shape[2] == 1):
        return False
    return mask is None or (not mask.requires_grad and mask.dim() in (2, 4))


def attend(asked: Asked, scale: float | None, capability: tuple[int, int]) -> torch.Tensor:
    """Compute attention, ``(B, H, N, Dv)``, by the operator that CUDA would choose; autograd records its backward."""
    query, key, value = asked.query, asked.key, asked.value
    chosen = backend(asked, capability)
    if chosen == "flash":
        size = query.shape[-1]
        padded = [F.pad(one, (0, -size % 8)) if size % 8 else one for one in (query, key, value)]
        og_scale = 1 / math.sqrt(size) if scale is None else scale
        out: torch.Tensor = aten("_scaled_dot_product_flash_attention", _ATTEND)(
            *padded, asked.dropout, asked.is_causal, False, scale=og_scale
        )[0]
        return out[..., :size] if size % 8 else out
    mask = _as_bias(asked.mask, query.dtype)
    if chosen == "efficient":
        bias = None if mask is None else _aligned(mask).expand(*query.shape[:3], key.shape[2])
        given: Any = (bias, asked.wants_gradients, asked.dropout, asked.is_causal)
        out = aten("_scaled_dot_product_efficient_attention", _ATTEND)(query, key, value, *given, scale=scale)[0]
    elif chosen == "cudnn":
        given = (mask, asked.wants_gradients, asked.dropout, asked.is_causal, False)
        out = aten("_scaled_dot_product_cudnn_attention", _ATTEND)(query, key, value, *given, scale=scale)[0]
    else:
        out = _by_math(asked._replace(mask=mask), scale)
    return out


def _as_bias(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """Return a boolean mask as a bias to add to the scores (0 or minus infinity); return any other mask unchanged."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    forbidden = torch.scalar_tensor(-math.inf, dtype=dtype, device=mask.device)
    return torch.where(mask, torch.scalar_tensor(0.0, dtype=dtype, device=mask.device), forbidden)


def _aligned(bias: torch.Tensor) -> torch.Tensor:
    """Return the bias with rows that begin at multiples of 8 elements, as the kernel requires: padded if necessary."""
    if all(stride % 8 == 0 for stride in bias.stride()[:-1]) and bias.stride(-1) == 1:
        return bias
    columns = bias.shape[-1]
    return F.pad(bias, (0, 8 - columns % 8))[..., :columns]


def _by_math(asked: Asked, scale: float | None) -> torch.Tensor:
    """Compute attention as ``_scaled_dot_product_attention_math`` does on CUDA.

    PyTorch's own function adds the mask in place, except to fake tensors: with them it would allocate one
    ``(B, H, N, M)`` tensor more than on CUDA.
    """
    query, key, value, mask = asked.query, asked.key, asked.value, asked.mask
    dtype = query.dtype
    if not _SETTINGS.fp16_bf16_reduction_math_sdp_allowed():
        query, key, value = (one.float() if one.dtype in _HALVES else one for one in (query, key, value))
    wanted = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    root = math.sqrt(abs(wanted))
    scaled = query * (-root if wanted < 0 else root)
    if asked.is_causal:
        allowed = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        mask = _as_bias(allowed, query.dtype)
    if asked.enable_gqa and not query.shape[-3] == key.shape[-3] == value.shape[-3]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scores = scaled @ (key.transpose(-2, -1) * root)
    if mask is not None:
        scores.add_(mask)
    weights: torch.Tensor = aten("_safe_softmax", _ATTEND)(scores, -1)
    if asked.dropout > 0.0:
        weights = torch.dropout(weights, asked.dropout, True)
    out: torch.Tensor = (weights @ value).to(dtype)
    weights.to(dtype)  # PyTorch's function converts and returns the weights as well; the caller drops them.
    return out


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
) -> tuple[int, int]:
    """Bytes of float32 dq, ``softmax_d``, dk and dv of every head if heads are grouped, and copies of strided operands.

    Launches: the rows' products, dk and dv, the conversion of dq; with grouped heads two sums more. ``mha_bwd`` in
    ``transformers/cuda/flash_attn/flash_api.cpp``, ``flash_bwd_launch_template.h``.
    """
    batch, heads, length, size = query.shape
    rounded_length, rounded_size = _round(length, 128), _round(size, 32 if size <= 128 else 64)
    accumulated = batch * heads * rounded_length * (rounded_size + 1) * _FLOAT32
    is_grouped = key.shape[1] != heads
    expanded = 2 * batch * key.shape[2] * heads * size * key.element_size() * is_grouped
    return accumulated + expanded + _copy_if_strided(grad) + _copy_if_strided(out), 3 + 2 * is_grouped


def _cudnn_backward(grad: torch.Tensor, query: torch.Tensor, *_: Any, **__: Any) -> tuple[int, int]:
    """Estimate the bytes of cuDNN's workspace, which is unknown, as float32 dq and one number per query.

    The other backends need these two.
    """
    return math.prod(query.shape[:3]) * (query.shape[3] + 1) * _FLOAT32, 3


def _efficient_forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> tuple[int, int]:
    """Bytes of the float32 accumulator of the output, for half precision with a head size above 128; else 0.

    ``kNeedsOutputAccumulatorBuffer`` in ``mem_eff_attention/kernel_forward.h``.
    """
    if query.element_size() == _FLOAT32 or max(query.shape[-1], value.shape[-1]) <= 128:
        return 0, 1
    return math.prod(query.shape[:3]) * value.shape[-1] * _FLOAT32, 1


def _efficient_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    *_: Any,
    **__: Any,
) -> tuple[int, int]:
    """Bytes of delta, of the workspace (``workspace_size``), and of the copy of a strided gradient.

    ``transformers/cuda/attention_backward.cu`` and ``transformers/cuda/mem_eff_attention/kernel_backward.h``. Tiles are
    those that ``kernels/cutlassB.h`` tries first on compute capability 8.0. In float32, delta is computed from full
    products before the kernel runs. Launches: the kernel; zeros for the workspace if keys are divided; in float32
    product, sum and copy for delta. One more to copy a strided gradient.
    """
    batch, heads, length, size = query.shape
    size_of_values = value.shape[-1]
    largest = max(size, size_of_values)
    half = query.element_size() < _FLOAT32
    rows, columns = _efficient_tiles(query, value)
    each = math.ceil(length / rows) * math.ceil(size / columns) * (16 + rows * columns * _FLOAT32)
    splits, copied = _efficient_splits(query, key, value), _copy_if_strided(grad)
    if half and largest > 128:  # dk and dv do not stay in registers
        each += splits * columns * (_round(size, rows) + _round(size_of_values, rows)) * _FLOAT32
    workspace = batch * heads * _round(each, 16)
    delta = batch * heads * length * _FLOAT32
    products = 0 if half else batch * heads * length * size_of_values * _FLOAT32
    launches = 1 + (splits > 1) + (copied > 0) + 3 * (grad.element_size() == _FLOAT32)
    return max(delta + workspace, products + delta) + copied, launches


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


RULES: dict[str, Callable[..., tuple[int, int]]] = {
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
    "_scaled_dot_product_efficient_attention": _efficient_forward,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
}
ON_HOST = {"_scaled_dot_product_efficient_attention": (2, 3)}
"""Positions of results in host memory, by operator: seed and offset (``transformers/cuda/attention.cu``). While a CUDA
graph is captured, both are in GPU memory."""
