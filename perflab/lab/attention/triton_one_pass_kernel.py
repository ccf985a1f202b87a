"""FlashAttention-2's backward pass as one Triton kernel behind delta's: dk, dv, and by atomics dq.

Shapes
    q, d_out           (B, H, N_q, D), any strides; float16 or bfloat16
    k, v, dk, dv       (B, H, N_k, D), likewise
    logsumexp, delta   (B, H, N_q), contiguous, float32, natural logarithm
    dq_sum             (B, H, N_q, D), contiguous, float32: zeros before, dq / scale after

Mathematics and walks are those of `triton_backward_kernel`, full or causal. A tile of keys, which has ds_ij of all the
queries that see it, adds its part of dq to memory as well: five products a tile, where two passes make seven. The parts
of a row of dq come from several programs, in an order that differs from run to run, and so do dq's last bits.

N_q and N_k are whole tiles: masks of rows take registers that the loops lack, and the weight of a key behind the last,
exp(0 - L), may be infinite.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# Kernel arguments are pointers and tl values: Triton has no types for them.
# ruff: noqa: N803, N806
# Compile-time constants are upper case, as Triton code has them.

import triton
import triton.language as tl

from perflab.lab.attention.triton_pieces import LOG2_E, dot, load_tile, rounded, stretches, tile_pointers


@triton.jit
def walk_queries_once(
    dk, dv, k, v, q_ptrs, d_out_ptrs, logsumexp_ptr, delta_ptr, dq_sum_ptr, keys, columns,
    query_start, query_stop, stride_qn, stride_gn, score_factor, upper,
    CUT: tl.constexpr, PADDED: tl.constexpr, EMULATE_BF16: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Add what the queries [query_start, query_stop) give to dk and dv, which are returned with advanced pointers, and
    what these keys give to the queries' dq, in memory. CUT: some pairs are not seen."""
    for start in tl.range(query_start, query_stop, BLOCK_Q):
        rows = tl.arange(0, BLOCK_Q)
        queries = start + rows
        q = load_tile(q_ptrs, queries, columns, False, PADDED, HEAD_DIM)
        d_out = load_tile(d_out_ptrs, queries, columns, False, PADDED, HEAD_DIM)
        logsumexp = tl.load(logsumexp_ptr + queries)
        delta = tl.load(delta_ptr + queries)
        # Where a query sees no key, its weights must come out as zero: exp(s - inf).
        logsumexp = tl.where(logsumexp == float("-inf"), float("inf"), logsumexp) * LOG2_E

        products = dot(k, tl.trans(q), tl.zeros([BLOCK_K, BLOCK_Q], tl.float32), EMULATE_BF16)
        weights = tl.exp2(products * score_factor - logsumexp[None, :])
        if CUT:
            weights = tl.where(keys[:, None] - queries[None, :] <= upper, weights, 0.0)
        dv = dot(rounded(weights, d_out.dtype, EMULATE_BF16), d_out, dv, EMULATE_BF16)
        d_weights = dot(v, tl.trans(d_out), tl.zeros([BLOCK_K, BLOCK_Q], tl.float32), EMULATE_BF16)
        d_scores = rounded(weights * (d_weights - delta[None, :]), q.dtype, EMULATE_BF16)
        dq = dot(tl.trans(d_scores), k, tl.zeros([BLOCK_Q, k.shape[1]], tl.float32), EMULATE_BF16)
        # A scalar that moves, and offsets that stay: pointers of each element would take their registers.
        corner = dq_sum_ptr + tl.full([], start, tl.int64) * HEAD_DIM
        sums = corner + rows[:, None] * HEAD_DIM + columns[None, :]
        if PADDED:
            tl.atomic_add(sums, dq, mask=columns[None, :] < HEAD_DIM, sem="relaxed")
        else:
            tl.atomic_add(sums, dq, sem="relaxed")
        dk = dot(d_scores, q, dk, EMULATE_BF16)
        q_ptrs += BLOCK_Q * stride_qn
        d_out_ptrs += BLOCK_Q * stride_gn
    return dk, dv, q_ptrs, d_out_ptrs


@triton.jit
def attention_one_pass_kernel(
    q_ptr, k_ptr, v_ptr, d_out_ptr, logsumexp_ptr, delta_ptr, dk_ptr, dv_ptr, dq_sum_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_gb, stride_gh, stride_gn, stride_gd,
    stride_dkb, stride_dkh, stride_dkn, stride_dkd,
    stride_dvb, stride_dvh, stride_dvn, stride_dvd,
    num_heads, num_queries, num_keys, scale, score_factor, upper,
    HAS_UPPER: tl.constexpr, EMULATE_BF16: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: one tile of BLOCK_K keys of one of their heads against all the queries that see it."""
    PADDED: tl.constexpr = HEAD_DIM != BLOCK_D
    num_tiles = num_keys // BLOCK_K
    batch_head = tl.program_id(0) // num_tiles
    batch = (batch_head // num_heads).to(tl.int64)
    head = (batch_head % num_heads).to(tl.int64)
    # Causal: the first keys are seen by the most queries, and start first as it is.
    key_start = tl.program_id(0) % num_tiles * BLOCK_K

    key_rows = tl.arange(0, BLOCK_K)
    rows = tl.arange(0, BLOCK_Q)
    columns = tl.arange(0, BLOCK_D)
    keys = key_start + key_rows
    first_key = key_start.to(tl.int64)
    k_ptrs = tile_pointers(
        k_ptr, stride_kb, stride_kh, stride_kn, stride_kd, batch, head, first_key, key_rows, columns
    )  # fmt: skip
    v_ptrs = tile_pointers(
        v_ptr, stride_vb, stride_vh, stride_vn, stride_vd, batch, head, first_key, key_rows, columns
    )  # fmt: skip
    k = load_tile(k_ptrs, keys, columns, False, PADDED, HEAD_DIM)
    v = load_tile(v_ptrs, keys, columns, False, PADDED, HEAD_DIM)
    dk = tl.zeros([BLOCK_K, BLOCK_D], dtype=tl.float32)
    dv = tl.zeros([BLOCK_K, BLOCK_D], dtype=tl.float32)

    # Seen from the keys the band is mirrored: key j is seen by the queries i >= j - upper.
    first, whole, cut, stop = stretches(key_start, num_queries, -upper, 0, HAS_UPPER, False, BLOCK_K, BLOCK_Q)
    first_query = tl.full([], first, tl.int64)
    q_ptrs = tile_pointers(
        q_ptr, stride_qb, stride_qh, stride_qn, stride_qd, batch, head, first_query, rows, columns
    )  # fmt: skip
    d_out_ptrs = tile_pointers(
        d_out_ptr, stride_gb, stride_gh, stride_gn, stride_gd, batch, head, first_query, rows, columns
    )  # fmt: skip
    ends = batch_head.to(tl.int64) * num_queries
    if HAS_UPPER:
        dk, dv, q_ptrs, d_out_ptrs = walk_queries_once(
            dk, dv, k, v, q_ptrs, d_out_ptrs, logsumexp_ptr + ends, delta_ptr + ends,
            dq_sum_ptr + ends * HEAD_DIM, keys, columns,
            first, tl.minimum(whole, stop), stride_qn, stride_gn, score_factor, upper,
            True, PADDED, EMULATE_BF16, HEAD_DIM, BLOCK_Q, BLOCK_K,
        )  # fmt: skip
    dk, dv, q_ptrs, d_out_ptrs = walk_queries_once(
        dk, dv, k, v, q_ptrs, d_out_ptrs, logsumexp_ptr + ends, delta_ptr + ends,
        dq_sum_ptr + ends * HEAD_DIM, keys, columns,
        whole, cut, stride_qn, stride_gn, score_factor, upper,
        False, PADDED, EMULATE_BF16, HEAD_DIM, BLOCK_Q, BLOCK_K,
    )  # fmt: skip

    dk_ptrs = tile_pointers(
        dk_ptr, stride_dkb, stride_dkh, stride_dkn, stride_dkd, batch, head, first_key, key_rows, columns
    )  # fmt: skip
    dv_ptrs = tile_pointers(
        dv_ptr, stride_dvb, stride_dvh, stride_dvn, stride_dvd, batch, head, first_key, key_rows, columns
    )  # fmt: skip
    inside = columns[None, :] < HEAD_DIM
    tl.store(dk_ptrs, rounded(dk * scale, dk_ptr.dtype.element_ty, EMULATE_BF16), mask=inside)
    tl.store(dv_ptrs, rounded(dv, dv_ptr.dtype.element_ty, EMULATE_BF16), mask=inside)
