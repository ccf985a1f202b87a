"""Launches of the Triton backward kernels.

Shapes: q, out, d_out, dq (B, H, N_q, D); k, v, dk, dv (B, H, N_k, D); logsumexp, d_logsumexp (B, H, N_q).

This module imports Triton; see triton_forward for where it runs.
"""

import torch
import triton
from torch import Tensor

from perflab.lab.attention.triton_backward_kernel import (
    attention_delta_kernel,
    attention_dk_dv_kernel,
    attention_dq_kernel,
)
from perflab.lab.attention.triton_forward import LOG2_E, emulates_bf16, require_runnable, shared_memory_bytes
from perflab.lab.attention.triton_tiles import DELTA_ROWS, choose_tiles, padded_head_dim


def triton_backward(
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
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv of (B, H, N, D) tensors, in the inputs' dtype; any strides, those of d_out included.

    RuntimeError where neither the device nor Triton's interpreter can run it.
    """
    require_runnable(q.device)
    batch, num_heads, num_queries, head_dim = q.shape
    num_keys = k.shape[-2]
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    delta = torch.empty_like(logsumexp)
    lengths = num_heads, num_queries, num_keys, scale, scale * LOG2_E
    block_d = padded_head_dim(head_dim)
    fixed = {
        "IS_CAUSAL": is_causal,
        "EMULATE_BF16": emulates_bf16(q.dtype),
        "HEAD_DIM": head_dim,
        "BLOCK_D": block_d,
        "enable_fp_fusion": True,  # the default up to Triton 3.9, which warns that 3.10 changes it
    }
    strides = *q.stride(), *k.stride(), *v.stride(), *d_out.stride()
    with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]
        limit = shared_memory_bytes(q.device)
        attention_delta_kernel[(triton.cdiv(num_queries, DELTA_ROWS) * batch * num_heads,)](
            out, d_out, logsumexp if d_logsumexp is None else d_logsumexp.contiguous(), delta,
            *out.stride(), *d_out.stride(), num_heads, num_queries,
            HAS_D_LOGSUMEXP=d_logsumexp is not None, HEAD_DIM=head_dim, BLOCK_Q=DELTA_ROWS, BLOCK_D=block_d,
            enable_fp_fusion=True,
        )  # fmt: skip
        tiles = choose_tiles("dk_dv", head_dim, q.dtype, limit)
        attention_dk_dv_kernel[(triton.cdiv(num_keys, tiles.block_k) * batch * num_heads,)](
            q, k, v, d_out, logsumexp, delta, dk, dv, *strides, *dk.stride(), *dv.stride(), *lengths,
            BLOCK_Q=tiles.block_q, BLOCK_K=tiles.block_k,
            num_warps=tiles.num_warps, num_stages=tiles.num_stages, **fixed,
        )  # fmt: skip
        tiles = choose_tiles("dq", head_dim, q.dtype, limit)
        attention_dq_kernel[(triton.cdiv(num_queries, tiles.block_q) * batch * num_heads,)](
            q, k, v, d_out, logsumexp, delta, dq, *strides, *dq.stride(), *lengths,
            BLOCK_Q=tiles.block_q, BLOCK_K=tiles.block_k,
            num_warps=tiles.num_warps, num_stages=tiles.num_stages, **fixed,
        )  # fmt: skip
    return dq, dk, dv
