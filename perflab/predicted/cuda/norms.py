"""Temporary memory and launches of norms, losses and their backward.

The rules follow PyTorch's sources; file names are relative to ``aten/src/ATen/native``. Bytes are as requested,
unrounded, at the peak within the call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, bfloat16, float16, float32

_FLOAT32 = 4
NO_REDUCTION, MEAN = 0, 1
"""The values of a loss's argument ``reduction``: ``at::Reduction``."""


def _group_norm(tensor: Tensor, weight: Tensor | None, bias: Tensor | None, *sizes: Any) -> tuple[int, int]:
    """Bytes of a factor and a summand for each channel; in half precision, also of the statistics in float32.

    A launch more computes them (``cuda/group_norm_kernel.cu``).
    """
    batch, channels, size, groups = sizes[:4]
    if size == 1 or (weight is None and bias is None):
        return 0, 2
    of_groups = groups if tensor.element_size() < _FLOAT32 else 0
    return int(2 * batch * (channels + of_groups) * _accumulated(tensor)), 3


def _group_norm_backward(*arguments: Any) -> tuple[int, int]:
    """Bytes of two sums for each channel; for the input's gradient also two for each group, and a factor a channel.

    Launches: sums, of which groups of single elements need none; the input's gradient in parts; the weights'.
    """
    weight, batch, channels, size, groups, (of_input, *of_weights) = arguments[4:10]
    has_factor = size > 1 and weight is not None
    numbers = 2 * channels + of_input * (2 * groups + channels * has_factor)
    launches = int(size > 1) + int(of_input * (2 + has_factor)) + any(of_weights)
    return int(batch * numbers * _accumulated(arguments[1])), launches


def _accumulated(tensor: Tensor) -> int:
    """Return the bytes of a number in which a kernel adds up elements of a tensor."""
    return max(_FLOAT32, tensor.element_size())


def _batch_norm_launches(tensor: Tensor, weight: Tensor | None, bias: Tensor | None, *rest: Any) -> int:
    """Launches: cuDNN's kernel, or three of PyTorch's (``_select_batch_norm_backend`` in ``Normalization.cpp``)."""
    by_cudnn = (
        tensor.dim() >= 3
        and weight is not None
        and bias is not None
        and (rest[0] is not None or rest[2])
        and tensor.dtype != bfloat16
        and (tensor.dtype != float16 or weight.dtype == float32)
    )
    return 1 if by_cudnn else 3


def _bce(
    tensor: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = MEAN,
) -> tuple[int, int]:
    """Bytes of the logarithms, of the loss of each element if it is reduced, and of the factors of ``pos_weight``."""
    reduces, has_factors = reduction != NO_REDUCTION, pos_weight is not None
    size_bytes = (1 + reduces + has_factors) * tensor.nbytes - (has_factors and reduces) * tensor.element_size()
    return size_bytes, 5 + (weight is not None) + 4 * has_factors + reduces


RULES: dict[str, Callable[..., tuple[int, int]]] = {
    "binary_cross_entropy_with_logits": _bce,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
}
LAUNCHES: dict[str, int | Callable[..., int]] = {
    # The input's gradient; weight's and bias's together (cuda/layer_norm_kernel.cu).
    **dict.fromkeys(
        ("_fused_rms_norm_backward", "native_layer_norm_backward"),
        lambda *given: bool(given[-1][0]) + any(given[-1][1:]),
    ),
    # The gradients, their product with the weight, their division by the number of elements.
    "binary_cross_entropy_backward": lambda grad, tensor, target, weight=None, reduction=MEAN: (
        1 + (weight is not None) + (reduction == MEAN)
    ),
    "native_batch_norm": _batch_norm_launches,
    # Zeros and the losses; their sum; the division by the sum of weights.
    "nll_loss2d_forward": lambda tensor, target, weight, reduction, *_: (
        2 if reduction == NO_REDUCTION else 3 + (reduction == MEAN)
    ),
    # Zeros, then a kernel that writes into them (cuda/NLLLoss2d.cu, Loss.cu).
    **dict.fromkeys(
        (f"{loss}_backward" for loss in ("huber_loss", "mse_loss", "nll_loss2d", "nll_loss", "smooth_l1_loss")), 2
    ),
}
