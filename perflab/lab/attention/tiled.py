"""FlashAttention-2 in plain PyTorch: forward and backward by tiles, nothing of size N x N ever held.

Shapes
    q, out, d_out, dq  (..., N_q, D)
    k, v, dk, dv       (..., N_k, D)
    logsumexp          (..., N_q), float32 (float64 for float64 inputs), natural logarithm
    one tile           (..., TILE, TILE) of scores, (..., TILE, D) of operands

Forward (Dao 2023, "FlashAttention-2", Algorithm 1): for one tile of queries, walk over the key tiles
and keep the running row maximum m, row sum l and unnormalised output a,

    m' = max(m, max_j s_ij)    l' = exp(m - m') l + sum_j exp(s_ij - m')
    a' = exp(m - m') a + sum_j exp(s_ij - m') v_j

and at the end out = a / l and logsumexp L = m + log l.

Backward (Algorithm 2): the weights come back from L, one tile at a time, p_ij = exp(s_ij - L_i), and

    dv_j = sum_i p_ij do_i    dp_ij = do_i . v_j    ds_ij = p_ij (dp_ij - delta_i)
    dq_i = scale sum_j ds_ij k_j    dk_j = scale sum_i ds_ij q_i    delta_i = do_i . o_i

The row sum delta stands for sum_j p_ij dp_ij, which would need a whole row of p. A gradient dL of the
log-sum-exp itself adds p_ij dL_i to ds_ij, since dL_i / ds_ij = p_ij: it goes into delta.

Sums are float32 (float64 for float64 inputs). Causal is aligned top-left: query i sees keys j <= i.
"""

from typing import Any

import torch
from torch import Tensor

from perflab.lab.attention.inputs import accumulation_dtype, check_inputs, default_scale
from perflab.lab.attention.registry import IMPLEMENTATIONS

# Large enough that a tile's matmul outweighs the launch of its dozen small operators; small enough
# that a score tile (TILE x TILE) is no more than an operand (N x D) from N = 256 at D = 64 on.
TILE = 128


def tiled_forward(
    q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, scale: float, tile: int = TILE
) -> tuple[Tensor, Tensor]:
    """Output in the inputs' dtype, and the natural log-sum-exp. Not for autograd: see the class."""
    num_queries, num_keys = q.shape[-2], k.shape[-2]
    dtype = accumulation_dtype(q.dtype)
    out = torch.empty_like(q)
    logsumexp = torch.empty(q.shape[:-1], dtype=dtype, device=q.device)

    for q_start in range(0, num_queries, tile):
        q_stop = min(q_start + tile, num_queries)
        q_tile = q[..., q_start:q_stop, :].to(dtype)
        accumulator = torch.zeros_like(q_tile)
        row_sum = torch.zeros(q_tile.shape[:-1], dtype=dtype, device=q.device)
        row_max = torch.full_like(row_sum, -torch.inf)

        for k_start in range(0, _last_visible(q_stop, num_keys, is_causal), tile):
            k_stop = min(k_start + tile, num_keys)
            scores = _scores(q_tile, k[..., k_start:k_stop, :].to(dtype), q_start, k_start, is_causal, scale)
            # The first key tile holds key 0, which every query sees: the maximum is finite at once.
            new_max = torch.maximum(row_max, scores.amax(dim=-1))
            weights = torch.exp(scores - new_max[..., None])
            rescale = torch.exp(row_max - new_max)
            row_sum = row_sum * rescale + weights.sum(dim=-1)
            accumulator = accumulator * rescale[..., None] + weights @ v[..., k_start:k_stop, :].to(dtype)
            row_max = new_max

        out[..., q_start:q_stop, :] = accumulator / row_sum[..., None]
        logsumexp[..., q_start:q_stop] = row_max + torch.log(row_sum)
    return out, logsumexp


def tiled_backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    *,
    is_causal: bool,
    scale: float,
    d_logsumexp: Tensor | None = None,
    tile: int = TILE,
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv in the inputs' dtypes, from the saved output and log-sum-exp."""
    num_queries, num_keys = q.shape[-2], k.shape[-2]
    dtype = accumulation_dtype(q.dtype)
    # dq is added up over the outer loop, so it must be kept in the precision of the sums.
    dq = torch.zeros(q.shape, dtype=dtype, device=q.device)
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    delta = torch.empty_like(logsumexp)
    for q_start in range(0, num_queries, tile):  # tiled too: the product is as large as out in float32
        rows = slice(q_start, q_start + tile)
        delta[..., rows] = (d_out[..., rows, :].to(dtype) * out[..., rows, :].to(dtype)).sum(dim=-1)
    if d_logsumexp is not None:
        delta -= d_logsumexp

    for k_start in range(0, num_keys, tile):
        k_stop = min(k_start + tile, num_keys)
        k_tile = k[..., k_start:k_stop, :].to(dtype)
        v_tile = v[..., k_start:k_stop, :].to(dtype)
        dk_tile, dv_tile = torch.zeros_like(k_tile), torch.zeros_like(v_tile)

        # Queries before a key tile's first key see nothing of it: those tiles lie above the diagonal.
        for q_start in range(k_start if is_causal else 0, num_queries, tile):
            rows = slice(q_start, min(q_start + tile, num_queries))
            q_tile = q[..., rows, :].to(dtype)
            d_out_tile = d_out[..., rows, :].to(dtype)
            scores = _scores(q_tile, k_tile, q_start, k_start, is_causal, scale)
            weights = torch.exp(scores - logsumexp[..., rows, None])
            dv_tile += weights.mT @ d_out_tile
            d_scores = weights * (d_out_tile @ v_tile.mT - delta[..., rows, None]) * scale
            dq[..., rows, :] += d_scores @ k_tile
            dk_tile += d_scores.mT @ q_tile

        dk[..., k_start:k_stop, :] = dk_tile
        dv[..., k_start:k_stop, :] = dv_tile
    return dq.to(q.dtype), dk, dv


def _last_visible(q_stop: int, num_keys: int, is_causal: bool) -> int:
    """One past the last key that any query before q_stop sees: tiles above the diagonal are skipped."""
    return min(q_stop, num_keys) if is_causal else num_keys


def _scores(q_tile: Tensor, k_tile: Tensor, q_start: int, k_start: int, is_causal: bool, scale: float) -> Tensor:
    """One tile of scaled scores, -inf above the diagonal."""
    scores = (q_tile @ k_tile.mT) * scale
    num_queries, num_keys = scores.shape[-2:]
    if is_causal and k_start + num_keys - 1 > q_start:  # only tiles that the diagonal cuts need a mask
        i = torch.arange(q_start, q_start + num_queries, device=scores.device)[:, None]
        j = torch.arange(k_start, k_start + num_keys, device=scores.device)[None, :]
        scores = scores.masked_fill(j > i, -torch.inf)
    return scores


class FlashAttentionPyTorch(torch.autograd.Function):
    """`FlashAttentionPyTorch.apply(q, k, v, is_causal=False, scale=None, return_logsumexp=False)`.

    q (B, N_q, D) with k, v (B, N_k, D), or (B, H, N_q, D) with (B, H, N_k, D); float16, bfloat16,
    float32 or float64, one dtype and one device; any strides. scale None means 1 / sqrt(D).

    Returns out, of q's shape and dtype; with return_logsumexp (out, logsumexp), both differentiable.
    Saves q, k, v, out and the log-sum-exp: one saved tensor has the shape (B, N_q) or (B, H, N_q).
    Once differentiable. Raises ValueError and TypeError for inputs that do not fit together.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        is_causal: bool = False,
        scale: float | None = None,
        return_logsumexp: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """See the class."""
        check_inputs(q, k, v, name="tiled", dtypes=IMPLEMENTATIONS["tiled"].dtypes, dims=(3, 4))
        scale = default_scale(q.shape[-1]) if scale is None else scale
        with torch.autocast(q.device.type, enabled=False):  # it would round the float32 products
            out, logsumexp = tiled_forward(q, k, v, is_causal=is_causal, scale=scale)
        return save_for_backward(ctx, q, k, v, out, logsumexp, is_causal, scale, return_logsumexp)

    @staticmethod
    def backward(
        ctx: Any, d_out: Tensor, d_logsumexp: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        """Gradients of q, k and v; d_logsumexp is None unless `apply` returned the log-sum-exp."""
        refuse_second_derivative()
        q, k, v, out, logsumexp = ctx.saved_tensors
        with torch.autocast(q.device.type, enabled=False):
            dq, dk, dv = tiled_backward(
                d_out, q, k, v, out, logsumexp,
                is_causal=ctx.is_causal, scale=ctx.scale, d_logsumexp=d_logsumexp,
            )  # fmt: skip
        return dq, dk, dv, None, None, None


def refuse_second_derivative() -> None:
    """RuntimeError if a backward is being differentiated itself."""
    # once_differentiable would let a second derivative through as if it were zero whenever the upstream
    # gradient is a constant. Gradients are recorded here under create_graph=True alone.
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            "flash attention has no second derivative here, and create_graph=True asks for one; "
            "choose impl='naive' or drop create_graph"
        )


def save_for_backward(
    ctx: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    is_causal: bool,
    scale: float,
    return_logsumexp: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    """What any forward must keep for `FlashAttentionPyTorch.backward`; returns what `apply` returns."""
    ctx.save_for_backward(q, k, v, out, logsumexp)
    ctx.is_causal, ctx.scale = is_causal, scale
    return (out, logsumexp) if return_logsumexp else out
