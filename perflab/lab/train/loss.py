"""The loss of a language model: how badly each position foresaw the next token.

B batch, T sequence, V vocabulary.

    loss = mean over b, t < T - 1 of  -log softmax(logits[b, t])[tokens[b, t + 1]]

By PyTorch, or by the lab's Triton kernel; and clamped, where somebody asks for that.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from perflab.lab import kernels

NO_TARGET = -100  # what F.cross_entropy ignores by default


def cross_entropy_loss(logits: Tensor, tokens: Tensor, *, fused: bool = False) -> Tensor:
    """Mean next-token cross-entropy in nats, a scalar, float32 at least.

    The last position has no next token and is masked out, not cut off: slicing `logits[:, :-1]` would copy
    the largest tensor of the step.

    Args:
        logits: (B, T, V), any floating dtype.
        tokens: (B, T), int64, the batch that produced them.
        fused: by `perflab.lab.kernels.cross_entropy`, which needs neither a float32 copy of the logits nor a tensor of
            probabilities; for logits in float32, bfloat16 or float16.

    Raises:
        ValueError: the shapes do not belong together, or T is 1 and there is nothing to foresee.
        TypeError, RuntimeError: the fused kernel cannot take these logits, or cannot run here.
    """
    if logits.ndim != 3 or logits.shape[:2] != tokens.shape:
        raise ValueError(
            f"logits of shape {tuple(logits.shape)} for tokens of shape {tuple(tokens.shape)}: "
            "wanted logits (batch, sequence, vocabulary) for tokens (batch, sequence)"
        )
    if tokens.shape[1] < 2:
        raise ValueError("sequences of 1 token have no next token to predict; give 2 tokens or more")
    targets = F.pad(tokens[:, 1:], (0, 1), value=NO_TARGET)
    if fused:
        return kernels.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=NO_TARGET)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide.flatten(0, 1), targets.flatten(), ignore_index=NO_TARGET)


def clamp_loss(loss: Tensor, most: float) -> Tensor:
    """The scalar `loss`, or `most` where it is larger, which has gradient zero: nothing is learned from it.

    A loss that is infinite or NaN stays so, to be found and its step skipped: a gradient of zero would not reach the
    weights as zero, since on its way back it is multiplied by what is not finite.
    """
    return torch.where(torch.isfinite(loss), loss.clamp(max=most), loss)
