"""What attention's error budgets are derived from: the plain mathematics, and the size of its terms.

Shapes: q, out, dq (B, H, N_q, D); k, v, dk, dv (B, H, N_k, D); logsumexp (B, H, N_q).

    s = scale q k^T    L = log sum exp(s)    p = exp(s - L)    out = p v
    ds = p (do v^T - rowsum(do out) + dL)    dq = scale ds k    dk = scale ds^T q    dv = p^T do
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def plain_attention(
    q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Whole matrices, each step rounded to the inputs' dtype. Log-sum-exp in float32.

    The backward is written out with the row sum of do and the rounded output, as every flash kernel has
    it. Autograd's softmax backward sums the weights instead, and its budget would not know that error.
    """
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    out, logsumexp = _PlainAttention.apply(q, k, v, is_causal, scale)
    return out, logsumexp


class _PlainAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        scores = q @ k.mT * scale
        if is_causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
        weights = torch.softmax(scores, dim=-1)
        out = weights @ v
        ctx.save_for_backward(q, k, v, weights, out)
        ctx.scale = scale
        return out, torch.logsumexp(scores.float(), dim=-1)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_logsumexp: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, weights, out = ctx.saved_tensors
        delta = (d_out * out).sum(dim=-1, keepdim=True) - d_logsumexp[..., None].to(q.dtype)
        d_scores = weights * (d_out @ v.mT - delta) * ctx.scale
        return d_scores @ k, d_scores.mT @ q, weights.mT @ d_out, None, None


def attention_magnitudes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    upstream: Mapping[str, Tensor],
    is_causal: bool = False,
    scale: float | None = None,
) -> dict[str, Tensor]:
    """For each result the sum of the absolute values of its terms, to first order. All float64.

    A score's rounding grows with c = |scale| |q| |k|^T, not with the score itself, and that of the
    weights that come back as exp(s - L) with c and |L|, which stand in the exponent. ds is a difference
    of two terms: for a query with one key they cancel, and what is left is their rounding.
    """
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores, conditions = q @ k.mT * scale, q.abs() @ k.mT.abs() * abs(scale)
    if is_causal:
        unseen = torch.ones_like(scores, dtype=torch.bool).triu(1)
        scores, conditions = scores.masked_fill(unseen, -torch.inf), conditions.masked_fill(unseen, 0.0)
    logsumexp = torch.logsumexp(scores, dim=-1, keepdim=True)
    weights = torch.exp(scores - logsumexp)
    of_logsumexp = 1 + (weights * conditions).sum(dim=-1, keepdim=True) + logsumexp.abs()
    of_weights = weights * (1 + conditions + of_logsumexp)
    magnitudes = {"logsumexp": of_logsumexp.squeeze(-1), "out": of_weights @ v.abs()}
    if upstream:
        d_out = upstream["out"].abs() if "out" in upstream else torch.zeros_like(q)
        of_delta = (d_out * (weights @ v).abs()).sum(dim=-1, keepdim=True)
        if "logsumexp" in upstream:
            of_delta = of_delta + upstream["logsumexp"].abs()[..., None]
        of_d_scores = d_out @ v.mT.abs() + of_delta
        of_d_scores = of_weights * of_d_scores * abs(scale)
        magnitudes["dq"] = of_d_scores @ k.abs()
        magnitudes["dk"] = of_d_scores.mT @ q.abs()
        magnitudes["dv"] = of_weights.mT @ d_out
    return magnitudes
