"""FlashAttention-2's forward pass as one Triton kernel.

Shapes
    q, out             (B, H, N_q, D), any strides; float16, bfloat16 or float32
    k, v               (B, H_kv, N_k, D), likewise; query head h reads head h // (H / H_kv)
    logsumexp          (B, H, N_q), contiguous, float32, natural logarithm
    one program        a (BLOCK_Q, BLOCK_D) tile of queries against (BLOCK_K, BLOCK_D) tiles of keys

It keeps a running maximum m and sum l of each row, so that at the end

    out_i = sum_j exp(s_ij - L_i) v_j,    L_i = m_i + log l_i,    s_ij = scale * q_i . k_j

as Dao (2023), "FlashAttention-2", Algorithm 1. Inside, scores are in units of log 2, because the
hardware's exponential is exp2: exp(x) = exp2(x * log2 e). What leaves is natural again. Products are
IEEE, sums float32. Query i sees the keys j with lower <= j - i <= upper (see `scoring`); tiles outside of that band
are never visited, save those of sinks: keys j < sinks have no lower bound. Lengths and D are masked to the tiles' size.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# Kernel arguments are pointers and tl values: Triton has no types for them.
# ruff: noqa: N803, N806
# Compile-time constants are upper case, as Triton code has them.

import triton
import triton.language as tl

from perflab.lab.attention.triton_pieces import (
    LN_2,
    dot,
    load_tile,
    offsets_in,
    place,
    rising,
    rounded,
    seen_keys,
    stretches,
    tile_pointers,
)


@triton.jit
def fold(
    acc, row_max, row_sum, raised, factor, v,
    MAY_SEE_NOTHING: tl.constexpr, EMULATE_BF16: tl.constexpr,
):  # fmt: skip
    """One tile of scores, factor * raised (units of log 2, -inf where not seen), and its v into the running softmax."""
    new_max = tl.maximum(row_max, tl.max(raised, 1) * factor)
    shift = new_max
    if MAY_SEE_NOTHING:
        # A row that has seen no key yet has the maximum -inf, and -inf less -inf is no number.
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)
    weights = tl.exp2(raised * factor - shift[:, None])
    rescale = tl.exp2(row_max - shift)
    row_sum = row_sum * rescale + tl.sum(weights, 1)
    acc = dot(rounded(weights, v.dtype, EMULATE_BF16), v, acc * rescale[:, None], EMULATE_BF16)
    return acc, new_max, row_sum


@triton.jit
def attend(
    acc, row_max, row_sum, q, k_head, v_head, queries, columns,
    key_start, key_stop, num_keys, stride_kn, stride_kd, stride_vn, stride_vd,
    score_factor, softcap_log2, lower, upper, sinks,
    HAS_LOWER: tl.constexpr, HAS_UPPER: tl.constexpr, HAS_SINKS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, FLIPPED: tl.constexpr, MAY_SEE_NOTHING: tl.constexpr,
    MASKED: tl.constexpr, PADDED: tl.constexpr, EMULATE_BF16: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Fold the keys [key_start, key_stop) into the running softmax; k_head and v_head point to the head's first key."""
    # Found here and not carried from one walk to the next: Triton 3.7 would change their layout in between, and carry a
    # pointer of each element for that.
    first = tl.full([], key_start, tl.int64)
    rows = tl.arange(0, BLOCK_K)
    k_ptrs = k_head + first * stride_kn + offsets_in(stride_kn, stride_kd, rows, columns)
    v_ptrs = v_head + first * stride_vn + offsets_in(stride_vn, stride_vd, rows, columns)
    for start in tl.range(key_start, key_stop, BLOCK_K):
        keys = start + rows
        k = load_tile(k_ptrs, keys < num_keys, columns, MASKED, PADDED, HEAD_DIM)
        v = load_tile(v_ptrs, keys < num_keys, columns, MASKED, PADDED, HEAD_DIM)
        products = dot(q, tl.trans(k), tl.zeros([BLOCK_Q, BLOCK_K], tl.float32), EMULATE_BF16)
        raised, factor = rising(products, score_factor, softcap_log2, HAS_SOFTCAP, FLIPPED)
        if MASKED:
            seen = seen_keys(queries, keys, num_keys, lower, upper, sinks, HAS_LOWER, HAS_UPPER, HAS_SINKS)
            raised = tl.where(seen, raised, float("-inf"))
        acc, row_max, row_sum = fold(
            acc, row_max, row_sum, raised, factor, v, MASKED and MAY_SEE_NOTHING, EMULATE_BF16
        )  # fmt: skip
        # Pointers advance by one tile, so no 32-bit offset ever spans the whole sequence.
        k_ptrs += BLOCK_K * stride_kn
        v_ptrs += BLOCK_K * stride_vn
    return acc, row_max, row_sum


@triton.jit
def finished(acc, row_max, row_sum, MAY_SEE_NOTHING: tl.constexpr):
    """The output, float32, and the natural log-sum-exp, of a running softmax that has seen everything."""
    if MAY_SEE_NOTHING:
        row_sum = tl.where(row_sum == 0.0, 1.0, row_sum)  # acc is zero there, and row_max -inf
    return acc / row_sum[:, None], (row_max + tl.log2(row_sum)) * LN_2


@triton.jit(do_not_specialize=["problem_class"])
def attention_forward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, logsumexp_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_ob, stride_oh, stride_on, stride_od,
    num_heads, group, num_queries, num_keys, score_factor, softcap_log2, lower, upper, sinks, problem_class, section,
    HAS_LOWER: tl.constexpr, HAS_UPPER: tl.constexpr, HAS_SINKS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, FLIPPED: tl.constexpr, MAY_SEE_NOTHING: tl.constexpr,
    EMULATE_BF16: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: one tile of BLOCK_Q queries of one head against all the keys that they see.

    problem_class is for the autotuner alone, which knows cases apart by arguments.
    """
    PADDED: tl.constexpr = HEAD_DIM != BLOCK_D
    # One grid axis for everything: the y and z axes end at 65,535, which B * H may pass.
    num_tiles = tl.cdiv(num_queries, BLOCK_Q)
    tile, batch_head = place(tl.program_id(0), num_tiles, section)
    if HAS_UPPER and not HAS_LOWER:
        # The last queries see the most keys: start them first, so that short tiles fill the end.
        tile = num_tiles - 1 - tile
    # 64 bit: the offset of a head, or of a row of a long sequence, may pass 2**31 elements.
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
    q_ptrs = tile_pointers(q_ptr, stride_qb, stride_qh, stride_qn, stride_qd, batch, head, first_query, rows, columns)

    inside = (queries[:, None] < num_queries) & (columns[None, :] < HEAD_DIM)
    q = tl.load(q_ptrs, mask=inside, other=0.0)
    acc = tl.zeros([BLOCK_Q, BLOCK_D], dtype=tl.float32)
    row_max = tl.full([BLOCK_Q], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_Q], dtype=tl.float32)
    k_head = k_ptr + batch * stride_kb + key_head * stride_kh
    v_head = v_ptr + batch * stride_vb + key_head * stride_vh
    if HAS_SINKS:
        # Their tiles, as far as those of the band do not begin there.
        acc, row_max, row_sum = attend(
            acc, row_max, row_sum, q, k_head, v_head, queries, columns,
            0, tl.minimum(tl.minimum(sinks, first), stop), num_keys, stride_kn, stride_kd, stride_vn, stride_vd,
            score_factor, softcap_log2, lower, upper, sinks,
            HAS_LOWER, HAS_UPPER, HAS_SINKS, HAS_SOFTCAP, FLIPPED, MAY_SEE_NOTHING,
            True, PADDED, EMULATE_BF16, HEAD_DIM, BLOCK_Q, BLOCK_K,
        )  # fmt: skip
    if HAS_LOWER:
        acc, row_max, row_sum = attend(
            acc, row_max, row_sum, q, k_head, v_head, queries, columns,
            first, tl.minimum(whole, stop), num_keys, stride_kn, stride_kd, stride_vn, stride_vd,
            score_factor, softcap_log2, lower, upper, sinks,
            HAS_LOWER, HAS_UPPER, HAS_SINKS, HAS_SOFTCAP, FLIPPED, MAY_SEE_NOTHING,
            True, PADDED, EMULATE_BF16, HEAD_DIM, BLOCK_Q, BLOCK_K,
        )  # fmt: skip
    acc, row_max, row_sum = attend(
        acc, row_max, row_sum, q, k_head, v_head, queries, columns,
        whole, cut, num_keys, stride_kn, stride_kd, stride_vn, stride_vd,
        score_factor, softcap_log2, lower, upper, sinks,
        HAS_LOWER, HAS_UPPER, HAS_SINKS, HAS_SOFTCAP, FLIPPED, MAY_SEE_NOTHING,
        False, PADDED, EMULATE_BF16, HEAD_DIM, BLOCK_Q, BLOCK_K,
    )  # fmt: skip
    acc, row_max, row_sum = attend(
        acc, row_max, row_sum, q, k_head, v_head, queries, columns,
        cut, stop, num_keys, stride_kn, stride_kd, stride_vn, stride_vd,
        score_factor, softcap_log2, lower, upper, sinks,
        HAS_LOWER, HAS_UPPER, HAS_SINKS, HAS_SOFTCAP, FLIPPED, MAY_SEE_NOTHING,
        True, PADDED, EMULATE_BF16, HEAD_DIM, BLOCK_Q, BLOCK_K,
    )  # fmt: skip

    out, logsumexp = finished(acc, row_max, row_sum, MAY_SEE_NOTHING)
    out_ptrs = tile_pointers(
        out_ptr, stride_ob, stride_oh, stride_on, stride_od, batch, head, first_query, rows, columns
    )  # fmt: skip
    tl.store(out_ptrs, rounded(out, out_ptr.dtype.element_ty, EMULATE_BF16), mask=inside)
    logsumexp_ptrs = logsumexp_ptr + batch_head.to(tl.int64) * num_queries + queries
    tl.store(logsumexp_ptrs, logsumexp, mask=queries < num_queries)
