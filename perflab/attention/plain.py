"""The basis of attention's error budgets: the plain mathematics, and the magnitude of its terms.

Shapes: q, out, dq (B, H, N_q, D); k, v, dk, dv (B, H_kv, N_k, D); logsumexp (B, H, N_q).

    s = softcap(scale q k^T)    L = log sum exp(s)    p = exp(s - L)    out = p v
    ds = p (do v^T - rowsum(do out) + dL) softcap'    dq = scale ds k    dk = scale ds^T q    dv = p^T do

With grouped heads k and v are repeated, and dk and dv summed over the query heads that read them. Rows that see no
key have p = 0. The scoring (mask, soft cap) is the lab's definition of it, which the reference uses as well.
"""

import math
from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor

from perflab.lab.attention.scoring import Scoring, Settings, expand_heads, make_scoring


def plain_attention(q: Tensor, k: Tensor, v: Tensor, **settings: Unpack[Settings]) -> tuple[Tensor, Tensor]:
    """Compute attention on whole matrices, each step rounded to the inputs' dtype; log-sum-exp in float32.

    The backward is written out with the row sum of do and the rounded output, as in every flash kernel.
    Autograd's softmax backward sums the weights instead, and its budget would not include that error.
    """
    scoring = make_scoring(q, k, **settings)
    out, logsumexp = _PlainAttention.apply(q, k, v, scoring)  # type: ignore[no-untyped-call]
    return out, logsumexp


class _PlainAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> tuple[Tensor, Tensor]:
        keys, values = expand_heads(k, q), expand_heads(v, q)
        scores = scoring.capped(q @ keys.mT * scoring.scale)
        slope = torch.ones_like(scores) if scoring.softcap is None else 1 - (scores / scoring.softcap).square()
        scores, unseen = _masked(scores, scoring)
        weights = torch.softmax(scores, dim=-1).masked_fill(unseen, 0.0)
        out = weights @ values
        ctx.save_for_backward(q, k, v, weights, slope, out)
        ctx.scale = scoring.scale
        return out, torch.logsumexp(scores.float(), dim=-1).masked_fill(unseen.all(dim=-1), -torch.inf)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_logsumexp: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, weights, slope, out = ctx.saved_tensors
        keys, values = expand_heads(k, q), expand_heads(v, q)
        delta = (d_out * out).sum(dim=-1, keepdim=True) - d_logsumexp[..., None].to(q.dtype)
        d_scores = weights * (d_out @ values.mT - delta) * slope * ctx.scale
        return d_scores @ keys, _summed_heads(d_scores.mT @ q, k), _summed_heads(weights.mT @ d_out, v), None


def attention_magnitudes(
    q: Tensor, k: Tensor, v: Tensor, *, upstream: Mapping[str, Tensor], **settings: Unpack[Settings]
) -> dict[str, Tensor]:
    """Return for each result the sum of the absolute values of its terms, to first order. All float64.

    A score's rounding grows with c = |scale| |q| |k|^T, not with the score itself, and with the square
    root of its D terms (Higham & Mary 2019, "A new approach to probabilistic rounding error analysis":
    sqrt(n) u, half of that in eps = 2 u). The rounding of the weights, which come back as exp(s - L),
    grows with c and |L|, which are in the exponent. ds is a difference of two terms: for a query with
    one key the terms cancel, and their rounding is left. The soft cap's slope 1 - tanh^2 is such a
    difference too.
    """
    scoring = make_scoring(q, k, **settings)
    keys, values = expand_heads(k, q), expand_heads(v, q)
    scores = scoring.capped(q @ keys.mT * scoring.scale)
    slope = 1.0 if scoring.softcap is None else 1 + (scores / scoring.softcap).square()
    scores, unseen = _masked(scores, scoring)
    of_sum = max(1.0, math.sqrt(q.shape[-1]) / 2)
    conditions = (q.abs() @ keys.mT.abs() * abs(scoring.scale) * of_sum).masked_fill(unseen, 0.0)
    logsumexp = torch.logsumexp(scores, dim=-1, keepdim=True)
    weights = torch.exp(scores - logsumexp).masked_fill(unseen, 0.0)
    of_logsumexp = 1 + (weights * conditions).sum(dim=-1, keepdim=True) + logsumexp.abs()
    of_weights = weights * (1 + conditions + of_logsumexp)
    magnitudes = {"logsumexp": of_logsumexp.squeeze(-1), "out": of_weights @ values.abs()}
    if upstream:
        d_out = upstream["out"].abs() if "out" in upstream else torch.zeros_like(q)
        of_delta = (d_out * (weights @ values).abs()).sum(dim=-1, keepdim=True)
        if "logsumexp" in upstream:
            of_delta = of_delta + upstream["logsumexp"].abs()[..., None]
        of_d_scores = of_weights * (d_out @ values.mT.abs() + of_delta) * slope * abs(scoring.scale)
        magnitudes["dq"] = of_d_scores @ keys.abs()
        magnitudes["dk"] = _summed_heads(of_d_scores.mT @ q.abs(), k)
        magnitudes["dv"] = _summed_heads(of_weights.mT @ d_out, v)
    return magnitudes


def _masked(scores: Tensor, scoring: Scoring) -> tuple[Tensor, Tensor]:
    """Return the scores with -inf at hidden keys, and the mask (N_q, N_k) of hidden keys.

    A row that sees no key keeps its scores.
    """
    hidden = scoring.hidden(scores.shape[-2], scores.shape[-1], scores.device)
    if hidden is None:
        return scores, torch.zeros(scores.shape[-2:], dtype=torch.bool, device=scores.device)
    return scores.masked_fill(hidden & ~hidden.all(dim=-1, keepdim=True), -torch.inf), hidden


def _summed_heads(x: Tensor, like: Tensor) -> Tensor:
    """Return x (B, H, N, D) summed over the query heads that read each head of `like` (B, H_kv, N, D)."""
    if x.shape == like.shape:
        return x
    batch, heads, *rest = x.shape
    return x.reshape(batch, like.shape[1], heads // like.shape[1], *rest).sum(dim=2)
