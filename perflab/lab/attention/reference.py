"""The definition of attention, in float64. A specification: it reads as the equation and is never optimised.

Shapes
    q                  (..., N_q, D)
    k, v               (..., N_k, D)
    out                (..., N_q, D)
    logsumexp          (..., N_q)

    s_ij = scale * q_i . k_j                 for the keys j that query i sees, -inf for the others
    L_i  = log sum_j exp(s_ij)
    o_i  = sum_j exp(s_ij - L_i) v_j

Causal: query i sees the keys j <= i, counted from the first of each ("top-left", as `is_causal` of
torch.nn.functional.scaled_dot_product_attention has it), also where N_q and N_k differ.
"""

import torch
from torch import Tensor

from perflab.lab.attention.inputs import default_scale


def reference_attention(
    q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Attention and its natural log-sum-exp, both float64, of inputs of any floating dtype.

    Differentiable by autograd. Holds several N_q x N_k matrices of float64.
    """
    q, k, v = q.double(), k.double(), v.double()
    scale = default_scale(q.shape[-1]) if scale is None else scale
    scores = scale * (q @ k.mT)
    if is_causal:
        i = torch.arange(q.shape[-2], device=q.device)[:, None]
        j = torch.arange(k.shape[-2], device=q.device)[None, :]
        scores = torch.where(j <= i, scores, -torch.inf)
    logsumexp = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - logsumexp[..., None])
    return weights @ v, logsumexp
