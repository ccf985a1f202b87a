"""FlashAttention-2's backward pass as three Triton kernels: delta, then dk and dv, then dq.

Shapes
    q, out, d_out, dq  (B, H, N_q, D), any strides; float16, bfloat16 or float32
    k, v, dk, dv       (B, H_kv, N_k, D), likewise; query head h reads head h // (H / H_kv)
    logsumexp, delta   (B, H, N_q), contiguous, float32, natural logarithm

As Dao (2023), "FlashAttention-2", Algorithm 2. The weights come back from the log-sum-exp L, tile by tile,

    p_ij = exp(s_ij - L_i)    dp_ij = do_i . v_j    ds_ij = p_ij (dp_ij - delta_i)
    dv_j = sum_i p_ij do_i    dk_j = scale sum_i ds_ij q_i    dq_i = scale sum_j ds_ij k_j
    delta_i = do_i . o_i - dL_i

where dL is the gradient of the log-sum-exp itself. A tile of keys walks over the queries that see it, and
a tile of queries over the keys that it sees: each sum is one program's, so nothing is added up by atomics
and the same inputs give the same bits. It costs two recomputations of p instead of one. With grouped heads
a tile of keys walks over the queries of all the heads that read it, one head after the other.

Inside, scores are in units of log 2 (see the forward kernel). p and ds are rounded to the inputs' dtype
before they are multiplied, as in the forward; sums are float32. A soft cap multiplies ds by its slope. Sinks, keys that
have no lower bound, are also seen by the queries behind the band, and a tile of queries walks over their tiles first.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# Kernel arguments are pointers and tl values: Triton has no types for them.
# ruff: noqa: N803, N806
# Compile-time constants are upper case, as Triton code has them.

import triton
import triton.language as tl

from perflab.lab.attention.triton_pieces import (
    LOG2_E,
    dot,
    in_band,
    load_tile,
    offsets_in,
    place,
    rounded,
    score,
    seen_keys,
    stretches,
    tile_pointers,
)

MOST_NARROW = tl.constexpr(128)


@triton.jit
def attention_delta_kernel(
    out_ptr, d_out_ptr, d_logsumexp_ptr, delta_ptr,
    stride_ob, stride_oh, stride_on, stride_od,
    stride_gb, stride_gh, stride_gn, stride_gd,
    num_heads, num_queries,
    HAS_D_LOGSUMEXP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: delta of BLOCK_Q queries of one head."""
    num_tiles = tl.cdiv(num_queries, BLOCK_Q)
    batch_head = tl.program_id(0) // num_tiles
    batch = (batch_head // num_heads).to(tl.int64)
    head = (batch_head % num_heads).to(tl.int64)
    query_start = tl.program_id(0) % num_tiles * BLOCK_Q
    rows = tl.arange(0, BLOCK_Q)
    columns = tl.arange(0, BLOCK_D)
    queries = query_start + rows
    first = query_start.to(tl.int64)

    inside = (queries[:, None] < num_queries) & (columns[None, :] < HEAD_DIM)
    out_ptrs = tile_pointers(out_ptr, stride_ob, stride_oh, stride_on, stride_od, batch, head, first, rows, columns)
    d_out_ptrs = tile_pointers(d_out_ptr, stride_gb, stride_gh, stride_gn, stride_gd, batch, head, first, rows, columns)
    out = tl.load(out_ptrs, mask=inside, other=0.0).to(tl.float32)
    d_out = tl.load(d_out_ptrs, mask=inside, other=0.0).to(tl.float32)
    delta = tl.sum(out * d_out, 1)
    ends = batch_head.to(tl.int64) * num_queries + queries
    if HAS_D_LOGSUMEXP:
        delta -= tl.load(d_logsumexp_ptr + ends, mask=queries < num_queries, other=0.0)
    tl.store(delta_ptr + ends, delta, mask=queries < num_queries)


@triton.jit
def load_ends(logsumexp_ptr, delta_ptr, queries, inside):
    """Log-sum-exp in units of log 2, and delta. Where there is no query, or it sees no key, its weights must come
    out as zero: exp(s - inf)."""
    logsumexp = tl.load(logsumexp_ptr + queries, mask=inside, other=float("inf"))
    logsumexp = tl.where(logsumexp == float("-inf"), float("inf"), logsumexp)
    return logsumexp * LOG2_E, tl.load(delta_ptr + queries, mask=inside, other=0.0)


@triton.jit
def walk_queries(
    dk, dv, k, v, q_head, d_out_head, logsumexp_ptr, delta_ptr, keys, columns,
    query_start, query_stop, num_queries, stride_qn, stride_qd, stride_gn, stride_gd,
    score_factor, softcap_log2, lower, upper, sinks,
    HAS_LOWER: tl.constexpr, HAS_UPPER: tl.constexpr, HAS_SINKS: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr, PADDED: tl.constexpr, EMULATE_BF16: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Add what the queries [query_start, query_stop) give to dk and dv; q_head and d_out_head point to the head's first
    query."""
    WIDE: tl.constexpr = HEAD_DIM > MOST_NARROW
    # Pointers are not carried from one walk to the next: as in the forward.
    first = tl.full([], query_start, tl.int64)
    q_row = q_head + first * stride_qn
    d_out_row = d_out_head + first * stride_gn
    if not WIDE:
        # Above MOST_NARROW columns pointers of each element would take the accumulators' registers.
        rows = tl.arange(0, BLOCK_Q)
        q_row += offsets_in(stride_qn, stride_qd, rows, columns)
        d_out_row += offsets_in(stride_gn, stride_gd, rows, columns)
    # What does not change is computed again in each tile where it would take the accumulators' registers.
    for start in tl.range(query_start, query_stop, BLOCK_Q, disable_licm=WIDE):
        queries = start + tl.arange(0, BLOCK_Q)
        inside = queries < num_queries
        if WIDE:
            rows = tl.arange(0, BLOCK_Q)
            q_ptrs = q_row + offsets_in(stride_qn, stride_qd, rows, columns)
            d_out_ptrs = d_out_row + offsets_in(stride_gn, stride_gd, rows, columns)
        else:
            q_ptrs, d_out_ptrs = q_row, d_out_row
        q = load_tile(q_ptrs, inside, columns, MASKED, PADDED, HEAD_DIM)
        d_out = load_tile(d_out_ptrs, inside, columns, MASKED, PADDED, HEAD_DIM)
        logsumexp, delta = load_ends(logsumexp_ptr, delta_ptr, queries, inside)

        # Transposed, a row a key: what is added up over queries is then a plain product.
        products = dot(k, tl.trans(q), tl.zeros([BLOCK_K, BLOCK_Q], tl.float32), EMULATE_BF16)
        values, factor = score(products, score_factor, softcap_log2, HAS_SOFTCAP)
        weights = tl.exp2(values * factor - logsumexp[None, :])
        if MASKED and (HAS_LOWER or HAS_UPPER):
            ahead = keys[:, None] - queries[None, :]
            seen = in_band(ahead, lower, upper, HAS_LOWER, HAS_UPPER, keys[:, None], sinks, HAS_SINKS)
            weights = tl.where(seen, weights, 0.0)
        dv = dot(rounded(weights, d_out.dtype, EMULATE_BF16), d_out, dv, EMULATE_BF16)
        if HAS_SOFTCAP:
            weights *= 1.0 - values * values  # here, since values kept past the next product take registers
        d_weights = dot(v, tl.trans(d_out), tl.zeros([BLOCK_K, BLOCK_Q], tl.float32), EMULATE_BF16)
        d_scores = weights * (d_weights - delta[None, :])
        dk = dot(rounded(d_scores, q.dtype, EMULATE_BF16), q, dk, EMULATE_BF16)
        q_row += BLOCK_Q * stride_qn
        d_out_row += BLOCK_Q * stride_gn
    return dk, dv


@triton.jit(do_not_specialize=["problem_class"])
def attention_dk_dv_kernel(
    q_ptr, k_ptr, v_ptr, d_out_ptr, logsumexp_ptr, delta_ptr, dk_ptr, dv_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_gb, stride_gh, stride_gn, stride_gd,
    stride_dkb, stride_dkh, stride_dkn, stride_dkd,
    stride_dvb, stride_dvh, stride_dvn, stride_dvd,
    num_heads, group, num_queries, num_keys, scale, score_factor, softcap_log2, lower, upper, sinks, problem_class,
    section,
    HAS_LOWER: tl.constexpr, HAS_UPPER: tl.constexpr, HAS_SINKS: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    EMULATE_BF16: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: one tile of BLOCK_K keys of one of their heads against all the queries that see it."""
    PADDED: tl.constexpr = HEAD_DIM != BLOCK_D
    num_tiles = tl.cdiv(num_keys, BLOCK_K)
    # Causal: the first keys are seen by the most queries, and start first as it is.
    tile, batch_head = place(tl.program_id(0), num_tiles, section)
    num_key_heads = num_heads // group
    batch = (batch_head // num_key_heads).to(tl.int64)
    key_head = (batch_head % num_key_heads).to(tl.int64)
    key_start = tile * BLOCK_K

    key_rows = tl.arange(0, BLOCK_K)
    columns = tl.arange(0, BLOCK_D)
    keys = key_start + key_rows
    inside = (keys[:, None] < num_keys) & (columns[None, :] < HEAD_DIM)
    first_key = key_start.to(tl.int64)
    k_ptrs = tile_pointers(
        k_ptr, stride_kb, stride_kh, stride_kn, stride_kd, batch, key_head, first_key, key_rows, columns
    )  # fmt: skip
    v_ptrs = tile_pointers(
        v_ptr, stride_vb, stride_vh, stride_vn, stride_vd, batch, key_head, first_key, key_rows, columns
    )  # fmt: skip
    k = tl.load(k_ptrs, mask=inside, other=0.0)
    v = tl.load(v_ptrs, mask=inside, other=0.0)
    dk = tl.zeros([BLOCK_K, BLOCK_D], dtype=tl.float32)
    dv = tl.zeros([BLOCK_K, BLOCK_D], dtype=tl.float32)

    # Seen from the keys the band is mirrored: key j is seen by the queries i with -upper <= i - j <= -lower.
    first, whole, cut, stop = stretches(
        key_start, num_queries, -upper, -lower, HAS_UPPER, HAS_LOWER, BLOCK_K, BLOCK_Q
    )  # fmt: skip
    for member in tl.range(0, group):
        head = key_head * group + member
        q_head = q_ptr + batch * stride_qb + head * stride_qh
        d_out_head = d_out_ptr + batch * stride_gb + head * stride_gh
        ends = (batch * num_heads + head) * num_queries
        if HAS_UPPER:
            dk, dv = walk_queries(
                dk, dv, k, v, q_head, d_out_head, logsumexp_ptr + ends, delta_ptr + ends, keys, columns,
                first, tl.minimum(whole, stop), num_queries, stride_qn, stride_qd, stride_gn, stride_gd,
                score_factor, softcap_log2, lower, upper, sinks, HAS_LOWER, HAS_UPPER, HAS_SINKS, HAS_SOFTCAP,
                True, PADDED, EMULATE_BF16, HEAD_DIM, BLOCK_Q, BLOCK_K,
            )  # fmt: skip
        dk, dv = walk_queries(
            dk, dv, k, v, q_head, d_out_head, logsumexp_ptr + ends, delta_ptr + ends, keys, columns,
            whole, cut, num_queries, stride_qn, stride_qd, stride_gn, stride_gd,
            score_factor, softcap_log2, lower, upper, sinks, HAS_LOWER, HAS_UPPER, HAS_SINKS, HAS_SOFTCAP,
            False, PADDED, EMULATE_BF16, HEAD_DIM, BLOCK_Q, BLOCK_K,
        )  # fmt: skip
        dk, dv = walk_queries(
            dk, dv, k, v, q_head, d_out_head, logsumexp_ptr + ends, delta_ptr + ends, keys, columns,
            cut, stop, num_queries, stride_qn, stride_qd, stride_gn, stride_gd,
            score_factor, softcap_log2, lower, upper, sinks, HAS_LOWER, HAS_UPPER, HAS_SINKS, HAS_SOFTCAP,
            True, PADDED, EMULATE_BF16, HEAD_DIM, BLOCK_Q, BLOCK_K,
        )  # fmt: skip
        if HAS_SINKS:
            # From the first tile that no walk has visited.
            beyond = tl.maximum(tl.cdiv(tl.maximum(stop, 0), BLOCK_Q) * BLOCK_Q, first)
            dk, dv = walk_queries(
                dk, dv, k, v, q_head, d_out_head, logsumexp_ptr + ends, delta_ptr + ends, keys, columns,
                beyond, tl.where(key_start < sinks, num_queries, beyond), num_queries,
                stride_qn, stride_qd, stride_gn, stride_gd,
                score_factor, softcap_log2, lower, upper, sinks, HAS_LOWER, HAS_UPPER, HAS_SINKS, HAS_SOFTCAP,
                True, PADDED, EMULATE_BF16, HEAD_DIM, BLOCK_Q, BLOCK_K,
            )  # fmt: skip

    dk_ptrs = tile_pointers(
        dk_ptr, stride_dkb, stride_dkh, stride_dkn, stride_dkd, batch, key_head, first_key, key_rows, columns
    )  # fmt: skip
    dv_ptrs = tile_pointers(
        dv_ptr, stride_dvb, stride_dvh, stride_dvn, stride_dvd, batch, key_head, first_key, key_rows, columns
    )  # fmt: skip
    tl.store(dk_ptrs, rounded(dk * scale, dk_ptr.dtype.element_ty, EMULATE_BF16), mask=inside)
    tl.store(dv_ptrs, rounded(dv, dv_ptr.dtype.element_ty, EMULATE_BF16), mask=inside)


@triton.jit
def walk_keys(
    dq, q, d_out, logsumexp, delta, k_head, v_head, queries, columns,
    key_start, key_stop, num_keys, stride_kn, stride_kd, stride_vn, stride_vd,
    score_factor, softcap_log2, lower, upper, sinks,
    HAS_LOWER: tl.constexpr, HAS_UPPER: tl.constexpr, HAS_SINKS: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr, PADDED: tl.constexpr, EMULATE_BF16: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Add what the keys [key_start, key_stop) give to dq; k_head and v_head point to the head's first key."""
    first = tl.full([], key_start, tl.int64)  # pointers are not carried from one walk to the next: as in the forward
    rows = tl.arange(0, BLOCK_K)
    k_ptrs = k_head + first * stride_kn + offsets_in(stride_kn, stride_kd, rows, columns)
    v_ptrs = v_head + first * stride_vn + offsets_in(stride_vn, stride_vd, rows, columns)
    for start in tl.range(key_start, key_stop, BLOCK_K):
        keys = start + rows
        k = load_tile(k_ptrs, keys < num_keys, columns, MASKED, PADDED, HEAD_DIM)
        v = load_tile(v_ptrs, keys < num_keys, columns, MASKED, PADDED, HEAD_DIM)
        products = dot(q, tl.trans(k), tl.zeros([BLOCK_Q, BLOCK_K], tl.float32), EMULATE_BF16)
        values, factor = score(products, score_factor, softcap_log2, HAS_SOFTCAP)
        weights = tl.exp2(values * factor - logsumexp[:, None])
        if MASKED:
            seen = seen_keys(queries, keys, num_keys, lower, upper, sinks, HAS_LOWER, HAS_UPPER, HAS_SINKS)
            weights = tl.where(seen, weights, 0.0)
        if HAS_SOFTCAP:
            weights *= 1.0 - values * values
        d_weights = dot(d_out, tl.trans(v), tl.zeros([BLOCK_Q, BLOCK_K], tl.float32), EMULATE_BF16)
        d_scores = weights * (d_weights - delta[:, None])
        dq = dot(rounded(d_scores, k.dtype, EMULATE_BF16), k, dq, EMULATE_BF16)
        k_ptrs += BLOCK_K * stride_kn
        v_ptrs += BLOCK_K * stride_vn
    return dq


@triton.jit(do_not_specialize=["problem_class"])
def attention_dq_kernel(
    q_ptr, k_ptr, v_ptr, d_out_ptr, logsumexp_ptr, delta_ptr, dq_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_gb, stride_gh, stride_gn, stride_gd,
    stride_dqb, stride_dqh, stride_dqn, stride_dqd,
    num_heads, group, num_queries, num_keys, scale, score_factor, softcap_log2, lower, upper, sinks, problem_class,
    section,
    HAS_LOWER: tl.constexpr, HAS_UPPER: tl.constexpr, HAS_SINKS: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    EMULATE_BF16: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: one tile of BLOCK_Q queries of one head against all the keys that they see."""
    PADDED: tl.constexpr = HEAD_DIM != BLOCK_D
    num_tiles = tl.cdiv(num_queries, BLOCK_Q)
    tile, batch_head = place(tl.program_id(0), num_tiles, section)
    if HAS_UPPER and not HAS_LOWER:
        tile = num_tiles - 1 - tile  # the longest first, as in the forward
    batch = (batch_head // num_heads).to(tl.int64)
    head = (batch_head % num_heads).to(tl.int64)
    query_start = tile * BLOCK_Q
    first_query = query_start.to(tl.int64)
    first, whole, cut, stop = stretches(
        query_start, num_keys, lower, upper, HAS_LOWER, HAS_UPPER, BLOCK_Q, BLOCK_K
    )  # fmt: skip

    rows = tl.arange(0, BLOCK_Q)
    columns = tl.arange(0, BLOCK_D)
    queries = query_start + rows
    key_head = head // group
    inside = (queries[:, None] < num_queries) & (columns[None, :] < HEAD_DIM)
    q_ptrs = tile_pointers(q_ptr, stride_qb, stride_qh, stride_qn, stride_qd, batch, head, first_query, rows, columns)
    d_out_ptrs = tile_pointers(
        d_out_ptr, stride_gb, stride_gh, stride_gn, stride_gd, batch, head, first_query, rows, columns
    )  # fmt: skip
    q = tl.load(q_ptrs, mask=inside, other=0.0)
    d_out = tl.load(d_out_ptrs, mask=inside, other=0.0)
    ends = batch_head.to(tl.int64) * num_queries
    logsumexp, delta = load_ends(logsumexp_ptr + ends, delta_ptr + ends, queries, queries < num_queries)
    dq = tl.zeros([BLOCK_Q, BLOCK_D], dtype=tl.float32)
    k_head = k_ptr + batch * stride_kb + key_head * stride_kh
    v_head = v_ptr + batch * stride_vb + key_head * stride_vh
    if HAS_SINKS:
        dq = walk_keys(
            dq, q, d_out, logsumexp, delta, k_head, v_head, queries, columns,
            0, tl.minimum(tl.minimum(sinks, first), stop), num_keys, stride_kn, stride_kd, stride_vn, stride_vd,
            score_factor, softcap_log2, lower, upper, sinks, HAS_LOWER, HAS_UPPER, HAS_SINKS, HAS_SOFTCAP,
            True, PADDED, EMULATE_BF16, HEAD_DIM, BLOCK_Q, BLOCK_K,
        )  # fmt: skip
    if HAS_LOWER:
        dq = walk_keys(
            dq, q, d_out, logsumexp, delta, k_head, v_head, queries, columns,
            first, tl.minimum(whole, stop), num_keys, stride_kn, stride_kd, stride_vn, stride_vd,
            score_factor, softcap_log2, lower, upper, sinks, HAS_LOWER, HAS_UPPER, HAS_SINKS, HAS_SOFTCAP,
            True, PADDED, EMULATE_BF16, HEAD_DIM, BLOCK_Q, BLOCK_K,
        )  # fmt: skip
    dq = walk_keys(
        dq, q, d_out, logsumexp, delta, k_head, v_head, queries, columns,
        whole, cut, num_keys, stride_kn, stride_kd, stride_vn, stride_vd,
        score_factor, softcap_log2, lower, upper, sinks, HAS_LOWER, HAS_UPPER, HAS_SINKS, HAS_SOFTCAP,
        False, PADDED, EMULATE_BF16, HEAD_DIM, BLOCK_Q, BLOCK_K,
    )  # fmt: skip
    dq = walk_keys(
        dq, q, d_out, logsumexp, delta, k_head, v_head, queries, columns,
        cut, stop, num_keys, stride_kn, stride_kd, stride_vn, stride_vd,
        score_factor, softcap_log2, lower, upper, sinks, HAS_LOWER, HAS_UPPER, HAS_SINKS, HAS_SOFTCAP,
        True, PADDED, EMULATE_BF16, HEAD_DIM, BLOCK_Q, BLOCK_K,
    )  # fmt: skip

    dq_ptrs = tile_pointers(
        dq_ptr, stride_dqb, stride_dqh, stride_dqn, stride_dqd, batch, head, first_query, rows, columns
    )  # fmt: skip
    tl.store(dq_ptrs, rounded(dq * scale, dq_ptr.dtype.element_ty, EMULATE_BF16), mask=inside)
