"""Hierarchical attention of two levels: the near past token by token, the far past by the means of its blocks.

Shapes: q, k, v, out (B, H, N, D); m tokens a block; pooled keys and values (B, H, N // m, D). Causal; N is any.

A query in block b sees the tokens of the blocks b - 1 and b up to itself, and of each block c < b - 1 one key and one
value, their means over the block:

    s_ij = scale q_i . k_j            token j of the blocks b - 1 and b, j <= i
    s_ic = scale q_i . K_c + log m    block c < b - 1,    K_c = mean of its keys, V_c = mean of its values
    out_i = sum over both, by one softmax of all these scores

A mean stands for m tokens, so its weight is m times that of one: where the keys of each block are equal, this is full
attention. Scores: N (2 m + N / m) at most, least at m = sqrt(N / 2), where full causal attention has N^2 / 2.

After Zhu & Soricut (2021), "H-Transformer-1D: Fast One-Dimensional Hierarchical Attention for Sequences", section 4,
with two levels.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from perflab.lab.attention.inputs import accumulation_dtype, check_inputs
from perflab.lab.attention.scoring import default_scale

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def reference_hierarchical_attention(q: Tensor, k: Tensor, v: Tensor, block: int, scale: float | None = None) -> Tensor:
    """The definition in float64: tokens and means side by side, N x (N + N // m), masked."""
    q, k, v = q.double(), k.double(), v.double()
    scale = default_scale(q.shape[-1]) if scale is None else scale
    length, means = q.shape[-2], q.shape[-2] // block
    pooled_k, pooled_v = (torch.unflatten(x[..., : means * block, :], -2, (means, block)).mean(-2) for x in (k, v))
    i = torch.arange(length, device=q.device)[:, None]
    j, c = torch.arange(length, device=q.device), torch.arange(means, device=q.device)
    near = (j // block >= i // block - 1) & (j <= i)
    far = c < i // block - 1
    scores = scale * torch.cat((q @ k.mT, q @ pooled_k.mT + math.log(block) / scale), dim=-1)
    weights = torch.softmax(scores.masked_fill(~torch.cat((near, far), dim=-1), -torch.inf), dim=-1)
    return weights @ torch.cat((v, pooled_v), dim=-2)


def hierarchical_attention(q: Tensor, k: Tensor, v: Tensor, *, block: int, scale: float | None = None) -> Tensor:
    """The same in PyTorch, by blocks of queries: holds N (2 m + N / m) scores, in float32 (float64 for float64).

    q, k, v of one shape (B, H, N, D), dtype and device; scale None means 1 / sqrt(D). Returns (B, H, N, D) in their
    dtype. Differentiable by autograd. Raises ValueError for shapes, devices and a block below 1; TypeError for dtypes.
    """
    check_inputs(q, k, v, name="hierarchical", dtypes=_DTYPES)
    if q.shape != k.shape:
        raise ValueError(
            f"hierarchical attention wants q, k and v of one shape; got q {tuple(q.shape)} and k {tuple(k.shape)}. "
            f"Repeat grouped heads with repeat_interleave"
        )
    if block < 1:
        raise ValueError(f"hierarchical attention block={block}: wanted 1 token or more; sqrt(N / 2) costs least")
    wide = accumulation_dtype(q.dtype)
    length = q.shape[-2]
    num_blocks = -(-length // block)
    tokens, keys, values = (
        torch.unflatten(F.pad(x.to(wide), (0, 0, 0, num_blocks * block - length)), -2, (num_blocks, block))
        for x in (q, k, v)
    )
    tokens = tokens * (default_scale(q.shape[-1]) if scale is None else scale)
    # Block b - 1 beside block b: a block of zeros stands before the first.
    beside = (torch.cat((F.pad(x, (0, 0, 0, 0, 1, 0))[..., :-1, :, :], x), dim=-2) for x in (keys, values))
    near_keys, near_values = beside
    near = tokens @ near_keys.mT  # (B, H, N / m, m, 2 m)
    row = torch.arange(block, device=q.device)[:, None]
    column = torch.arange(2 * block, device=q.device)[None, :]
    before = torch.arange(num_blocks, device=q.device)[:, None, None]
    near = near.masked_fill((column > row + block) | ((before == 0) & (column < block)), -torch.inf)
    # The last block's mean, of padding too, is seen by nobody: it is no block before the last but one.
    far = tokens @ keys.mean(dim=-2).mT[..., None, :, :] + math.log(block)  # (B, H, N / m, m, N / m)
    far = far.masked_fill(torch.arange(num_blocks, device=q.device) >= before - 1, -torch.inf)
    weights = torch.softmax(torch.cat((near, far), dim=-1), dim=-1)
    of_near, of_far = weights[..., : 2 * block], weights[..., 2 * block :]
    out: Tensor = of_near @ near_values + of_far @ values.mean(dim=-2)[..., None, :, :]
    return out.flatten(-3, -2)[..., :length, :].to(q.dtype)
