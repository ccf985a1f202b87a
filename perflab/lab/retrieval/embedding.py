"""A vector for a piece of text: the mean of a language model's hidden states over its tokens. Nothing is trained.

B texts, T tokens of the longest, d model width, n tokens of one text.

    h = Norm(the residual stream behind the last block)      (B, T, d), what the model's head reads
    e = (1 / n) sum over the text's tokens of h              (B, d)
    vector = (e - m) / |e - m|                               m: the mean of e over a corpus

All e point nearly one way; what a whole corpus has in common tells no passage from another, and is taken off (Mu &
Viswanath 2018, "All-but-the-Top", algorithm 1, step 1). The inner product of two vectors is then a cosine.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from perflab.lab.models import TransformerLM


@torch.no_grad()
def pooled(model: TransformerLM, texts: Sequence[bytes], *, batch_size: int = 32) -> Tensor:
    """Means e (B, d) float32 of texts whose tokens are their bytes, on the model's device.

    Texts of like lengths run together. Padding stands behind the tokens, which do not look ahead, so that the vector of
    a text does not depend on the others. ValueError for no text, an empty or too long one, or a model in training mode.
    """
    if model.training:
        raise ValueError("the model is in training mode, in which dropout draws: call model.eval() first")
    longest = model.config.context_length
    if not texts or not all(0 < len(text) <= longest for text in texts):
        raise ValueError(f"{len(texts)} texts: wanted one or more, each of 1 to context_length={longest} bytes")
    device = model.embedding.weight.device
    means = torch.empty(len(texts), model.config.d_model, device=device)
    order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
    for first in range(0, len(order), batch_size):
        chosen = order[first : first + batch_size]
        length = len(texts[chosen[-1]])
        tokens = torch.tensor([list(texts[at].ljust(length, b"\0")) for at in chosen], device=device)
        count = torch.tensor([len(texts[at]) for at in chosen], device=device)[:, None]
        is_real = (torch.arange(length, device=device) < count)[..., None]
        means[chosen] = _hidden_states(model, tokens).float().where(is_real, 0.0).sum(1) / count
    return means


def _hidden_states(model: TransformerLM, tokens: Tensor) -> Tensor:
    """The model without its head: tokens (B, T) -> normed hidden states (B, T, d)."""
    x = model.embedding(tokens)
    if model.positions is not None:
        x = x + model.positions.weight[: tokens.shape[1]]
    for block in model.blocks:
        x = block(x, model.rope)
    normed: Tensor = model.norm(x)
    return normed
