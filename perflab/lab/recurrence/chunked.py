"""The gated linear recurrence by chunks, in plain PyTorch: products of matrices instead of a step a token.

Shapes
    q, k               (B, H, T, K); seen as (B, H, N, C, K): N chunks of C tokens, the last one filled up with zeros
    v, out             (B, H, T, V)
    log_decay g        (B, H, T, K) or (B, H, T, 1)
    state S            (B, H, K, V)

    o_i = (q_i exp(since_i)) S + sum_{j <= i} s_ij v_j      since_i = sum of g from the chunk's start to i
    S'  = diag(exp(since_C)) S + sum_j (k_j exp(after_j))^T v_j    after_j = sum of g behind j, to the chunk's end
    s_ij = sum over channels of q_i k_j exp(g_{j+1} + ... + g_i)

Written as exp(since_i) exp(-since_j), the last line overflows under strong decay, and as exp(since_i - since_j) it
loses digits: the difference of two large sums. Yang et al. (2024), "Gated Linear Attention", section 4.3, cut a chunk
into smaller ones for that. Here it is cut in half, and each half again: between two halves
s = (q exp(since)) (k exp(after))^T with sums that begin and end where the halves meet. No sum is subtracted and no
exponent is above zero, so a decay of -inf (the start of a sequence) is as good as any other, in the gradient too.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from perflab.lab.attention.inputs import accumulation_dtype


def chunked_recurrence(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor | None, chunk: int
) -> tuple[Tensor, Tensor]:
    """The output, in the dtype of q, and the state behind the last token, float32 at least. `chunk`: a power of two.

    Computed in float32 at least. Differentiable by autograd; it holds a state a chunk.
    """
    length, dtype, wide = q.shape[2], q.dtype, accumulation_dtype(q.dtype)
    chunk = min(chunk, 1 << (length - 1).bit_length())
    q, k, v, log_decay = (_in_chunks(x.to(wide), chunk) for x in (q, k, v, log_decay))
    scores, since, after = _scores(q, k, log_decay)
    kept = since[..., -1:, :].exp().mT  # (B, H, N, K or 1, 1)
    written = (k * after.exp()).mT @ v
    held = torch.zeros_like(written[:, :, 0]) if state is None else state.to(wide)
    entering = []
    for n in range(q.shape[2]):
        entering.append(held)
        held = kept[:, :, n] * held + written[:, :, n]
    out = scores @ v + (q * since.exp()) @ torch.stack(entering, dim=2)
    return out.flatten(2, 3)[:, :, :length].to(dtype), held


def _scores(q: Tensor, k: Tensor, log_decay: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """s_ij (..., C, C), zero for j > i; and the sums of log decay since a chunk's start and after each token."""
    scores = (q * k).sum(-1)[..., None, None]  # (..., C, 1, 1): blocks of one token
    since, after = log_decay, torch.zeros_like(log_decay)
    while (size := scores.shape[-1]) < q.shape[-2]:
        (_, late_q), (early_k, _) = _halves(q, size), _halves(k, size)
        (early_since, late_since), (early_after, late_after) = _halves(since, size), _halves(after, size)
        across = (late_q * late_since.exp()) @ (early_k * early_after.exp()).mT
        early, late = scores.view(*scores.shape[:-3], -1, 2, size, size).unbind(-3)
        first_rows = torch.cat((early, torch.zeros_like(early)), dim=-1)
        scores = torch.cat((first_rows, torch.cat((across, late), dim=-1)), dim=-2)
        since = torch.cat((early_since, late_since + early_since[..., -1:, :]), dim=-2).flatten(-3, -2)
        after = torch.cat((early_after + late_since[..., -1:, :], late_after), dim=-2).flatten(-3, -2)
    return scores.squeeze(-3), since, after


def _halves(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """(..., C, K) as its even and its odd blocks of `size` tokens, (..., C / (2 size), size, K) each."""
    early, late = x.reshape(*x.shape[:-2], -1, 2, size, x.shape[-1]).unbind(-3)
    return early, late


def _in_chunks(x: Tensor, chunk: int) -> Tensor:
    """(B, H, T, K) as (B, H, N, C, K). Zeros behind the end change nothing: k writes nothing, g keeps everything."""
    missing = -x.shape[2] % chunk
    filled = F.pad(x, (0, 0, 0, missing)) if missing else x
    return filled.reshape(*x.shape[:2], -1, chunk, x.shape[-1])
