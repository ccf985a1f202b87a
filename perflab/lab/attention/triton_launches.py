"""The launches of the Triton attention kernels, as data.

Shapes
    q, out, d_out, dq          (B, H, N_q, D), any strides (transposed, sliced, expanded with stride 0)
    k, v, dk, dv               (B, H_kv, N_k, D), likewise
    logsumexp, delta           (B, H, N_q), contiguous float32; d_logsumexp likewise
    dq_sum                     (B, H, N_q, D), contiguous float32

Lengths and head dimensions up to 256 are any; float16, bfloat16 or float32. Nothing is allocated or run here: with
tensors on `meta` these are what is compiled ahead of time. This module imports Triton.
"""

import math
from typing import Any

import triton
from torch import Tensor

from perflab.lab.attention.scoring import Scoring
from perflab.lab.attention.triton_backward_kernel import (
    attention_delta_kernel,
    attention_dk_dv_kernel,
    attention_dq_kernel,
)
from perflab.lab.attention.triton_forward_kernel import attention_forward_kernel
from perflab.lab.attention.triton_one_pass_kernel import attention_one_pass_kernel
from perflab.lab.attention.triton_tiles import DELTA_ROWS, Tiles, one_pass_columns, padded_head_dim
from perflab.lab.launch import Launch, emulates_bf16

LOG2_E = math.log2(math.e)
# Offsets within a tile, of 256 rows or columns at most, are 32 bits wide.
LEAST_FACTOR = 2.0**-126
"""The least normal float32: scores at a scale of zero are zero but for that."""
_MOST_STRIDE = (2**31 - 1) // 256
IN_L2_BYTES = 32 * 2**20
"""Bytes that programs side by side may walk over, to find them in the L2 cache: those of FlashAttention-3's scheduler
(`hopper/tile_scheduler.hpp`: "32 MB for K & V"), beside 40 MiB of L2 on an A100 and 50 on an H100 (data sheets)."""


def forward_launch(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, scoring: Scoring, tiles: Tiles
) -> Launch:
    """Write out and logsumexp."""
    arguments: dict[str, Any] = {
        "q_ptr": q, "k_ptr": k, "v_ptr": v, "out_ptr": out, "logsumexp_ptr": logsumexp,
        **strides_of(q=q, k=k, v=v, o=out),
        **common_arguments(q, k, scoring, tiles),
        **rising_arguments(scoring),
        "MAY_SEE_NOTHING": may_see_nothing(q, k, scoring),
        "section": section_of(q, q, k, scoring, (k, v)),
    }  # fmt: skip
    del arguments["scale"]
    return _launch(attention_forward_kernel, q, triton.cdiv(q.shape[-2], tiles.block_q), arguments, tiles)


def delta_launch(out: Tensor, d_out: Tensor, d_logsumexp: Tensor | None, delta: Tensor) -> Launch:
    """Write delta."""
    arguments: dict[str, Any] = {
        "out_ptr": out, "d_out_ptr": d_out, "d_logsumexp_ptr": delta if d_logsumexp is None else d_logsumexp,
        "delta_ptr": delta,
        **strides_of(o=out, g=d_out),
        "num_heads": out.shape[1], "num_queries": out.shape[2], "HAS_D_LOGSUMEXP": d_logsumexp is not None,
        "HEAD_DIM": out.shape[-1], "BLOCK_Q": DELTA_ROWS, "BLOCK_D": padded_head_dim(out.shape[-1]),
    }  # fmt: skip
    return _launch(attention_delta_kernel, out, triton.cdiv(out.shape[-2], DELTA_ROWS), arguments)


def dk_dv_launch(
    q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, logsumexp: Tensor, delta: Tensor, dk: Tensor, dv: Tensor,
    scoring: Scoring, tiles: Tiles,
) -> Launch:  # fmt: skip
    """Write dk and dv."""
    arguments = {
        "q_ptr": q, "k_ptr": k, "v_ptr": v, "d_out_ptr": d_out, "logsumexp_ptr": logsumexp, "delta_ptr": delta,
        "dk_ptr": dk, "dv_ptr": dv,
        **strides_of(q=q, k=k, v=v, g=d_out, dk=dk, dv=dv),
        **common_arguments(q, k, scoring, tiles),
        "section": section_of(k, q, k, scoring, (q, d_out)),
    }  # fmt: skip
    return _launch(attention_dk_dv_kernel, k, triton.cdiv(k.shape[-2], tiles.block_k), arguments, tiles)


def dq_launch(
    q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, logsumexp: Tensor, delta: Tensor, dq: Tensor,
    scoring: Scoring, tiles: Tiles,
) -> Launch:  # fmt: skip
    """Write dq."""
    arguments = {
        "q_ptr": q, "k_ptr": k, "v_ptr": v, "d_out_ptr": d_out, "logsumexp_ptr": logsumexp, "delta_ptr": delta,
        "dq_ptr": dq,
        **strides_of(q=q, k=k, v=v, g=d_out, dq=dq),
        **common_arguments(q, k, scoring, tiles),
        "section": section_of(q, q, k, scoring, (k, v)),
    }  # fmt: skip
    return _launch(attention_dq_kernel, q, triton.cdiv(q.shape[-2], tiles.block_q), arguments, tiles)


def one_pass_launch(
    q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, logsumexp: Tensor, delta: Tensor, dk: Tensor, dv: Tensor,
    dq_sum: Tensor, scoring: Scoring, tiles: Tiles,
) -> Launch:  # fmt: skip
    """Write dk and dv, and add dq / scale to dq_sum; what `one_pass_tiles` takes alone."""
    common = common_arguments(q, k, scoring, tiles)
    arguments = {
        "q_ptr": q, "k_ptr": k, "v_ptr": v, "d_out_ptr": d_out, "logsumexp_ptr": logsumexp, "delta_ptr": delta,
        "dk_ptr": dk, "dv_ptr": dv, "dq_sum_ptr": dq_sum,
        **strides_of(q=q, k=k, v=v, g=d_out, dk=dk, dv=dv),
        **{name: value for name, value in common.items() if name in attention_one_pass_kernel.arg_names},
        "section": section_of(k, q, k, scoring, (q, d_out, dq_sum)),
    }  # fmt: skip
    arguments["BLOCK_D"], arguments["BLOCK_MORE"] = one_pass_columns(q.shape[-1], is_cut=common["HAS_UPPER"])
    return _launch(attention_one_pass_kernel, k, triton.cdiv(k.shape[-2], tiles.block_k), arguments, tiles)


def problem_class(q: Tensor, k: Tensor) -> int:
    """Problems that are tuned together: equal in the powers of two of the longer length, and of all query rows."""
    length, rows = max(q.shape[-2], k.shape[-2]), q.shape[0] * q.shape[1] * q.shape[2]
    return 100 * (length - 1).bit_length() + (rows - 1).bit_length()


def _launch(
    kernel: Any, whose: Tensor, num_tiles: int, arguments: dict[str, Any], tiles: Tiles | None = None
) -> Launch:
    """`whose` tiles there are num_tiles of, for each of its heads."""
    grid = (num_tiles * whose.shape[0] * whose.shape[1],)
    if tiles is None:
        return Launch(kernel, grid, arguments, whose.device)
    return Launch(kernel, grid, arguments, whose.device, tiles.num_warps, tiles.num_stages)


def strides_of(**tensors: Tensor) -> dict[str, int]:
    """The kernels' stride arguments, by the tensors' letters. ValueError where an offset in a tile passes 32 bits."""
    for name, tensor in tensors.items():
        if max(tensor.stride()[-2:]) > _MOST_STRIDE:
            raise ValueError(
                f"attention in Triton takes strides of up to {_MOST_STRIDE} elements between rows and columns, got "
                f"{tuple(tensor.stride())} for {name}; call .contiguous() on it"
            )
    return {
        f"stride_{name}{dimension}": stride
        for name, tensor in tensors.items()
        for dimension, stride in zip("bhnd", tensor.stride(), strict=True)
    }


def common_arguments(q: Tensor, k: Tensor, scoring: Scoring, tiles: Tiles) -> dict[str, Any]:
    """The arguments of every kernel over pairs of queries and keys, by the names of its parameters."""
    num_queries, num_keys, head_dim = q.shape[-2], k.shape[-2], q.shape[-1]
    lower, upper = kernel_bounds(num_queries, num_keys, scoring)
    capped = scoring.softcap is not None
    return {
        "num_heads": q.shape[1],
        "group": q.shape[1] // k.shape[1],
        "num_queries": num_queries,
        "num_keys": num_keys,
        "scale": scoring.scale,
        "score_factor": (2 / scoring.softcap if scoring.softcap else 1.0) * scoring.scale * LOG2_E,
        "softcap_log2": scoring.softcap * LOG2_E if scoring.softcap else 0.0,
        "lower": lower or 0,
        "upper": upper or 0,
        "sinks": min(scoring.sinks, num_keys),
        "problem_class": problem_class(q, k),
        "HAS_LOWER": lower is not None,
        "HAS_UPPER": upper is not None,
        "HAS_SINKS": lower is not None and scoring.sinks > 0,
        "HAS_SOFTCAP": capped,
        "EMULATE_BF16": emulates_bf16(q.dtype),
        "HEAD_DIM": head_dim,
        "BLOCK_Q": tiles.block_q,
        "BLOCK_K": tiles.block_k,
        "BLOCK_D": padded_head_dim(head_dim),
    }


def section_of(whose: Tensor, q: Tensor, k: Tensor, scoring: Scoring, walked: tuple[Tensor, ...]) -> int:
    """Heads of `whose` tiles that come together (`triton_pieces.place`): heads that share keys in one section, and as
    many as make whole sections, of which the L2 cache has room for what programs walk over. 1 where tiles are as long.
    """
    lower, upper = kernel_bounds(q.shape[-2], k.shape[-2], scoring)
    if upper is None or lower is not None:
        return 1
    key_heads = max(1, k.shape[0] * k.shape[1])
    walked_bytes = sum(x.numel() * x.itemsize for x in walked)
    parts = range(max(1, triton.cdiv(walked_bytes, IN_L2_BYTES)), key_heads)
    num_sections = next((number for number in parts if key_heads % number == 0), key_heads)
    return key_heads // num_sections * (whose.shape[1] // k.shape[1])


def rising_arguments(scoring: Scoring) -> dict[str, Any]:
    """The arguments of a forward kernel by which what it takes the maximum of rises with the scores (`rising`).

    Without a soft cap the factor is positive, so that -inf times it, what is not seen, stays -inf.
    """
    if scoring.softcap:
        return {"score_factor": 2 * LOG2_E * scoring.scale / scoring.softcap, "FLIPPED": False}
    return {"score_factor": max(abs(scoring.scale) * LOG2_E, LEAST_FACTOR), "FLIPPED": scoring.scale < 0}


def kernel_bounds(num_queries: int, num_keys: int, scoring: Scoring) -> tuple[int | None, int | None]:
    """The band's bounds; None where a bound cuts nothing off, and within the kernels' 32 bits."""
    lower, upper = scoring.lower, scoring.upper
    if lower is not None:
        lower = None if lower <= 1 - num_queries else min(lower, num_keys)
    if upper is not None:
        upper = None if upper >= num_keys - 1 else max(upper, -num_queries)
    return lower, upper


def may_see_nothing(q: Tensor, k: Tensor, scoring: Scoring) -> bool:
    """Whether a row can meet a tile of which it sees nothing before it has seen any key.

    Below a lower bound that is common; under an upper bound alone it takes queries that lie before every key.
    """
    lower, upper = kernel_bounds(q.shape[-2], k.shape[-2], scoring)
    return lower is not None or (upper is not None and upper < 0)
