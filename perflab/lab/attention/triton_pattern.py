"""Block-sparse attention in Triton: FlashAttention-2's walks, from one listed block to the next.

Shapes
    q, out, d_out, dq  (B, H, N, D), any strides; float16, bfloat16 or float32
    k, v, dk, dv       (B, H_kv, N, D), likewise; query head h reads head h // (H / H_kv)
    logsumexp, delta   (B, H, N), contiguous, float32
    counts, lists      (blocks,) and (blocks, most) of int32: which blocks of the other side a block sees, see `pattern`

The mathematics of a block is that of the dense kernels, whose functions walk it: `attend`, `walk_keys` and
`walk_queries`. A program has a tile, which is a block of the pattern or a part of one, and reads its block's list: what
nobody sees is never loaded, forward and backward. This module imports Triton.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# Kernel arguments are pointers and tl values: Triton has no types for them.
# ruff: noqa: N803, N806
# Compile-time constants are upper case, as Triton code has them.

from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from perflab.lab.attention.pattern import BlockLists, Pattern
from perflab.lab.attention.scoring import Scoring
from perflab.lab.attention.triton_backward_kernel import load_ends, walk_keys, walk_queries
from perflab.lab.attention.triton_forward_kernel import attend, finished
from perflab.lab.attention.triton_launches import LOG2_E, delta_launch, rising_arguments, strides_of
from perflab.lab.attention.triton_pieces import rounded, tile_pointers
from perflab.lab.attention.triton_tiles import Tiles, check_head_dim, choose_tiles, padded_head_dim
from perflab.lab.kernels import operators
from perflab.lab.launch import Launch, emulates_bf16, require_runnable, run_prepared, shared_memory_bytes


@triton.jit
def pattern_forward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, logsumexp_ptr, counts_ptr, lists_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_ob, stride_oh, stride_on, stride_od,
    num_heads, group, length, most, scale, score_factor,
    IS_CAUSAL: tl.constexpr, FLIPPED: tl.constexpr, EMULATE_BF16: tl.constexpr, HEAD_DIM: tl.constexpr,
    SIDE: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: one block of queries of one head against the blocks of keys that it sees."""
    PADDED: tl.constexpr = HEAD_DIM != BLOCK_D
    num_tiles = tl.cdiv(length, BLOCK_Q)
    tile = tl.program_id(0) % num_tiles
    batch_head = tl.program_id(0) // num_tiles
    batch = (batch_head // num_heads).to(tl.int64)
    head = (batch_head % num_heads).to(tl.int64)
    first = (tile * BLOCK_Q).to(tl.int64)
    rows = tl.arange(0, BLOCK_Q)
    columns = tl.arange(0, BLOCK_D)
    queries = tile * BLOCK_Q + rows
    inside = (queries[:, None] < length) & (columns[None, :] < HEAD_DIM)
    q_ptrs = tile_pointers(q_ptr, stride_qb, stride_qh, stride_qn, stride_qd, batch, head, first, rows, columns)
    q = tl.load(q_ptrs, mask=inside, other=0.0)
    acc = tl.zeros([BLOCK_Q, BLOCK_D], dtype=tl.float32)
    row_max = tl.full([BLOCK_Q], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_Q], dtype=tl.float32)
    key_head = head // group
    k_head = k_ptr + batch * stride_kb + key_head * stride_kh
    v_head = v_ptr + batch * stride_vb + key_head * stride_vh
    row = tile * BLOCK_Q // SIDE
    for entry in range(0, tl.load(counts_ptr + row)):
        start = tl.load(lists_ptr + row.to(tl.int64) * most + entry) * SIDE
        stop = tl.minimum(start + SIDE, length)
        if IS_CAUSAL:
            stop = tl.minimum(stop, tile * BLOCK_Q + BLOCK_Q)
        # Masked: the diagonal or the end may cut it. Each query sees the first key of each listed block.
        acc, row_max, row_sum = attend(
            acc, row_max, row_sum, q, k_head, v_head, queries, columns,
            start, stop, length, stride_kn, stride_kd, stride_vn, stride_vd, score_factor, 0.0, 0, 0, 0,
            False, IS_CAUSAL, False, False, FLIPPED, False, True, PADDED, EMULATE_BF16, HEAD_DIM, BLOCK_Q, BLOCK_K,
        )  # fmt: skip
    out, logsumexp = finished(acc, row_max, row_sum, False)
    out_ptrs = tile_pointers(out_ptr, stride_ob, stride_oh, stride_on, stride_od, batch, head, first, rows, columns)
    tl.store(out_ptrs, rounded(out, out_ptr.dtype.element_ty, EMULATE_BF16), mask=inside)
    tl.store(logsumexp_ptr + batch_head.to(tl.int64) * length + queries, logsumexp, mask=queries < length)


@triton.jit
def pattern_dk_dv_kernel(
    q_ptr, k_ptr, v_ptr, d_out_ptr, logsumexp_ptr, delta_ptr, dk_ptr, dv_ptr, counts_ptr, lists_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_gb, stride_gh, stride_gn, stride_gd,
    stride_dkb, stride_dkh, stride_dkn, stride_dkd,
    stride_dvb, stride_dvh, stride_dvn, stride_dvd,
    num_heads, group, length, most, scale, score_factor,
    IS_CAUSAL: tl.constexpr, EMULATE_BF16: tl.constexpr, HEAD_DIM: tl.constexpr,
    SIDE: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: one block of keys of one of their heads against the blocks of queries that see it."""
    PADDED: tl.constexpr = HEAD_DIM != BLOCK_D
    num_tiles = tl.cdiv(length, BLOCK_K)
    tile = tl.program_id(0) % num_tiles
    batch_head = tl.program_id(0) // num_tiles
    num_key_heads = num_heads // group
    batch = (batch_head // num_key_heads).to(tl.int64)
    key_head = (batch_head % num_key_heads).to(tl.int64)
    first = (tile * BLOCK_K).to(tl.int64)
    key_rows = tl.arange(0, BLOCK_K)
    columns = tl.arange(0, BLOCK_D)
    keys = tile * BLOCK_K + key_rows
    inside = (keys[:, None] < length) & (columns[None, :] < HEAD_DIM)
    k_ptrs = tile_pointers(k_ptr, stride_kb, stride_kh, stride_kn, stride_kd, batch, key_head, first, key_rows, columns)
    v_ptrs = tile_pointers(v_ptr, stride_vb, stride_vh, stride_vn, stride_vd, batch, key_head, first, key_rows, columns)
    k = tl.load(k_ptrs, mask=inside, other=0.0)
    v = tl.load(v_ptrs, mask=inside, other=0.0)
    dk = tl.zeros([BLOCK_K, BLOCK_D], dtype=tl.float32)
    dv = tl.zeros([BLOCK_K, BLOCK_D], dtype=tl.float32)
    row = tile * BLOCK_K // SIDE
    for member in range(0, group):
        head = key_head * group + member
        q_head = q_ptr + batch * stride_qb + head * stride_qh
        d_out_head = d_out_ptr + batch * stride_gb + head * stride_gh
        ends = (batch * num_heads + head) * length
        for entry in range(0, tl.load(counts_ptr + row)):
            start = tl.load(lists_ptr + row.to(tl.int64) * most + entry) * SIDE
            stop = tl.minimum(start + SIDE, length)
            if IS_CAUSAL:  # no query before this tile sees it
                start = tl.maximum(start, tile * BLOCK_K // BLOCK_Q * BLOCK_Q)
            dk, dv = walk_queries(
                dk, dv, k, v, q_head, d_out_head, logsumexp_ptr + ends, delta_ptr + ends, keys, columns,
                start, stop, length, stride_qn, stride_qd, stride_gn, stride_gd, score_factor, 0.0, 0, 0, 0,
                False, IS_CAUSAL, False, False, True, PADDED, EMULATE_BF16, HEAD_DIM, BLOCK_Q, BLOCK_K,
            )  # fmt: skip
    dk_ptrs = tile_pointers(
        dk_ptr, stride_dkb, stride_dkh, stride_dkn, stride_dkd, batch, key_head, first, key_rows, columns
    )
    dv_ptrs = tile_pointers(
        dv_ptr, stride_dvb, stride_dvh, stride_dvn, stride_dvd, batch, key_head, first, key_rows, columns
    )
    tl.store(dk_ptrs, rounded(dk * scale, dk_ptr.dtype.element_ty, EMULATE_BF16), mask=inside)
    tl.store(dv_ptrs, rounded(dv, dv_ptr.dtype.element_ty, EMULATE_BF16), mask=inside)


@triton.jit
def pattern_dq_kernel(
    q_ptr, k_ptr, v_ptr, d_out_ptr, logsumexp_ptr, delta_ptr, dq_ptr, counts_ptr, lists_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_gb, stride_gh, stride_gn, stride_gd,
    stride_dqb, stride_dqh, stride_dqn, stride_dqd,
    num_heads, group, length, most, scale, score_factor,
    IS_CAUSAL: tl.constexpr, EMULATE_BF16: tl.constexpr, HEAD_DIM: tl.constexpr,
    SIDE: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: one block of queries of one head against the blocks of keys that it sees."""
    PADDED: tl.constexpr = HEAD_DIM != BLOCK_D
    num_tiles = tl.cdiv(length, BLOCK_Q)
    tile = tl.program_id(0) % num_tiles
    batch_head = tl.program_id(0) // num_tiles
    batch = (batch_head // num_heads).to(tl.int64)
    head = (batch_head % num_heads).to(tl.int64)
    first = (tile * BLOCK_Q).to(tl.int64)
    rows = tl.arange(0, BLOCK_Q)
    columns = tl.arange(0, BLOCK_D)
    queries = tile * BLOCK_Q + rows
    inside = (queries[:, None] < length) & (columns[None, :] < HEAD_DIM)
    q_ptrs = tile_pointers(q_ptr, stride_qb, stride_qh, stride_qn, stride_qd, batch, head, first, rows, columns)
    d_out_ptrs = tile_pointers(d_out_ptr, stride_gb, stride_gh, stride_gn, stride_gd, batch, head, first, rows, columns)
    q = tl.load(q_ptrs, mask=inside, other=0.0)
    d_out = tl.load(d_out_ptrs, mask=inside, other=0.0)
    ends = batch_head.to(tl.int64) * length
    logsumexp, delta = load_ends(logsumexp_ptr + ends, delta_ptr + ends, queries, queries < length)
    dq = tl.zeros([BLOCK_Q, BLOCK_D], dtype=tl.float32)
    key_head = head // group
    row = tile * BLOCK_Q // SIDE
    k_head = k_ptr + batch * stride_kb + key_head * stride_kh
    v_head = v_ptr + batch * stride_vb + key_head * stride_vh
    for entry in range(0, tl.load(counts_ptr + row)):
        start = tl.load(lists_ptr + row.to(tl.int64) * most + entry) * SIDE
        stop = tl.minimum(start + SIDE, length)
        if IS_CAUSAL:
            stop = tl.minimum(stop, tile * BLOCK_Q + BLOCK_Q)
        dq = walk_keys(
            dq, q, d_out, logsumexp, delta, k_head, v_head, queries, columns,
            start, stop, length, stride_kn, stride_kd, stride_vn, stride_vd, score_factor, 0.0, 0, 0, 0,
            False, IS_CAUSAL, False, False, True, PADDED, EMULATE_BF16, HEAD_DIM, BLOCK_Q, BLOCK_K,
        )  # fmt: skip
    dq_ptrs = tile_pointers(dq_ptr, stride_dqb, stride_dqh, stride_dqn, stride_dqd, batch, head, first, rows, columns)
    tl.store(dq_ptrs, rounded(dq * scale, dq_ptr.dtype.element_ty, EMULATE_BF16), mask=inside)


def pattern_launch(
    kernel: str, lists: BlockLists, scale: float, is_causal: bool, side: int, tiles: Tiles, **tensors: Tensor
) -> Launch:
    """One of the kernels: "forward", "dk_dv" over blocks of keys, or "dq".

    tensors  by the letters of their strides (q, k, v, o, g, dk, dv, dq), and logsumexp and delta
    """
    names = {"o": "out", "g": "d_out"}
    q, k = tensors["q"], tensors["k"]
    strided = {letters: tensor for letters, tensor in tensors.items() if letters not in ("logsumexp", "delta")}
    arguments: dict[str, Any] = {
        **{f"{names.get(letters, letters)}_ptr": tensor for letters, tensor in tensors.items()},
        "counts_ptr": lists.counts, "lists_ptr": lists.blocks, **strides_of(**strided),
        "num_heads": q.shape[1], "group": q.shape[1] // k.shape[1],
        "length": q.shape[-2], "most": lists.blocks.shape[1], "scale": scale, "score_factor": scale * LOG2_E,
        "IS_CAUSAL": is_causal, "EMULATE_BF16": emulates_bf16(q.dtype), "HEAD_DIM": q.shape[-1],
        "SIDE": side, "BLOCK_Q": tiles.block_q, "BLOCK_K": tiles.block_k, "BLOCK_D": padded_head_dim(q.shape[-1]),
    }  # fmt: skip
    if kernel == "forward":
        arguments |= rising_arguments(Scoring(scale, None, None, None))
    own, rows = (k, tiles.block_k) if kernel == "dk_dv" else (q, tiles.block_q)
    grid = (triton.cdiv(own.shape[-2], rows) * own.shape[0] * own.shape[1],)
    return Launch(_KERNELS[kernel], grid, arguments, q.device, tiles.num_warps, tiles.num_stages)


_KERNELS = {"forward": pattern_forward_kernel, "dk_dv": pattern_dk_dv_kernel, "dq": pattern_dq_kernel}


def pattern_tiles(kernel: str, head_dim: int, dtype: torch.dtype, side: int, shared_limit_bytes: int) -> Tiles:
    """The dense kernels' first tiles, cut to the pattern's blocks."""
    tiles = choose_tiles(kernel, head_dim, dtype, shared_limit_bytes)
    block_q, block_k = min(tiles.block_q, side), min(tiles.block_k, side)
    # Products of less than 64 x 64 do not feed eight warps.
    return replace(tiles, block_q=block_q, block_k=block_k, num_warps=tiles.num_warps if side >= 64 else 4)


# --- For PyTorch -------------------------------------------------------------------------------------------------


def _empty(q: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)


def _run(
    q: Tensor, k: Tensor, v: Tensor, counts: Tensor, lists: Tensor, back_counts: Tensor, back_lists: Tensor,
    scale: float, is_causal: bool, block: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    require_runnable(q.device, name="pattern_attention form 'triton'", instead="form='definition'")
    out, logsumexp = _empty(q)
    tensors = {"q": q, "k": k, "v": v, "o": out, "logsumexp": logsumexp}
    _launched("forward", BlockLists(counts, lists), scale, is_causal, block, tensors)
    return out, logsumexp


def _launched(
    kernel: str, lists: BlockLists, scale: float, is_causal: bool, side: int, tensors: dict[str, Tensor]
) -> None:
    q = tensors["q"]
    tiles = pattern_tiles(kernel, q.shape[-1], q.dtype, side, shared_memory_bytes(q.device))
    pattern_launch(kernel, lists, scale, is_causal, side, tiles, **tensors)()


def _empty_gradients(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _run_backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, lists: Tensor, back_counts: Tensor,
    back_lists: Tensor, out: Tensor, logsumexp: Tensor, scale: float, is_causal: bool, block: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dq, dk, dv = _empty_gradients(d_out, q, k, v)
    delta = torch.empty_like(logsumexp)
    run_prepared(delta_launch, out, d_out, None, delta)
    rules = scale, is_causal, block
    tensors = {"q": q, "k": k, "v": v, "g": d_out, "logsumexp": logsumexp, "delta": delta}
    _launched("dk_dv", BlockLists(back_counts, back_lists), *rules, tensors | {"dk": dk, "dv": dv})
    _launched("dq", BlockLists(counts, lists), *rules, tensors | {"dq": dq})
    return dq, dk, dv


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.rules = inputs[7:]
    ctx.save_for_backward(*inputs[:7], *output)
    ctx.set_materialize_grads(False)  # nobody differentiates the log-sum-exp


def _gradient(ctx: Any, d_out: Tensor, _: None) -> tuple[Tensor | None, ...]:
    return *_backward(d_out, *ctx.saved_tensors, *ctx.rules), *[None] * 7


_LISTS = "Tensor counts, Tensor lists, Tensor back_counts, Tensor back_lists"
_RULES = "float scale, bool is_causal, int block"
_backward = operators.define(
    "pattern_attention_backward",
    f"(Tensor d_out, Tensor q, Tensor k, Tensor v, {_LISTS}, Tensor out, Tensor logsumexp, {_RULES}) "
    f"-> (Tensor, Tensor, Tensor)",
    run=_run_backward,
    fake=_empty_gradients,
)
_attention = operators.define(
    "pattern_attention",
    f"(Tensor q, Tensor k, Tensor v, {_LISTS}, {_RULES}) -> (Tensor, Tensor)",
    run=_run,
    fake=_empty,
    save=_save,
    gradient=_gradient,
)


def triton_pattern_attention(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, scale: float) -> Tensor:
    """Block-sparse attention of inputs that `pattern_attention` has checked; arguments and results are the same."""
    check_head_dim(q.shape[-1])
    lists = *pattern.key_lists(q.device), *pattern.query_lists(q.device)
    out: Tensor = _attention(q, k, v, *lists, scale, pattern.is_causal, pattern.block)[0]
    return out
