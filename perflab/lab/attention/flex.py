"""PyTorch's FlexAttention: the scoring as Python functions, which its compiler puts into its own flash kernels.

Shapes: q (B, H, N_q, D); k, v (B, H_kv, N_k, D), H a multiple of H_kv; out (B, H, N_q, D); logsumexp (B, H, N_q).

    score_mod(s) = c tanh(s / c)        mask_mod(i, j) = (lower <= j - i or j < sinks) and j - i <= upper

A block mask tells the kernels which 128 x 128 blocks of the scores hold anything, and which hold everything. For a band
that is arithmetic on the blocks' corners; PyTorch's own `create_block_mask` would evaluate all N_q x N_k scores.

On CUDA it is compiled, for each configuration anew. On a CPU PyTorch's unfused implementation runs, which holds the
N_q x N_k scores and has no backward: it shows that the mathematics is right, and nothing of the speed.

Source: Dong et al. (2024), "Flex Attention: A Programming Model for Generating Optimized Attention Kernels".
"""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Unpack

import torch
from torch import Tensor

from perflab.lab.attention.compiling import compiled_apart
from perflab.lab.attention.scoring import Scoring, Settings, make_scoring

BLOCK = 128
"""Side of a block in the block mask: FlexAttention's own default."""


def flex_attention(
    q: Tensor, k: Tensor, v: Tensor, *, with_logsumexp: bool, **settings: Unpack[Settings]
) -> tuple[Tensor, Tensor | None]:
    """Out, and the log-sum-exp where it is asked for, both differentiable on CUDA."""
    scoring = make_scoring(q, k, **settings)
    if q.device.type == "cpu":  # it refuses tensors that want a gradient, though none is recorded
        q, k, v = q.detach(), k.detach(), v.detach()
    run = _compiled(with_logsumexp, scoring, q.shape, k.shape, q.dtype, q.device)
    mask = band_block_mask(scoring.lower, scoring.upper, q.shape[-2], k.shape[-2], q.device, scoring.sinks)
    found: Any = run(q, k, v, mask)
    if not with_logsumexp:
        return found, None
    out, ends = found
    return out, ends if isinstance(ends, Tensor) else ends.lse


@cache
def _compiled(
    with_logsumexp: bool,
    scoring: Scoring,
    query_shape: torch.Size,
    key_shape: torch.Size,
    dtype: torch.dtype,
    device: torch.device,
) -> Callable[..., Any]:
    """Return one configuration's compiled function. Arguments that it does not read tell configurations apart."""
    from torch.nn.attention import flex_attention as flex

    asked: dict[str, Any] = {}
    if with_logsumexp:
        # `return_lse` became `return_aux` on the way; where there are both, the older one warns.
        asked = {"return_aux": flex.AuxRequest(lse=True)} if hasattr(flex, "AuxRequest") else {"return_lse": True}
    scale, enable_gqa = scoring.scale, query_shape[1] != key_shape[1]

    def capped(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return scoring.capped(score)

    score_mod = None if scoring.softcap is None else capped

    def run(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Any:
        return flex.flex_attention(
            q, k, v, score_mod=score_mod, block_mask=mask, scale=scale, enable_gqa=enable_gqa, **asked
        )

    # Also on a CPU it is traced once, and not at each call as by FlexAttention itself, which then warns of that.
    return compiled_apart(run, backend="eager" if device.type == "cpu" else "inductor")  # type: ignore[arg-type]


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # it outlives the call, and may be needed where gradients are recorded
def band_block_mask(
    lower: int | None, upper: int | None, num_queries: int, num_keys: int, device: torch.device, sinks: int = 0
) -> Any:
    """The band lower <= j - i <= upper (None: no bound) as a BlockMask; None where there is no bound at all.

    Keys before `sinks` have no lower bound.

    A block with a score that is seen is listed, and as a full one if all of its scores are; a block that reaches
    past the last query or key is never full.
    """
    from torch.nn.attention.flex_attention import BlockMask

    if lower is None and upper is None:
        return None

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        ahead = key - query
        if lower is None:
            return ahead <= upper  # type: ignore[operator]
        near = (ahead >= lower) | (key < sinks) if sinks else ahead >= lower
        return near if upper is None else near & (ahead <= upper)

    first_query, last_query = _ends(num_queries, device)
    first_key, last_key = _ends(num_keys, device)
    # How far keys lie ahead of queries within a block: from its lower left corner to its upper right one.
    least, most = first_key[None, :] - last_query[:, None], last_key[None, :] - first_query[:, None]
    any_seen, all_seen = torch.ones_like(least, dtype=torch.bool), torch.ones_like(least, dtype=torch.bool)
    if lower is not None:
        any_seen = any_seen & ((most >= lower) | (first_key < sinks))
        all_seen = all_seen & ((least >= lower) | (last_key < sinks))
    if upper is not None:
        any_seen, all_seen = any_seen & (least <= upper), all_seen & (most <= upper)
    if lower is not None and upper is not None:
        any_seen &= (first_key < sinks) | (lower <= upper)
    whole = ((first_query + BLOCK <= num_queries)[:, None]) & ((first_key + BLOCK <= num_keys)[None, :])
    full = any_seen & all_seen & whole
    return BlockMask.from_kv_blocks(
        *_listed(any_seen & ~full), *_listed(full),
        BLOCK_SIZE=BLOCK, mask_mod=seen, seq_lengths=(num_queries, num_keys),
    )  # fmt: skip


def _ends(length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """First and last position of each block."""
    first = torch.arange(0, length, BLOCK, device=device)
    return first, (first + BLOCK - 1).clamp(max=length - 1)


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks (query blocks, key blocks) of bool as FlexAttention wants them: how many each row has, and which first."""
    which = torch.argsort(blocks.to(torch.int8), dim=-1, descending=True, stable=True)
    return blocks.sum(dim=-1, dtype=torch.int32)[None, None], which.to(torch.int32)[None, None]
