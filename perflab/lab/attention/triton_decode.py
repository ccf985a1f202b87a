"""The Triton decode attention: its launches as data, and the PyTorch operator that runs them.

Shapes: q, out (B, H, T, D); keys, values (B, C, K, D) or a pool of pages (num_pages, page_size, K, D); logsumexp
(B, H, T), float32; parts (S, B, H, T, D) and ends (S, B, H, T), float32. The rest as in `decode`.

    perflab::decode_attention(q, keys, values, lengths, pages, key_scales, value_scales, scale, softcap, lower, upper)
        -> (out, logsumexp)

with the band lower <= j - i <= upper of `scoring`, relative to where each query stands if there are lengths. Inputs
are as `decode_attention` and `attention` check them. This module imports Triton.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
import triton
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from perflab.lab.attention.decode import MAX_TILE_ROWS, Stored, split_length
from perflab.lab.attention.scoring import Scoring, pairs_in_band
from perflab.lab.attention.triton_decode_kernel import attention_decode_kernel, attention_decode_merge_kernel
from perflab.lab.attention.triton_launches import LOG2_E, kernel_bounds, rising_arguments
from perflab.lab.attention.triton_tiles import Tiles, check_head_dim, choose_tiles, padded_head_dim
from perflab.lab.kernels import operators
from perflab.lab.launch import Launch, emulates_bf16, require_runnable, run_prepared, shared_memory_bytes

_INSTEAD = "the same algorithm in PyTorch: impl='decode', or impl='torch' of decode_attention"
# A merge has a program for each row up to so many, then rows share one; and pieces of D numbers, of a row and a split,
# at once: at D = 128 a thread then holds 32 of them.
_MERGE_PROGRAMS = 64
_MERGED_PIECES = 32


def decode_tiles(q: Tensor, key_heads: int, shared_limit_bytes: int) -> Tiles:
    """The tiles for q (B, H, T, D): no more rows than there are, as a power of two, 16 at least for tl.dot."""
    tiles = choose_tiles("decode", q.shape[-1], q.dtype, shared_limit_bytes)
    rows = q.shape[1] // key_heads * q.shape[2]
    block_q = min(tiles.block_q, MAX_TILE_ROWS, max(16, triton.next_power_of_2(rows)))
    # On a quarter of the rows eight warps are too many: the compiler then aims at 128 registers, and spills.
    num_warps = tiles.num_warps if block_q * 4 > tiles.block_q else 4
    return replace(tiles, block_q=block_q, num_warps=num_warps)


def splits_of(q: Tensor, stored: Stored, tiles: Tiles) -> tuple[int, int]:
    """Return the number of splits, and the number of keys in each."""
    num_keys = split_length(stored.capacity, _num_tiles(q, stored, tiles))
    return triton.cdiv(stored.capacity, num_keys), num_keys


def _num_tiles(q: Tensor, stored: Stored, tiles: Tiles) -> int:
    key_heads = stored.keys.shape[2]
    return q.shape[0] * key_heads * int(triton.cdiv(q.shape[1] // key_heads * q.shape[2], tiles.block_q))


def decode_launch(q: Tensor, stored: Stored, parts: Tensor, ends: Tensor, scoring: Scoring, tiles: Tiles) -> Launch:
    """Write parts (S, B, H, T, D) and ends (S, B, H, T) of all splits."""
    keys, values, pages, lengths = stored.keys, stored.values, stored.pages, stored.lengths
    num_splits, split_keys = splits_of(q, stored, tiles)
    lower, upper = scoring.lower, scoring.upper
    if lengths is None:
        lower, upper = kernel_bounds(q.shape[-2], stored.capacity, scoring)
    has_scales = stored.key_scales is not None
    # A pointer that is not read has to be something.
    k_scales, v_scales = (ends if x is None else x for x in (stored.key_scales, stored.value_scales))
    arguments: dict[str, Any] = {
        "q_ptr": q, "k_ptr": keys, "v_ptr": values, "k_scales_ptr": k_scales, "v_scales_ptr": v_scales,
        "lengths_ptr": ends if lengths is None else lengths, "pages_ptr": ends if pages is None else pages,
        "parts_ptr": parts, "ends_ptr": ends,
        **_strides("q", "bhnd", q), **_strides("k", "bnhd", keys), **_strides("v", "bnhd", values),
        **_strides("ks", "bnh", k_scales), **_strides("vs", "bnh", v_scales), **_strides("o", "sbhnd", parts),
        "stride_lb": 0 if lengths is None else lengths.stride(0),
        **_strides("p", "bn", ends if pages is None else pages),
        "batch_size": q.shape[0], "num_heads": q.shape[1], "key_heads": keys.shape[2], "num_queries": q.shape[2],
        "num_keys": stored.capacity, "num_splits": num_splits, "split_keys": split_keys, "page_size": keys.shape[1],
        **rising_arguments(scoring),
        "softcap_log2": scoring.softcap * LOG2_E if scoring.softcap else 0.0,
        "lower": lower or 0, "upper": upper or 0,
        "HAS_LENGTHS": lengths is not None, "IS_PAGED": pages is not None, "HAS_SCALES": has_scales,
        "HAS_LOWER": lower is not None, "HAS_UPPER": upper is not None, "HAS_SOFTCAP": scoring.softcap is not None,
        "EMULATE_BF16": emulates_bf16(q.dtype), "HEAD_DIM": q.shape[-1],
        "BLOCK_Q": tiles.block_q, "BLOCK_K": tiles.block_k, "BLOCK_D": padded_head_dim(q.shape[-1]),
    }  # fmt: skip
    grid = (_num_tiles(q, stored, tiles) * num_splits,)
    return Launch(attention_decode_kernel, grid, arguments, q.device, tiles.num_warps, tiles.num_stages)


def merge_launch(parts: Tensor, ends: Tensor, out: Tensor, logsumexp: Tensor) -> Launch:
    """Write out and logsumexp from what the splits gave."""
    num_rows = logsumexp.numel()
    block_s = min(_MERGED_PIECES // 2, triton.next_power_of_2(parts.shape[0]))
    block_r = min(_MERGED_PIECES // block_s, triton.next_power_of_2(triton.cdiv(num_rows, _MERGE_PROGRAMS)))
    arguments: dict[str, Any] = {
        "parts_ptr": parts, "ends_ptr": ends, "out_ptr": out, "logsumexp_ptr": logsumexp,
        **_strides("o", "bhnd", out),
        "num_heads": out.shape[1], "num_queries": out.shape[2], "num_rows": num_rows, "num_splits": parts.shape[0],
        "EMULATE_BF16": emulates_bf16(out.dtype), "HEAD_DIM": out.shape[-1],
        "BLOCK_R": block_r, "BLOCK_S": block_s, "BLOCK_D": padded_head_dim(out.shape[-1]),
    }  # fmt: skip
    return Launch(attention_decode_merge_kernel, (triton.cdiv(num_rows, block_r),), arguments, out.device)


def decode(q: Tensor, stored: Stored, scoring: Scoring) -> tuple[Tensor, Tensor]:
    """The output in q's dtype, and the natural log-sum-exp (B, H, T) in float32."""
    check_head_dim(q.shape[-1], instead=_INSTEAD)
    s, rules = stored, (scoring.scale, scoring.softcap, scoring.lower, scoring.upper)
    out, logsumexp = decode_attention_op(
        q, s.keys, s.values, s.lengths, s.pages, s.key_scales, s.value_scales, *rules
    )  # fmt: skip
    return out, logsumexp


def _strides(name: str, dimensions: str, tensor: Tensor) -> dict[str, int]:
    """A tensor's strides by the names of a kernel's parameters; a stand-in for a missing tensor may have fewer."""
    return {f"stride_{name}{dimension}": stride for dimension, stride in zip(dimensions, tensor.stride(), strict=False)}


def _run(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor | None,
    pages: Tensor | None,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
    scale: float,
    softcap: float | None,
    lower: int | None,
    upper: int | None,
) -> tuple[Tensor, Tensor]:
    require_runnable(q.device, name="decode attention in Triton", instead=_INSTEAD)
    stored = Stored(keys, values, lengths, pages, key_scales, value_scales)
    tiles = decode_tiles(q, keys.shape[2], shared_memory_bytes(q.device))
    num_splits, _ = splits_of(q, stored, tiles)
    out, logsumexp = _empty_results(q)
    scoring = Scoring(scale, softcap, lower, upper)
    if num_splits == 1:
        _launch_decode(q, stored, out[None], logsumexp[None], scoring, tiles)
        return out, logsumexp
    parts = torch.empty(num_splits, *q.shape, dtype=torch.float32, device=q.device)
    ends = torch.empty(num_splits, *q.shape[:-1], dtype=torch.float32, device=q.device)
    _launch_decode(q, stored, parts, ends, scoring, tiles)
    run_prepared(merge_launch, parts, ends, out, logsumexp)
    return out, logsumexp


def _launch_decode(q: Tensor, stored: Stored, parts: Tensor, ends: Tensor, scoring: Scoring, tiles: Tiles) -> None:
    """Launch `decode_launch`, prepared for the layouts of all tensors, those that `stored` holds among them."""
    held = (getattr(stored, field.name) for field in fields(stored))
    run_prepared(_launch_of, q, parts, ends, scoring, tiles, *held)


def _launch_of(q: Tensor, parts: Tensor, ends: Tensor, scoring: Scoring, tiles: Tiles, *held: Tensor) -> Launch:
    """The launch of `decode_launch` with the fields of a `Stored` as arguments, each a tensor or None."""
    return decode_launch(q, Stored(*held), parts, ends, scoring, tiles)


def _empty_results(q: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)


def _flops(
    q_shape: Sequence[int],
    keys_shape: Sequence[int],
    values_shape: Sequence[int],
    lengths_shape: Sequence[int] | None,
    pages_shape: Sequence[int] | None,
    key_scales_shape: Any,
    value_scales_shape: Any,
    *rules: Any,
    **others: Any,
) -> int:
    """Two products of 2 D operations for each pair in the band; with lengths, whose values nobody knows, at most."""
    num_keys = keys_shape[1] * (1 if pages_shape is None else pages_shape[1])
    bounds = (None, None) if lengths_shape is not None else tuple(rules[2:4])
    return 4 * q_shape[0] * q_shape[1] * pairs_in_band(q_shape[2], num_keys, *bounds) * q_shape[3]


decode_attention_op = operators.define(
    "decode_attention",
    "(Tensor q, Tensor keys, Tensor values, Tensor? lengths, Tensor? pages, Tensor? key_scales, Tensor? value_scales, "
    "float scale, float? softcap, SymInt? lower, SymInt? upper) -> (Tensor, Tensor)",
    run=_run,
    fake=_empty_results,
)
register_flop_formula(decode_attention_op.overloadpacket)(_flops)
