"""Attention as a textbook writes it, in the precision of its inputs: what low precision costs by itself.

Shapes
    q                  (..., N_q, D)
    k, v               (..., N_k, D)
    out                (..., N_q, D), the inputs' dtype
    logsumexp          (..., N_q), float32 (float64 for float64 inputs)

    out = softmax(scale * q k^T) v,    logsumexp_i = log sum_j exp(scale * q_i . k_j)

It holds the N_q x N_k scores and weights, and autograd keeps the weights for the backward: the
quadratic memory that the tiled variants are there to avoid.
"""

import torch
from torch import Tensor

from perflab.lab.attention.inputs import accumulation_dtype, default_scale


def naive_attention(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None) -> Tensor:
    """Attention, each step rounded to the inputs' dtype. Differentiable by autograd."""
    return torch.softmax(_scores(q, k, is_causal, scale), dim=-1) @ v


def naive_attention_with_logsumexp(
    q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """The same, and the natural log-sum-exp of the rounded scores."""
    scores = _scores(q, k, is_causal, scale)
    logsumexp = torch.logsumexp(scores.to(accumulation_dtype(q.dtype)), dim=-1)
    return torch.softmax(scores, dim=-1) @ v, logsumexp


def _scores(q: Tensor, k: Tensor, is_causal: bool, scale: float | None) -> Tensor:
    scores = (q @ k.mT) * (default_scale(q.shape[-1]) if scale is None else scale)
    if is_causal:
        unseen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(diagonal=1)
        scores = scores.masked_fill(unseen, -torch.inf)
    return scores
