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

A tile may be two, of BLOCK_D columns and of BLOCK_MORE behind them, each with products of its own (`one_pass_columns`).
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# Kernel arguments are pointers and tl values: Triton has no types for them.
# ruff: noqa: N803, N806
# Compile-time constants are upper case, as Triton code has them.

import triton
import triton.language as tl

from perflab.lab.attention.triton_pieces import LOG2_E, dot, load_tile, offsets_in, place, rounded, stretches


@triton.jit
def add_up(corner, dq, rows, columns, PADDED: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Add a tile of dq to the sum whose first row `corner` points at."""
    # A scalar that moves, and offsets that stay: pointers of each element would take their registers.
    sums = corner + rows[:, None] * HEAD_DIM + columns[None, :]
    if PADDED:
        tl.atomic_add(sums, dq, mask=columns[None, :] < HEAD_DIM, sem="relaxed")
    else:
        tl.atomic_add(sums, dq, sem="relaxed")


@triton.jit
def walk_queries_once(
    dk, dv, dk_more, dv_more, k, v, k_more, v_more, q_row, d_out_row, logsumexp_ptr, delta_ptr, dq_sum_ptr,
    keys, columns, more, query_start, query_stop, stride_qn, stride_qd, stride_gn, stride_gd, score_factor, upper,
    CUT: tl.constexpr, SPLIT: tl.constexpr, PADDED: tl.constexpr, EMULATE_BF16: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Add what the queries [query_start, query_stop) give to dk and dv, which are returned with pointers to the next
    row, and what these keys give to the queries' dq, in memory. CUT: some pairs are not seen."""
    for start in tl.range(query_start, query_stop, BLOCK_Q):
        rows = tl.arange(0, BLOCK_Q)
        queries = start + rows
        # Pointers of each element, kept from tile to tile, would take registers that the accumulators need.
        q_ptrs = q_row + offsets_in(stride_qn, stride_qd, rows, columns)
        d_out_ptrs = d_out_row + offsets_in(stride_gn, stride_gd, rows, columns)
        q = load_tile(q_ptrs, queries, columns, False, PADDED, HEAD_DIM)
        d_out = load_tile(d_out_ptrs, queries, columns, False, PADDED, HEAD_DIM)
        logsumexp = tl.load(logsumexp_ptr + queries)
        delta = tl.load(delta_ptr + queries)
        # Where a query sees no key, its weights must come out as zero: exp(s - inf).
        logsumexp = tl.where(logsumexp == float("-inf"), float("inf"), logsumexp) * LOG2_E

        products = dot(k, tl.trans(q), tl.zeros([BLOCK_K, BLOCK_Q], tl.float32), EMULATE_BF16)
        if SPLIT:
            more_q_ptrs = q_row + offsets_in(stride_qn, stride_qd, rows, more)
            more_d_out_ptrs = d_out_row + offsets_in(stride_gn, stride_gd, rows, more)
            q_more = tl.load(more_q_ptrs)
            d_out_more = tl.load(more_d_out_ptrs)
            products = dot(k_more, tl.trans(q_more), products, EMULATE_BF16)
        weights = tl.exp2(products * score_factor - logsumexp[None, :])
        if CUT:
            weights = tl.where(keys[:, None] - queries[None, :] <= upper, weights, 0.0)
        rounded_weights = rounded(weights, d_out.dtype, EMULATE_BF16)
        dv = dot(rounded_weights, d_out, dv, EMULATE_BF16)
        d_weights = dot(v, tl.trans(d_out), tl.zeros([BLOCK_K, BLOCK_Q], tl.float32), EMULATE_BF16)
        if SPLIT:
            dv_more = dot(rounded_weights, d_out_more, dv_more, EMULATE_BF16)
            d_weights = dot(v_more, tl.trans(d_out_more), d_weights, EMULATE_BF16)
        d_scores = rounded(weights * (d_weights - delta[None, :]), q.dtype, EMULATE_BF16)
        # dk before dq: q, read at the top, takes registers until its product is done.
        dk = dot(d_scores, q, dk, EMULATE_BF16)
        if SPLIT:
            dk_more = dot(d_scores, q_more, dk_more, EMULATE_BF16)
        corner = dq_sum_ptr + tl.full([], start, tl.int64) * HEAD_DIM
        dq = dot(tl.trans(d_scores), k, tl.zeros([BLOCK_Q, k.shape[1]], tl.float32), EMULATE_BF16)
        if SPLIT:
            dq_more = dot(tl.trans(d_scores), k_more, tl.zeros([BLOCK_Q, k_more.shape[1]], tl.float32), EMULATE_BF16)
        add_up(corner, dq, rows, columns, PADDED, HEAD_DIM)
        if SPLIT:
            add_up(corner, dq_more, rows, more, False, HEAD_DIM)
        q_row += BLOCK_Q * stride_qn
        d_out_row += BLOCK_Q * stride_gn
    return dk, dv, dk_more, dv_more, q_row, d_out_row


@triton.jit
def attention_one_pass_kernel(
    q_ptr, k_ptr, v_ptr, d_out_ptr, logsumexp_ptr, delta_ptr, dk_ptr, dv_ptr, dq_sum_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_gb, stride_gh, stride_gn, stride_gd,
    stride_dkb, stride_dkh, stride_dkn, stride_dkd,
    stride_dvb, stride_dvh, stride_dvn, stride_dvd,
    num_heads, num_queries, num_keys, scale, score_factor, upper, section,
    HAS_UPPER: tl.constexpr, EMULATE_BF16: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_MORE: tl.constexpr,
):  # fmt: skip
    """One program: one tile of BLOCK_K keys of one of their heads against all the queries that see it.

    BLOCK_D columns, and behind them BLOCK_MORE, all of them there; 0: there are no more.
    """
    SPLIT: tl.constexpr = BLOCK_MORE > 0
    PADDED: tl.constexpr = HEAD_DIM != BLOCK_D + BLOCK_MORE
    num_tiles = num_keys // BLOCK_K
    # Causal: the first keys are seen by the most queries, and start first as it is.
    tile, batch_head = place(tl.program_id(0), num_tiles, section)
    batch = (batch_head // num_heads).to(tl.int64)
    head = (batch_head % num_heads).to(tl.int64)
    key_start = tile * BLOCK_K

    key_rows = tl.arange(0, BLOCK_K)
    columns = tl.arange(0, BLOCK_D)
    keys = key_start + key_rows
    first_key = key_start.to(tl.int64)
    k_row = k_ptr + batch * stride_kb + head * stride_kh + first_key * stride_kn
    v_row = v_ptr + batch * stride_vb + head * stride_vh + first_key * stride_vn
    k_ptrs = k_row + offsets_in(stride_kn, stride_kd, key_rows, columns)
    v_ptrs = v_row + offsets_in(stride_vn, stride_vd, key_rows, columns)
    k = load_tile(k_ptrs, keys, columns, False, PADDED, HEAD_DIM)
    v = load_tile(v_ptrs, keys, columns, False, PADDED, HEAD_DIM)
    dk = tl.zeros([BLOCK_K, BLOCK_D], dtype=tl.float32)
    dv = tl.zeros([BLOCK_K, BLOCK_D], dtype=tl.float32)
    if SPLIT:
        more = BLOCK_D + tl.arange(0, BLOCK_MORE)
        k_ptrs = k_row + offsets_in(stride_kn, stride_kd, key_rows, more)
        v_ptrs = v_row + offsets_in(stride_vn, stride_vd, key_rows, more)
        k_more = tl.load(k_ptrs)
        v_more = tl.load(v_ptrs)
        dk_more = tl.zeros([BLOCK_K, BLOCK_MORE], dtype=tl.float32)
        dv_more = tl.zeros([BLOCK_K, BLOCK_MORE], dtype=tl.float32)
    else:
        # Nothing reads these.
        more, k_more, v_more, dk_more, dv_more = columns, k, v, dk, dv

    # Seen from the keys the band is mirrored: key j is seen by the queries i >= j - upper.
    first, whole, cut, stop = stretches(key_start, num_queries, -upper, 0, HAS_UPPER, False, BLOCK_K, BLOCK_Q)
    first_query = tl.full([], first, tl.int64)
    q_row = q_ptr + batch * stride_qb + head * stride_qh + first_query * stride_qn
    d_out_row = d_out_ptr + batch * stride_gb + head * stride_gh + first_query * stride_gn
    ends = batch_head.to(tl.int64) * num_queries
    if HAS_UPPER:
        dk, dv, dk_more, dv_more, q_row, d_out_row = walk_queries_once(
            dk, dv, dk_more, dv_more, k, v, k_more, v_more, q_row, d_out_row,
            logsumexp_ptr + ends, delta_ptr + ends, dq_sum_ptr + ends * HEAD_DIM, keys, columns, more,
            first, tl.minimum(whole, stop), stride_qn, stride_qd, stride_gn, stride_gd, score_factor, upper,
            True, SPLIT, PADDED, EMULATE_BF16, HEAD_DIM, BLOCK_Q, BLOCK_K,
        )  # fmt: skip
    dk, dv, dk_more, dv_more, q_row, d_out_row = walk_queries_once(
        dk, dv, dk_more, dv_more, k, v, k_more, v_more, q_row, d_out_row,
        logsumexp_ptr + ends, delta_ptr + ends, dq_sum_ptr + ends * HEAD_DIM, keys, columns, more,
        whole, cut, stride_qn, stride_qd, stride_gn, stride_gd, score_factor, upper,
        False, SPLIT, PADDED, EMULATE_BF16, HEAD_DIM, BLOCK_Q, BLOCK_K,
    )  # fmt: skip

    dk_row = dk_ptr + batch * stride_dkb + head * stride_dkh + first_key * stride_dkn
    dv_row = dv_ptr + batch * stride_dvb + head * stride_dvh + first_key * stride_dvn
    dk_ptrs = dk_row + offsets_in(stride_dkn, stride_dkd, key_rows, columns)
    dv_ptrs = dv_row + offsets_in(stride_dvn, stride_dvd, key_rows, columns)
    inside = columns[None, :] < HEAD_DIM
    tl.store(dk_ptrs, rounded(dk * scale, dk_ptr.dtype.element_ty, EMULATE_BF16), mask=inside)
    tl.store(dv_ptrs, rounded(dv, dv_ptr.dtype.element_ty, EMULATE_BF16), mask=inside)
    if SPLIT:
        dk_ptrs = dk_row + offsets_in(stride_dkn, stride_dkd, key_rows, more)
        dv_ptrs = dv_row + offsets_in(stride_dvn, stride_dvd, key_rows, more)
        tl.store(dk_ptrs, rounded(dk_more * scale, dk_ptr.dtype.element_ty, EMULATE_BF16))
        tl.store(dv_ptrs, rounded(dv_more, dv_ptr.dtype.element_ty, EMULATE_BF16))
