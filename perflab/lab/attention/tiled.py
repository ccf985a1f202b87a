"""FlashAttention-2 in plain PyTorch: forward and backward by tiles, nothing of size N x N ever held.

Shapes
    q, out, d_out, dq  (..., H, N_q, D)
    k, v, dk, dv       (..., H_kv, N_k, D), H a multiple of H_kv
    logsumexp          (..., H, N_q), float32 (float64 for float64 inputs), natural logarithm
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
log-sum-exp itself adds p_ij dL_i to ds_ij, since dL_i / ds_ij = p_ij: it goes into delta. A soft cap
c tanh(s / c) multiplies ds_ij by its slope 1 - tanh^2.

Which keys a query sees is a band of the score matrix (see `scoring`): tiles outside of it are never visited.
With grouped heads a tile of queries holds all the query heads that read one head of k and v.
Sums are float32 (float64 for float64 inputs).
"""

from typing import Any

import torch
from torch import Tensor

from perflab.lab.attention.inputs import accumulation_dtype, check_inputs
from perflab.lab.attention.registry import IMPLEMENTATIONS
from perflab.lab.attention.scoring import Scoring, make_scoring

# Large enough that a tile's matmul outweighs the launch of its dozen small operators; small enough
# that a score tile (TILE x TILE) is no more than an operand (N x D) from N = 256 at D = 64 on.
TILE = 128


def tiled_forward(q: Tensor, k: Tensor, v: Tensor, scoring: Scoring, tile: int = TILE) -> tuple[Tensor, Tensor]:
    """Output in the inputs' dtype, and the natural log-sum-exp. Not for autograd: see the class."""
    if _shares_heads(q, k):
        out, logsumexp = tiled_forward(_grouped(q, k), k.unsqueeze(2), v.unsqueeze(2), scoring, tile)
        return out.flatten(1, 2), logsumexp.flatten(1, 2)
    num_queries, num_keys = q.shape[-2], k.shape[-2]
    dtype = accumulation_dtype(q.dtype)
    out = torch.empty_like(q)
    logsumexp = torch.empty(q.shape[:-1], dtype=dtype, device=q.device)
    # In the first tiles that it visits: below a lower bound that is common, else it takes queries before every key.
    may_see_nothing = scoring.lower is not None or (scoring.upper is not None and scoring.upper < 0)

    for q_start in range(0, num_queries, tile):
        rows = slice(q_start, min(q_start + tile, num_queries))
        q_tile = q[..., rows, :].to(dtype)
        accumulator = torch.zeros_like(q_tile)
        row_sum = torch.zeros(q_tile.shape[:-1], dtype=dtype, device=q.device)
        row_max = torch.full_like(row_sum, -torch.inf)

        seen = _tiles_seen(rows, num_keys, scoring.lower, scoring.upper, tile)
        # The sinks' tiles lie ahead of the band's, as far as these do not begin there.
        of_sinks = range(0, min(scoring.sinks, seen.start, seen.stop), tile) if scoring.sinks else range(0)
        for k_start in (*of_sinks, *seen):
            keys = slice(k_start, min(k_start + tile, num_keys))
            scores, _ = _scores(q_tile, k[..., keys, :].to(dtype), rows, keys, scoring)
            shift = new_max = torch.maximum(row_max, scores.amax(dim=-1))
            if may_see_nothing:  # such a row has the maximum -inf, and -inf less -inf is no number
                shift = new_max.masked_fill(new_max == -torch.inf, 0.0)
            weights = torch.exp(scores - shift[..., None])
            rescale = torch.exp(row_max - shift)
            row_sum = row_sum * rescale + weights.sum(dim=-1)
            accumulator = accumulator * rescale[..., None] + weights @ v[..., keys, :].to(dtype)
            row_max = new_max

        if may_see_nothing:
            row_sum = row_sum.masked_fill(row_sum == 0, 1.0)
        out[..., rows, :] = accumulator / row_sum[..., None]
        logsumexp[..., rows] = row_max + torch.log(row_sum)
    return out, logsumexp


def tiled_backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    scoring: Scoring,
    d_logsumexp: Tensor | None = None,
    tile: int = TILE,
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv in the inputs' dtypes, from the saved output and log-sum-exp."""
    if _shares_heads(q, k):
        d_ends = None if d_logsumexp is None else _grouped(d_logsumexp, k)
        d_out, grouped_q, out, logsumexp = (_grouped(x, k) for x in (d_out, q, out, logsumexp))
        dq, dk, dv = tiled_backward(
            d_out, grouped_q, k.unsqueeze(2), v.unsqueeze(2), out, logsumexp, scoring, d_ends, tile
        )  # fmt: skip
        return dq.flatten(1, 2), dk.squeeze(2), dv.squeeze(2)
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
    # A row that sees nothing has no weights: exp(s - inf).
    ends = logsumexp
    if scoring.leaves_queries_without_keys(num_queries, num_keys):
        ends = logsumexp.masked_fill(logsumexp == -torch.inf, torch.inf)

    for k_start in range(0, num_keys, tile):
        keys = slice(k_start, min(k_start + tile, num_keys))
        k_tile, v_tile = k[..., keys, :].to(dtype), v[..., keys, :].to(dtype)
        dk_tile, dv_tile = torch.zeros_like(k_tile), torch.zeros_like(v_tile)

        # Seen from the keys the band is mirrored: key j is seen by the queries i with -upper <= i - j <= -lower.
        seen = _tiles_seen(keys, num_queries, _negated(scoring.upper), _negated(scoring.lower), tile)
        # Sinks are seen by all later queries, too.
        last = num_queries if keys.start < scoring.sinks else seen.stop
        for q_start in range(seen.start, max(seen.stop, last), tile):
            rows = slice(q_start, min(q_start + tile, num_queries))
            q_tile, d_out_tile = q[..., rows, :].to(dtype), d_out[..., rows, :].to(dtype)
            scores, slope = _scores(q_tile, k_tile, rows, keys, scoring)
            weights = torch.exp(scores - ends[..., rows, None])
            dv_tile += _summed(weights.mT @ d_out_tile, dv_tile)
            d_scores = weights * (d_out_tile @ v_tile.mT - delta[..., rows, None]) * scoring.scale
            if slope is not None:
                d_scores = d_scores * slope
            dq[..., rows, :] += d_scores @ k_tile
            dk_tile += _summed(d_scores.mT @ q_tile, dk_tile)

        dk[..., keys, :] = dk_tile
        dv[..., keys, :] = dv_tile
    return dq.to(out.dtype), dk, dv


def _shares_heads(q: Tensor, k: Tensor) -> bool:
    return q.dim() == k.dim() == 4 and q.shape[1] != k.shape[1]


def _grouped(x: Tensor, k: Tensor) -> Tensor:
    """(B, H, ...) as a view (B, H_kv, H / H_kv, ...), beside k (B, H_kv, 1, N_k, D): they broadcast."""
    return torch.unflatten(x, 1, (k.shape[1], x.shape[1] // k.shape[1]))


def _summed(x: Tensor, like: Tensor) -> Tensor:
    """Summed over the query heads that share a head, if any do."""
    return x if x.shape == like.shape else x.sum(dim=-3, keepdim=True)


def _tiles_seen(own: slice, others: int, lower: int | None, upper: int | None, tile: int) -> range:
    """Return the starts of the tiles of `others` positions of which any position is seen from the positions `own`."""
    first = 0 if lower is None else max(0, own.start + lower)
    stop = others if upper is None else min(others, own.stop + upper)
    return range(first // tile * tile, stop, tile)


def _negated(bound: int | None) -> int | None:
    return None if bound is None else -bound


def _scores(q_tile: Tensor, k_tile: Tensor, rows: slice, keys: slice, scoring: Scoring) -> tuple[Tensor, Tensor | None]:
    """One tile of scores, -inf where they are not seen; and the soft cap's slope, None without one."""
    scores = scoring.capped((q_tile @ k_tile.mT) * scoring.scale)
    slope = None if scoring.softcap is None else 1 - (scores / scoring.softcap).square()
    # Only tiles that an edge of the band cuts need a mask.
    if scoring.upper is not None and keys.stop - 1 - rows.start > scoring.upper:
        last = torch.arange(rows.start + scoring.upper, rows.stop + scoring.upper, device=scores.device)
        j = torch.arange(keys.start, keys.stop, device=scores.device)
        scores = scores.masked_fill(j[None, :] > last[:, None], -torch.inf)
    if scoring.lower is not None and keys.start - (rows.stop - 1) < scoring.lower:
        first = torch.arange(rows.start + scoring.lower, rows.stop + scoring.lower, device=scores.device)
        j = torch.arange(keys.start, keys.stop, device=scores.device)
        scores = scores.masked_fill((j[None, :] < first[:, None]) & (j >= scoring.sinks), -torch.inf)
    return scores, slope


class FlashAttentionPyTorch(torch.autograd.Function):
    """`FlashAttentionPyTorch.apply(q, k, v, is_causal=False, scale=None, return_logsumexp=False, ...)`.

    q (B, N_q, D) with k, v (B, N_k, D), or (B, H, N_q, D) with (B, H_kv, N_k, D); float16, bfloat16,
    float32 or float64, one dtype and one device; any strides. scale None means 1 / sqrt(D). Then come
    window_size=None, softcap=None, causal_alignment="top-left" and sinks=0, as `attention` has them.

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
        window_size: tuple[int, int] | None = None,
        softcap: float | None = None,
        causal_alignment: str = "top-left",
        sinks: int = 0,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """See the class."""
        check_inputs(q, k, v, name="tiled", dtypes=IMPLEMENTATIONS["tiled"].dtypes, dims=(3, 4))
        ctx.scoring = make_scoring(
            q, k, is_causal=is_causal, scale=scale,
            window_size=window_size, softcap=softcap, causal_alignment=causal_alignment, sinks=sinks,
        )  # fmt: skip
        with torch.autocast(q.device.type, enabled=False):  # it would round the float32 products
            out, logsumexp = tiled_forward(q, k, v, ctx.scoring)
        ctx.save_for_backward(q, k, v, out, logsumexp)
        return (out, logsumexp) if return_logsumexp else out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_logsumexp: Tensor | None = None) -> tuple[Tensor | None, ...]:
        """Gradients of q, k and v; d_logsumexp is None unless `apply` returned the log-sum-exp."""
        refuse_second_derivative()
        q, k, v, out, logsumexp = ctx.saved_tensors
        with torch.autocast(q.device.type, enabled=False):
            dq, dk, dv = tiled_backward(d_out, q, k, v, out, logsumexp, ctx.scoring, d_logsumexp)
        return dq, dk, dv, *[None] * 7


def refuse_second_derivative() -> None:
    """RuntimeError if a backward is being differentiated itself."""
    # once_differentiable would let a second derivative through as if it were zero whenever the upstream
    # gradient is a constant. Gradients are recorded here under create_graph=True alone.
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            "flash attention has no second derivative here, and create_graph=True asks for one; "
            "choose impl='naive' or drop create_graph"
        )
