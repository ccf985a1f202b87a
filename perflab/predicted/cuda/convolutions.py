"""What convolutions take in passing and launch, as far as the host tells: cuDNN's workspace is its own affair.

``aten/src/ATen/native/Convolution.cpp``, ``cudnn/ConvShared.cpp``, ``cuda/DepthwiseConv2d.cu``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _laid_out_anew(tensor: torch.Tensor, weight: torch.Tensor, *others: torch.Tensor) -> list[torch.Tensor]:
    """Operands that a convolution copies (``Convolution.cpp``): all are to be as its input or its weight is."""
    last = torch.channels_last
    by_channels = tensor.dim() == 4 and any(
        one.is_contiguous(memory_format=last) and not one.is_contiguous() for one in (tensor, weight)
    )
    wanted = last if by_channels else torch.contiguous_format
    return [one for one in (tensor, weight, *others) if not one.is_contiguous(memory_format=wanted)]


def _convolution(tensor: torch.Tensor, weight: torch.Tensor, *_: Any, **__: Any) -> int:
    """At the least: cuDNN's workspace is its own affair."""
    return sum(one.nbytes for one in _laid_out_anew(tensor, weight))


def _convolution_backward(grad: torch.Tensor, tensor: torch.Tensor, weight: torch.Tensor, *_: Any, **__: Any) -> int:
    return sum(one.nbytes for one in _laid_out_anew(tensor, weight, grad))


def _convolution_launches(
    tensor: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *rest: Any, **__: Any
) -> int:
    """cuDNN's kernel and an addition of the bias; a convolution of each channel by itself adds it as it goes."""
    by_channel = 1 < rest[5] == tensor.shape[1]
    return 1 + len(_laid_out_anew(tensor, weight)) + (bias is not None and not by_channel)


def _convolution_backward_launches(
    grad: torch.Tensor, tensor: torch.Tensor, weight: torch.Tensor, *rest: Any, **__: Any
) -> int:
    """A kernel for each gradient that is asked for; the bias's is a sum."""
    return int(sum(rest[-1])) + len(_laid_out_anew(tensor, weight, grad))


HIDDEN: dict[str, Callable[..., int]] = {"convolution": _convolution, "convolution_backward": _convolution_backward}

LAUNCHES: dict[str, int | Callable[..., int]] = {
    "convolution": _convolution_launches,
    "convolution_backward": _convolution_backward_launches,
}
