"""Block-sparse attention by a pattern: the definition, FlexAttention, and Triton kernels that walk lists of blocks.

Shapes: q, out (B, H, N, D); k, v (B, H_kv, N, D), H a multiple of H_kv. N is the pattern's length.

    out_i = sum_j p_ij v_j,    p_ij = softmax_j(scale q_i . k_j) over the keys j that the pattern lets query i see

Every query sees its own key, so none is left without any.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from perflab.lab.attention.compiling import compiled_apart
from perflab.lab.attention.dispatch import import_triton_pattern
from perflab.lab.attention.inputs import check_inputs
from perflab.lab.attention.pattern import Pattern
from perflab.lab.attention.scoring import default_scale, expand_heads

FORMS = ("definition", "flex", "triton")
"""The definition in float64, cast to the inputs' dtype; FlexAttention, forward only on a CPU; Triton kernels."""
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def reference_pattern_attention(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, scale: float | None = None
) -> Tensor:
    """The definition in float64, by a mask of N x N. Differentiable by autograd."""
    q, k, v = q.double(), expand_heads(k, q).double(), expand_heads(v, q).double()
    scores = (default_scale(q.shape[-1]) if scale is None else scale) * (q @ k.mT)
    return torch.softmax(scores.masked_fill(~pattern.mask(q.device), -torch.inf), dim=-1) @ v


def pattern_attention(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, *, form: str = "triton", scale: float | None = None
) -> Tensor:
    """Attention of q (B, H, N, D) over the keys that the pattern lets each query see, by one of FORMS.

    One floating dtype and device, any strides; scale None means 1 / sqrt(D). Returns (B, H, N, D) in the inputs' dtype.
    "triton" takes head dimensions up to 256 and no float64. It and the definition are differentiable; "flex" on CUDA.

    Raises ValueError for an unknown form, and for shapes and devices that do not fit; TypeError for dtypes;
    NotImplementedError for gradients of "flex" on a CPU; RuntimeError where Triton cannot run; ImportError without it.
    """
    if form not in FORMS:
        raise ValueError(f"unknown form {form!r} of pattern_attention; choose one of: {', '.join(FORMS)}")
    check_inputs(q, k, v, name=f"pattern ({form})", dtypes=_DTYPES if form == "triton" else (torch.float64, *_DTYPES))
    if not q.shape[-2] == k.shape[-2] == pattern.length:
        raise ValueError(
            f"pattern_attention wants q, k and v of the pattern's length={pattern.length}; got {q.shape[-2]} queries "
            f"and {k.shape[-2]} keys. Make the pattern with that length"
        )
    if form == "definition":
        return reference_pattern_attention(q, k, v, pattern, scale).to(q.dtype)
    scale = default_scale(q.shape[-1]) if scale is None else scale
    if form == "flex":
        return _flex(q, k, v, pattern, scale)
    found: Tensor = import_triton_pattern().triton_pattern_attention(q, k, v, pattern, scale)
    return found


def _flex(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, scale: float) -> Tensor:
    if q.device.type == "cpu":
        if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
            raise NotImplementedError(
                "pattern_attention form 'flex' has no backward on cpu; call it under torch.no_grad(), or choose one of "
                "definition, triton"
            )
        q, k, v = q.detach(), k.detach(), v.detach()
    found: Tensor = _compiled_flex(scale, q.shape, k.shape, q.dtype, q.device)(q, k, v, block_mask(pattern, q.device))
    return found


@cache
def _compiled_flex(
    scale: float, query_shape: torch.Size, key_shape: torch.Size, dtype: torch.dtype, device: torch.device
) -> Callable[..., Any]:
    """Return one configuration's compiled function. Arguments that it does not read tell configurations apart."""
    from torch.nn.attention import flex_attention as flex

    enable_gqa = query_shape[1] != key_shape[1]

    def run(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Any:
        return flex.flex_attention(q, k, v, block_mask=mask, scale=scale, enable_gqa=enable_gqa)

    return compiled_apart(run, backend="eager" if device.type == "cpu" else "inductor")  # type: ignore[arg-type]


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # it outlives the call
def block_mask(pattern: Pattern, device: torch.device) -> Any:
    """The pattern as FlexAttention's BlockMask: blocks that are seen whole, and those that the diagonal or end cuts."""
    from torch.nn.attention.flex_attention import BlockMask

    table = pattern.seen_blocks().to(device)
    side, is_causal = pattern.block, pattern.is_causal

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        allowed = table[query // side, key // side]
        return allowed & (key <= query) if is_causal else allowed

    blocks = torch.arange(pattern.num_blocks, device=device)
    cut = torch.zeros_like(table)
    if is_causal:
        cut |= blocks[:, None] == blocks[None, :]
    if pattern.length % side:
        cut[-1], cut[:, -1] = True, True

    def listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
        which = torch.argsort(chosen.to(torch.int8), dim=-1, descending=True, stable=True)
        return chosen.sum(dim=-1, dtype=torch.int32)[None, None], which.to(torch.int32)[None, None]

    return BlockMask.from_kv_blocks(
        *listed(table & cut), *listed(table & ~cut),
        BLOCK_SIZE=side, mask_mod=seen, seq_lengths=(pattern.length, pattern.length),
    )  # fmt: skip
