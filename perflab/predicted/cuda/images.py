"""Temporary memory and launches of kernels that pool, resample, pad and unfold images.

The rules follow PyTorch's sources; file names are relative to ``aten/src/ATen/native``. Bytes are as requested,
unrounded, at the peak within the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

_POOLS = (
    *(f"{kind}_pool3d_backward" for kind in ("_adaptive_avg", "adaptive_max")),
    "max_pool3d_with_indices_backward",
    "fractional_max_pool2d_backward",
    "fractional_max_pool3d_backward",
    "max_unpool2d",
    "max_unpool3d",
    "upsample_linear1d",
    "max_pool2d_with_indices_backward",
    "avg_pool3d_backward",
    "_adaptive_avg_pool2d_backward",
    "adaptive_max_pool2d_backward",
)
_PADDED_BACKWARD = tuple(f"{kind}_pad{dims}d_backward" for kind in ("reflection", "replication") for dims in (1, 2, 3))
_UPSAMPLED_BACKWARD = (
    "upsample_linear1d_backward",
    "upsample_bilinear2d_backward",
    "_upsample_bilinear2d_aa_backward",
    "upsample_bicubic2d_backward",
    "upsample_trilinear3d_backward",
)


def _grows(tensor: Tensor, kernel: Sequence[int], dilation: Any, padding: Sequence[int], stride: Any) -> bool:
    """Whether ``im2col``'s result is larger than its argument, as which it is allocated first (``cuda/Im2Col.cu``)."""
    places = (
        (size + 2 * more - gap * (wide - 1) - 1) // step + 1
        for size, wide, gap, more, step in zip(tensor.shape[-2:], kernel, dilation, padding, stride, strict=True)
    )
    return math.prod((*places, *kernel)) > math.prod(tensor.shape[-2:])


def _im2col(tensor: Tensor, *sizes: Any) -> int:
    return tensor.nbytes if _grows(tensor, *sizes) else 0


def _im2col_launches(tensor: Tensor, *sizes: Any) -> int:
    """Launches: one for each sample, and a copy for a result that grows."""
    return (tensor.shape[0] if tensor.dim() == 4 else 1) + _grows(tensor, *sizes)


def _grid_sampler_backward_launches(*arguments: Any) -> int:
    """Launches: zeros for the input's gradient, and the kernel."""
    return 1 + bool(arguments[-1][0])


HIDDEN: dict[str, Callable[..., int]] = {"im2col": _im2col}

LAUNCHES: dict[str, int | Callable[..., int]] = {
    "grid_sampler_2d_backward": _grid_sampler_backward_launches,
    "grid_sampler_3d_backward": _grid_sampler_backward_launches,
    "im2col": _im2col_launches,
    # Zeros, then a kernel that adds to them.
    **dict.fromkeys(("upsample_bicubic2d", *_POOLS, *_UPSAMPLED_BACKWARD, *_PADDED_BACKWARD), 2),
}
