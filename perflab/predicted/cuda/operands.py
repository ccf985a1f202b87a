"""Operands that CUDA's kernels copy first, because their layout is not one that the kernel reads.

The rules follow PyTorch's sources; file names are relative to ``aten/src/ATen/native``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

_NEAREST = ("upsample_nearest", "_upsample_nearest_exact")
_MADE_CONTIGUOUS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        (
            *("_adaptive_avg_pool2d_backward", "adaptive_max_pool2d", "upsample_bicubic2d_backward"),
            *(f"_upsample_{kind}2d_aa{way}" for kind in ("bilinear", "bicubic") for way in ("", "_backward")),
            *("reflection_pad1d", "reflection_pad1d_backward", "reflection_pad2d", "reflection_pad2d_backward"),
            *("reflection_pad3d", *(f"{kind}3d{way}" for kind in _NEAREST for way in ("", "_backward"))),
            *(f"{kind}_pool3d{way}" for kind in ("_adaptive_avg", "adaptive_max") for way in ("", "_backward")),
            *("adaptive_max_pool2d_backward", "avg_pool3d", "avg_pool3d_backward", "upsample_linear1d_backward"),
            *("col2im", "cummax", "cummin", "cumprod", "cumsum", "im2col", "kthvalue", "logcumsumexp", "mode", "topk"),
        ),
        (0,),
    ),
    "_fused_rms_norm": (0,),
    "_fused_rms_norm_backward": (0, 1),
    "_log_softmax": (0,),
    "_log_softmax_backward_data": (0, 1),
    "_softmax": (0,),
    "embedding": (1,),
    "embedding_dense_backward": (0, 1),
    "native_group_norm": (0,),
    "native_group_norm_backward": (0, 1),
    "native_layer_norm": (0,),
    "native_layer_norm_backward": (0, 1),
    "_embedding_bag_backward": (0,),
    "bucketize": (0,),
    "max_pool3d_with_indices_backward": (0,),
    "nll_loss2d_backward": (2,),
    "searchsorted": (0, 1),
}
"""The positions of arguments that an operator makes contiguous: ``expect_contiguous`` and ``contiguous``."""

_IN_ITS_FORMAT = (
    *("_adaptive_avg_pool2d", "avg_pool2d", "max_pool2d_with_indices", "max_pool3d_with_indices"),
    *("upsample_bilinear2d_backward", "upsample_trilinear3d_backward"),
    *(f"{kind}{dims}d{way}" for kind in _NEAREST for dims in (1, 2) for way in ("", "_backward")),
)
"""The operators that make their first argument contiguous, or channels-last if its strides say so."""

_FLATTENED = ("aminmax", "argmax", "argmin", "max", "min")
"""The operators that make their argument contiguous if they reduce all of it."""

_MULTIPLIED: dict[str, tuple[int, ...]] = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2)}
"""The positions of the factors of products by cuBLAS."""


def copied(name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the bytes of the copy of each operand that the operator may copy; 0 for an operand that it reads as it is.

    ``name`` has no namespace. The length of the result depends on the operator alone.
    """
    if name in _MULTIPLIED:
        return tuple(0 if _is_for_cublas(arguments[at]) else arguments[at].nbytes for at in _MULTIPLIED[name])
    if name == "convolution":
        return _laid_out_anew(arguments[:2], by=arguments[:2])
    if name == "convolution_backward":
        return _laid_out_anew(arguments[:3], by=arguments[1:3])
    if name == "nll_loss2d_forward":
        return tuple(0 if one.is_contiguous() or not arguments[3] else one.nbytes for one in arguments[:2])
    if name == "_softmax_backward_data":  # the gradient times the output, which repeats no element
        grad, output = arguments[:2]
        is_dense = grad.is_contiguous() or any(
            step == 0 and size > 1 for step, size in zip(grad.stride(), grad.shape, strict=True)
        )
        return 0 if is_dense else grad.nbytes, 0 if output.is_contiguous() else output.nbytes
    if name in _IN_ITS_FORMAT:
        return _laid_out_anew(arguments[:1], by=arguments[:1])
    if name in _FLATTENED and len(arguments) < 2 and keywords.get("dim") is None:
        is_flat = _is_a_run(arguments[0]) if name.startswith("arg") else arguments[0].is_contiguous()
        return (0 if is_flat else arguments[0].nbytes,)
    if name in ("avg_pool2d_backward", "max_pool2d_with_indices_backward"):
        return _laid_out_anew(arguments[:1], by=arguments[1:2])
    made = (arguments[at] for at in _MADE_CONTIGUOUS.get(name, ()))
    return tuple(0 if not isinstance(one, Tensor) or one.is_contiguous() else one.nbytes for one in made)


def _is_a_run(tensor: Tensor) -> bool:
    """Whether a tensor can be viewed with one dimension."""
    dims = [one for one in zip(tensor.shape, tensor.stride(), strict=True) if one[0] > 1]
    return all(step == size * next_step for (_, step), (size, next_step) in pairwise(dims))


def _is_for_cublas(factor: Tensor) -> bool:
    """Whether rows or columns are consecutive and apart: ``prepare_matrix_for_cublas`` in ``cuda/Blas.cpp``."""
    (rows, columns), (down, across) = factor.shape[-2:], factor.stride()[-2:]
    by_rows, by_columns = across == 1 and down >= max(1, columns), down == 1 and across >= max(1, rows)
    return factor.is_contiguous() or factor.mT.is_contiguous() or by_rows or by_columns


def _laid_out_anew(operands: Sequence[Tensor], by: Sequence[Tensor]) -> tuple[int, ...]:
    """Return the bytes of operands that are copied so that all have one memory format (``Convolution.cpp``).

    The format is channels-last if the strides of one of the tensors ``by`` say so.
    """
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(operands[0].dim(), torch.contiguous_format)
    wanted = last if any(map(_has_channels_last, by)) else torch.contiguous_format
    return tuple(0 if one.is_contiguous(memory_format=wanted) else one.nbytes for one in operands)


def _has_channels_last(tensor: Tensor) -> bool:
    """Whether the order of the strides is channels-last, also where sizes of 1 make the tensor contiguous as well.

    ``is_channels_last_strides_2d_s4`` and ``_3d_s5`` in ``c10/core/MemoryFormat.h``.
    """
    dims, least = tensor.dim(), 0
    if dims not in (4, 5) or tensor.stride(1) == 0 or 0 in tensor.shape:
        return False
    for dim in (1, *range(dims - 1, 1, -1), 0):
        stride = tensor.stride(dim)
        if stride < least or (dim == 0 and least == tensor.stride(1)):
            return False
        least = stride * max(1, tensor.shape[dim])
    return True
