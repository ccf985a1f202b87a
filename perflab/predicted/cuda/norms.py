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


def _group_norm(tensor: Tensor, weight: Tensor | None, bias: Tensor | None, *sizes: Any) -> int:
    """Bytes of a factor and a summand for each channel; in half precision, also of the statistics in float32.

    ``cuda/group_norm_kernel.cu``.
    """
    batch, channels, size, groups = sizes[:4]
    if size == 1 or (weight is None and bias is None):
        return 0
    return int(2 * batch * (channels + (groups if tensor.element_size() < _FLOAT32 else 0)) * _accumulated(tensor))


def _group_norm_backward(*arguments: Any) -> int:
    """Bytes of two sums for each channel; for the input's gradient also two for each group, and a factor a channel."""
    weight, batch, channels, size, groups, (of_input, *_) = arguments[4:10]
    numbers = 2 * channels + of_input * (2 * groups + (channels if size > 1 and weight is not None else 0))
    return int(batch * numbers * _accumulated(arguments[1]))


def _group_norm_backward_launches(*arguments: Any) -> int:
    """Launches: sums, of which groups of single elements need none; the input's gradient in parts; the weights'."""
    weight, _, _, size, _, (of_input, *of_weights) = arguments[4:10]
    of_parts = 2 if size == 1 else 2 + (weight is not None)
    return int(size > 1) + int(of_input * of_parts) + any(of_weights)


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
) -> int:
    """Bytes of the logarithms, of the loss of each element if it is reduced, and of the factors of ``pos_weight``."""
    blocks = 1 + (reduction != NO_REDUCTION) + (pos_weight is not None)
    return blocks * tensor.nbytes - (pos_weight is not None and reduction != NO_REDUCTION) * tensor.element_size()


HIDDEN: dict[str, Callable[..., int]] = {
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
    "binary_cross_entropy_with_logits": lambda tensor, target, weight=None, pos_weight=None, reduction=MEAN: (
        5 + (weight is not None) + 4 * (pos_weight is not None) + (reduction != NO_REDUCTION)
    ),
    "native_batch_norm": _batch_norm_launches,
    "native_group_norm": lambda tensor, weight, bias, *sizes: (
        2 + (sizes[2] > 1 and (weight is not None or bias is not None))
    ),
    "native_group_norm_backward": _group_norm_backward_launches,
    # Zeros and the losses; their sum; the division by the sum of weights.
    "nll_loss2d_forward": lambda tensor, target, weight, reduction, *_: (
        2 if reduction == NO_REDUCTION else 3 + (reduction == MEAN)
    ),
    # Zeros, then a kernel that writes into them (cuda/NLLLoss2d.cu, Loss.cu).
    **dict.fromkeys(
        (f"{loss}_backward" for loss in ("huber_loss", "mse_loss", "nll_loss2d", "nll_loss", "smooth_l1_loss")), 2
    ),
}
