"""Temporary memory and launches of convolutions, without cuDNN's workspace, whose size is unknown.

The rules follow ``aten/src/ATen/native/Convolution.cpp``, ``cudnn/ConvShared.cpp``, ``cuda/DepthwiseConv2d.cu``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _laid_out_anew(tensor: torch.Tensor, weight: torch.Tensor, *others: torch.Tensor) -> list[torch.Tensor]:
    """Return the operands that a convolution copies (``Convolution.cpp``) so that all have one memory format.

    The format is channels-last if the input or the weight (the first two arguments) has it, else contiguous.
    """
    last = torch.channels_last
    by_channels = tensor.dim() == 4 and any(
        one.is_contiguous(memory_format=last) and not one.is_contiguous() for one in (tensor, weight)
    )
    wanted = last if by_channels else torch.contiguous_format
    return [one for one in (tensor, weight, *others) if not one.is_contiguous(memory_format=wanted)]


def _convolution(tensor: torch.Tensor, weight: torch.Tensor, *_: Any, **__: Any) -> int:
    """Bytes of the copied operands: a lower bound, since the size of cuDNN's workspace is unknown."""
    return sum(one.nbytes for one in _laid_out_anew(tensor, weight))


def _convolution_backward(grad: torch.Tensor, tensor: torch.Tensor, weight: torch.Tensor, *_: Any, **__: Any) -> int:
    return sum(one.nbytes for one in _laid_out_anew(tensor, weight, grad))


def _convolution_launches(
    tensor: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *rest: Any, **__: Any
) -> int:
    """Launches: cuDNN's kernel, copies of operands, and the addition of the bias.

    A depthwise convolution adds the bias in its own kernel.
    """
    by_channel = 1 < rest[5] == tensor.shape[1]
    return 1 + len(_laid_out_anew(tensor, weight)) + (bias is not None and not by_channel)


def _convolution_backward_launches(
    grad: torch.Tensor, tensor: torch.Tensor, weight: torch.Tensor, *rest: Any, **__: Any
) -> int:
    """Launches: one kernel for each requested gradient (the bias's is a sum), and copies of operands."""
    return int(sum(rest[-1])) + len(_laid_out_anew(tensor, weight, grad))


HIDDEN: dict[str, Callable[..., int]] = {"convolution": _convolution, "convolution_backward": _convolution_backward}

LAUNCHES: dict[str, int | Callable[..., int]] = {
    "convolution": _convolution_launches,
    "convolution_backward": _convolution_backward_launches,
}
