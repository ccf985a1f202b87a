"""The definition of attention, in float64. A specification: it reads as the equation and is never optimised.

Shapes
    q                  (..., H, N_q, D)
    k, v               (..., H_kv, N_k, D), H a multiple of H_kv
    out                (..., H, N_q, D)
    logsumexp          (..., H, N_q)

    s_ij = scale * q_i . k_j                 soft-capped if asked; for the keys j that query i sees
    L_i  = log sum_j exp(s_ij)
    o_i  = sum_j exp(s_ij - L_i) v_j

Which keys a query sees, and what soft cap and grouped heads mean, is defined in `scoring`. A query that sees
nothing has L_i = -inf, o_i = 0 and no gradient.
"""

from typing import Unpack

import torch
from torch import Tensor

from perflab.lab.attention.scoring import Settings, expand_heads, make_scoring


def reference_attention(q: Tensor, k: Tensor, v: Tensor, **settings: Unpack[Settings]) -> tuple[Tensor, Tensor]:
    """Attention and its natural log-sum-exp, both float64, of inputs of any floating dtype.

    settings: is_causal, scale, window_size, softcap, causal_alignment, as `attention` has them.
    Differentiable by autograd. Holds several N_q x N_k matrices of float64.
    """
    scoring = make_scoring(q, k, **settings)
    q, k, v = q.double(), expand_heads(k, q).double(), expand_heads(v, q).double()
    scores = scoring.capped(scoring.scale * (q @ k.mT))
    i, j = torch.arange(q.shape[-2], device=q.device), torch.arange(k.shape[-2], device=q.device)
    sees = scoring.visible(i, j)
    sees_any = sees.any(dim=-1)
    # Rows that see nothing are computed as if they saw everything, and dropped: an -inf of -inf has no gradient.
    logsumexp = torch.logsumexp(torch.where(sees | ~sees_any[:, None], scores, -torch.inf), dim=-1)
    # Masked before the exponential: of a hidden score far above the rest it is infinite, and 0 times that no gradient.
    weights = torch.exp(torch.where(sees, scores - logsumexp[..., None], -torch.inf))
    return weights @ v, torch.where(sees_any, logsumexp, -torch.inf)
