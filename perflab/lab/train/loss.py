"""The loss of a language model: how badly each position foresaw the next token.

B batch, T sequence, V vocabulary.

    loss = mean over b, t < T - 1 of  -log softmax(logits[b, t])[tokens[b, t + 1]]
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

NO_TARGET = -100  # what F.cross_entropy ignores by default


def cross_entropy_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Mean next-token cross-entropy in nats, a scalar, float32 at least.

    The last position has no next token and is masked out, not cut off: slicing `logits[:, :-1]` would copy
    the largest tensor of the step.

    Args:
        logits: (B, T, V), any floating dtype.
        tokens: (B, T), int64, the batch that produced them.

    Raises:
        ValueError: the shapes do not belong together, or T is 1 and there is nothing to foresee.
    """
    if logits.ndim != 3 or logits.shape[:2] != tokens.shape:
        raise ValueError(
            f"logits of shape {tuple(logits.shape)} for tokens of shape {tuple(tokens.shape)}: "
            "wanted logits (batch, sequence, vocabulary) for tokens (batch, sequence)"
        )
    if tokens.shape[1] < 2:
        raise ValueError("sequences of 1 token have no next token to foresee; give 2 tokens or more")
    targets = F.pad(tokens[:, 1:], (0, 1), value=NO_TARGET)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide.flatten(0, 1), targets.flatten(), ignore_index=NO_TARGET)
