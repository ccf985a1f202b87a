"""Attention as a textbook writes it, in the precision of its inputs: what low precision costs by itself.

Shapes
    q                  (..., H, N_q, D)
    k, v               (..., H_kv, N_k, D), H a multiple of H_kv
    out                (..., H, N_q, D), the inputs' dtype
    logsumexp          (..., H, N_q), float32 (float64 for float64 inputs)

    out = softmax(scale * q k^T) v,    logsumexp_i = log sum_j exp(scale * q_i . k_j)

It holds the N_q x N_k scores and weights, and autograd keeps the weights for the backward: the
quadratic memory that the tiled variants are there to avoid. Dropout of the weights adds what was drawn, and the weights
that are left.
"""

from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from perflab.lab.attention.inputs import accumulation_dtype
from perflab.lab.attention.scoring import Settings, dropout_probability, expand_heads, make_scoring
from perflab.lab.ranges import ranged


def naive_attention(q: Tensor, k: Tensor, v: Tensor, **settings: Unpack[Settings]) -> Tensor:
    """Attention, each step rounded to the inputs' dtype. Differentiable by autograd."""
    # In one expression: a name would keep the scores alive beside the weights.
    return _values(_kept(_weights(*_scores(q, k, settings)), settings), v, q)


def naive_attention_with_logsumexp(
    q: Tensor, k: Tensor, v: Tensor, **settings: Unpack[Settings]
) -> tuple[Tensor, Tensor]:
    """The same, and the natural log-sum-exp of the rounded scores."""
    scores, dropped = _scores(q, k, settings)
    logsumexp = torch.logsumexp(scores.to(accumulation_dtype(q.dtype)), dim=-1)
    if dropped is not None:
        logsumexp = logsumexp.masked_fill(dropped, -torch.inf)
    return _values(_kept(_weights(scores, dropped), settings), v, q), logsumexp


@ranged("attention: scores")
def _scores(q: Tensor, k: Tensor, settings: Settings) -> tuple[Tensor, Tensor | None]:
    """The scores, -inf where they are not seen; and (N_q,), which rows see nothing, None if all see something.

    Such rows keep their scores, so that the softmax and its gradient are finite until they are dropped.
    """
    scoring = make_scoring(q, k, **settings)
    scores = scoring.capped((q @ expand_heads(k, q).mT) * scoring.scale)
    num_queries, num_keys = scores.shape[-2:]
    hidden = scoring.hidden(num_queries, num_keys, q.device)
    if hidden is None:
        return scores, None
    if not scoring.leaves_queries_without_keys(num_queries, num_keys):
        return scores.masked_fill(hidden, -torch.inf), None
    dropped = hidden.all(dim=-1)
    return scores.masked_fill(hidden & ~dropped[:, None], -torch.inf), dropped


@ranged("attention: softmax")
def _weights(scores: Tensor, dropped: Tensor | None) -> Tensor:
    weights = torch.softmax(scores, dim=-1)
    return weights if dropped is None else weights.masked_fill(dropped[:, None], 0.0)


def _kept(weights: Tensor, settings: Settings) -> Tensor:
    """The weights after dropout; they themselves where none is asked for."""
    dropout_p = dropout_probability(**settings)
    return F.dropout(weights, dropout_p) if dropout_p else weights


@ranged("attention: values")
def _values(weights: Tensor, v: Tensor, q: Tensor) -> Tensor:
    return weights @ expand_heads(v, q)
