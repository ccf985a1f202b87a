"""Attention's backward in one pass at head dimension 128 on an A100 (sm_80), in Gluon. It has not been run on a GPU.

Shapes and results are those of `triton_one_pass_kernel`, whose products this kernel makes in other layouts.

`triton.language` gives a product's operands layouts of its own choice, and the kernel of one pass is bound by reading
them: 3,072 cycles for 4,096 pairs, 3,584 causal, where FlashAttention-2's takes 2,560. Gluon lets the author choose.
Here are FlashAttention-2's choices (`flash_bwd_kernel.h`, `Flash_bwd_kernel_traits<128, 64, 128, 8, 2, 4, 2>`): tiles
of 64 queries and 128 keys, 8 warps, 2 x 4 of them over scores and dq, 4 x 2 over dk and dv.

Gluon has no interpreter: `tests/correctness/test_gluon.py` runs this source program by program on tensors, where
asynchronous copies arrive when they are waited for and layouts mean nothing. What warps do at the same time, and what
layouts do, only a GPU can tell. This module imports Triton.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call,attr-defined"
# Kernel arguments are pointers and tl values: Triton has no types for them.
# ruff: noqa: N803, N806
# Compile-time constants are upper case, as Triton code has them.

from dataclasses import replace
from typing import Any

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from perflab.lab.attention.scoring import Scoring
from perflab.lab.attention.triton_launches import one_pass_launch
from perflab.lab.attention.triton_pieces import place, stretches
from perflab.lab.attention.triton_tiles import Tiles
from perflab.lab.launch import Launch, is_interpreted

ARCHITECTURE, HEAD_DIM = 80, 128
TILES = Tiles(block_q=64, block_k=128, num_warps=8, num_stages=2)
copy_to_shared = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
"""Gluon's copy to shared memory: the second is its name before Triton 3.9."""
LOG2_E = gl.constexpr(1.4426950408889634)
ROWS_AT_ONCE = gl.constexpr(16)
NEVER = gl.constexpr(2**30)


def takes(q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, architecture: int) -> bool:
    """Whether the kernel takes tensors that `one_pass_tiles` takes, on that compute capability (80: an A100).

    It copies 16 bytes at once, of columns that lie side by side. Of a stride Triton knows whether it is a multiple of
    16 elements, and nothing else: with one of 8 the copies would not compile.
    """
    if is_interpreted() or architecture != ARCHITECTURE or q.shape[-1] != HEAD_DIM:
        return False
    steps = [step for x in (q, k, v, d_out) for step in x.stride()[:-1]]
    is_aligned = all(x.stride(-1) == 1 and x.data_ptr() % 16 == 0 for x in (q, k, v, d_out))
    is_whole = q.shape[-2] % TILES.block_q == 0 and k.shape[-2] % TILES.block_k == 0
    return is_whole and is_aligned and all(step % 16 == 0 for step in steps)


def one_pass_gluon_launch(
    q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, logsumexp: Tensor, delta: Tensor, dk: Tensor, dv: Tensor,
    dq_sum: Tensor, scoring: Scoring,
) -> Launch:  # fmt: skip
    """Write dk and dv, and add dq / scale to dq_sum; what `takes` takes alone."""
    launch = one_pass_launch(q, k, v, d_out, logsumexp, delta, dk, dv, dq_sum, scoring, TILES)
    names = attention_one_pass_gluon_kernel.arg_names
    arguments = {name: value for name, value in launch.arguments.items() if name in names} | _layouts()
    return replace(launch, kernel=attention_one_pass_gluon_kernel, arguments=arguments)


def _layouts() -> dict[str, Any]:
    """The kernel's compile-time layouts, by the names of its parameters."""

    def products(warps: list[int]) -> Any:
        return gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=warps, instr_shape=[16, 8])

    return {
        "SCORES": products([2, 4]),
        "KEYS": products([4, 2]),
        "QUERIES": products([2, 4]),
        "COPY": gl.BlockedLayout([1, 8], [2, 16], [TILES.num_warps, 1], [1, 0]),
        "TILE": gl.SwizzledSharedLayout(8, 1, 8, order=[1, 0]),
    }


@gluon.jit
def copy_tile(tile, row, stride, ROWS: gl.constexpr, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr):
    """Begin to copy rows to shared memory, some at once: one vector of offsets, and a scalar that moves."""
    rows = gl.arange(0, ROWS_AT_ONCE, layout=gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, LAYOUT))
    places = rows[:, None] * stride + columns[None, :]
    for part in gl.static_range(ROWS // ROWS_AT_ONCE):
        copy_to_shared(tile.slice(part * ROWS_AT_ONCE, ROWS_AT_ONCE), row + places)
        row += ROWS_AT_ONCE * stride


@gluon.jit
def walk_queries(
    dk, dv, q_tiles, d_out, k, v, two_tiles, q_head, d_out_head, logsumexp_ptr, delta_ptr, dq_sum_ptr, keys,
    start, stop, last, number, stride_qn, stride_gn, score_factor, upper,
    CUT: gl.constexpr, HEAD_DIM: gl.constexpr, BLOCK_Q: gl.constexpr, BLOCK_K: gl.constexpr,
    SCORES: gl.constexpr, KEYS: gl.constexpr, QUERIES: gl.constexpr, COPY: gl.constexpr,
):  # fmt: skip
    """Add what the queries [start, stop) give to dk and dv, and to dq in memory. `number` tiles came before.

    The tile of q at hand lies in one of two, and the next one is on its way to the other; d_out's is copied once it has
    been read. CUT: some pairs are not seen; the weights are read back from shared memory then, which saves registers.
    """
    DTYPE: gl.constexpr = k.dtype
    left: gl.constexpr = gl.DotOperandLayout(0, SCORES, 2)
    right: gl.constexpr = gl.DotOperandLayout(1, SCORES, 2)
    left_of_keys: gl.constexpr = gl.DotOperandLayout(0, KEYS, 2)
    right_of_keys: gl.constexpr = gl.DotOperandLayout(1, KEYS, 2)
    left_of_queries: gl.constexpr = gl.DotOperandLayout(0, QUERIES, 2)
    right_of_queries: gl.constexpr = gl.DotOperandLayout(1, QUERIES, 2)
    rows = gl.arange(0, BLOCK_Q, layout=gl.SliceLayout(1, SCORES))
    dq_rows = gl.arange(0, BLOCK_Q, layout=gl.SliceLayout(1, QUERIES))
    dq_places = dq_rows[:, None] * HEAD_DIM + gl.arange(0, HEAD_DIM, layout=gl.SliceLayout(0, QUERIES))[None, :]
    for first in range(start, stop, BLOCK_Q):
        async_copy.wait_group(1)
        q = q_tiles.index(number % 2)
        number += 1
        # Where the same tile is always taken, its addresses are kept from turn to turn, in registers that are not
        # there; the compiler does not know that no walk has so many tiles.
        turn = number % 2 if CUT else number // NEVER
        weights_tile = two_tiles.index(turn)
        d_scores_tile = two_tiles.index(1 - turn if CUT else 1 + turn)
        logsumexp = gl.load(logsumexp_ptr + first + rows)
        delta = gl.load(delta_ptr + first + rows)
        logsumexp = gl.where(logsumexp == float("-inf"), float("inf"), logsumexp) * LOG2_E
        following = gl.minimum(first + BLOCK_Q, last).to(gl.int64)
        copy_tile(q_tiles.index(number % 2), q_head + following * stride_qn, stride_qn, BLOCK_Q, HEAD_DIM, COPY)
        async_copy.commit_group()

        zeros = gl.zeros([BLOCK_Q, BLOCK_K], gl.float32, layout=SCORES)
        products = mma_v2(q.load(left), k.permute((1, 0)).load(right), zeros)
        weights = gl.exp2(products * score_factor - logsumexp[:, None])
        if CUT:
            weights = gl.where(keys[None, :] - (first + rows)[:, None] <= upper, weights, 0.0)
        weights_tile.store(weights.to(DTYPE))
        async_copy.wait_group(1)
        d_weights = mma_v2(d_out.load(left), v.permute((1, 0)).load(right), zeros)
        if CUT:
            weights = weights_tile.load(SCORES).to(gl.float32)
        d_scores_tile.store((weights * (d_weights - delta[:, None])).to(DTYPE))
        dv = mma_v2(weights_tile.permute((1, 0)).load(left_of_keys), d_out.load(right_of_keys), dv)
        copy_tile(d_out, d_out_head + following * stride_gn, stride_gn, BLOCK_Q, HEAD_DIM, COPY)
        async_copy.commit_group()
        zeros_of_dq = gl.zeros([BLOCK_Q, HEAD_DIM], gl.float32, layout=QUERIES)
        dq = mma_v2(d_scores_tile.load(left_of_queries), k.load(right_of_queries), zeros_of_dq)
        gl.atomic_add(dq_sum_ptr + first.to(gl.int64) * HEAD_DIM + dq_places, dq, sem="relaxed")
        dk = mma_v2(d_scores_tile.permute((1, 0)).load(left_of_keys), q.load(right_of_keys), dk)
    return dk, dv, number


@gluon.jit
def attention_one_pass_gluon_kernel(
    q_ptr, k_ptr, v_ptr, d_out_ptr, logsumexp_ptr, delta_ptr, dk_ptr, dv_ptr, dq_sum_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_gb, stride_gh, stride_gn, stride_dkb, stride_dkh, stride_dkn, stride_dvb, stride_dvh, stride_dvn,
    num_heads, num_queries, num_keys, scale, score_factor, upper, section,
    HAS_UPPER: gl.constexpr, HEAD_DIM: gl.constexpr, BLOCK_Q: gl.constexpr, BLOCK_K: gl.constexpr,
    SCORES: gl.constexpr, KEYS: gl.constexpr, QUERIES: gl.constexpr, COPY: gl.constexpr, TILE: gl.constexpr,
):  # fmt: skip
    """One program: one tile of BLOCK_K keys of one of their heads against all the queries that see it.

    SCORES, KEYS and QUERIES lay out scores, dk and dv, and dq; COPY copies to shared memory, and TILE tiles there.
    """
    DTYPE: gl.constexpr = q_ptr.dtype.element_ty
    tile, batch_head = place(gl.program_id(0), num_keys // BLOCK_K, section)
    batch = (batch_head // num_heads).to(gl.int64)
    head = (batch_head % num_heads).to(gl.int64)
    key_start = tile * BLOCK_K
    first_key = key_start.to(gl.int64)
    first, whole, cut, stop = stretches(key_start, num_queries, -upper, 0, HAS_UPPER, False, BLOCK_K, BLOCK_Q)
    last = num_queries - BLOCK_Q
    first_query = gl.minimum(first, last).to(gl.int64)

    q_tiles = gl.allocate_shared_memory(DTYPE, [2, BLOCK_Q, HEAD_DIM], TILE)
    d_out = gl.allocate_shared_memory(DTYPE, [BLOCK_Q, HEAD_DIM], TILE)
    k = gl.allocate_shared_memory(DTYPE, [BLOCK_K, HEAD_DIM], TILE)
    v = gl.allocate_shared_memory(DTYPE, [BLOCK_K, HEAD_DIM], TILE)
    two_tiles = gl.allocate_shared_memory(DTYPE, [2, BLOCK_Q, BLOCK_K], TILE)
    q_head = q_ptr + batch * stride_qb + head * stride_qh
    d_out_head = d_out_ptr + batch * stride_gb + head * stride_gh
    k_row = k_ptr + batch * stride_kb + head * stride_kh + first_key * stride_kn
    v_row = v_ptr + batch * stride_vb + head * stride_vh + first_key * stride_vn
    copy_tile(k, k_row, stride_kn, BLOCK_K, HEAD_DIM, COPY)
    copy_tile(v, v_row, stride_vn, BLOCK_K, HEAD_DIM, COPY)
    copy_tile(q_tiles.index(0), q_head + first_query * stride_qn, stride_qn, BLOCK_Q, HEAD_DIM, COPY)
    async_copy.commit_group()
    copy_tile(d_out, d_out_head + first_query * stride_gn, stride_gn, BLOCK_Q, HEAD_DIM, COPY)
    async_copy.commit_group()

    dk = gl.zeros([BLOCK_K, HEAD_DIM], gl.float32, layout=KEYS)
    dv = gl.zeros([BLOCK_K, HEAD_DIM], gl.float32, layout=KEYS)
    keys = key_start + gl.arange(0, BLOCK_K, layout=gl.SliceLayout(0, SCORES))
    ends = batch_head.to(gl.int64) * num_queries
    number = 0
    if HAS_UPPER:
        dk, dv, number = walk_queries(
            dk, dv, q_tiles, d_out, k, v, two_tiles, q_head, d_out_head, logsumexp_ptr + ends, delta_ptr + ends,
            dq_sum_ptr + ends * HEAD_DIM, keys, first, gl.minimum(whole, stop), last, number,
            stride_qn, stride_gn, score_factor, upper,
            True, HEAD_DIM, BLOCK_Q, BLOCK_K, SCORES, KEYS, QUERIES, COPY,
        )  # fmt: skip
    dk, dv, number = walk_queries(
        dk, dv, q_tiles, d_out, k, v, two_tiles, q_head, d_out_head, logsumexp_ptr + ends, delta_ptr + ends,
        dq_sum_ptr + ends * HEAD_DIM, keys, whole, cut, last, number,
        stride_qn, stride_gn, score_factor, upper,
        False, HEAD_DIM, BLOCK_Q, BLOCK_K, SCORES, KEYS, QUERIES, COPY,
    )  # fmt: skip
    async_copy.wait_group(0)

    rows = gl.arange(0, BLOCK_K, layout=gl.SliceLayout(1, KEYS))
    columns = gl.arange(0, HEAD_DIM, layout=gl.SliceLayout(0, KEYS))
    dk_row = dk_ptr + batch * stride_dkb + head * stride_dkh + first_key * stride_dkn
    dv_row = dv_ptr + batch * stride_dvb + head * stride_dvh + first_key * stride_dvn
    gl.store(dk_row + rows[:, None] * stride_dkn + columns[None, :], (dk * scale).to(DTYPE))
    gl.store(dv_row + rows[:, None] * stride_dvn + columns[None, :], dv.to(DTYPE))
