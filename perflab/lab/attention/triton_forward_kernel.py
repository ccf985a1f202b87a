"""FlashAttention-2's forward pass as one Triton kernel.

Shapes
    q, out             (B, H, N_q, D), any strides; float16, bfloat16 or float32
    k, v               (B, H, N_k, D), likewise
    logsumexp          (B, H, N_q), contiguous, float32, natural logarithm
    one program        a (BLOCK_Q, BLOCK_D) tile of queries against (BLOCK_K, BLOCK_D) tiles of keys

It keeps a running maximum m and sum l of each row, so that at the end

    out_i = sum_j exp(s_ij - L_i) v_j,    L_i = m_i + log l_i,    s_ij = scale * q_i . k_j

as Dao (2023), "FlashAttention-2", Algorithm 1. Inside, scores are in units of log 2, because the
hardware's exponential is exp2: exp(x) = exp2(x * log2 e). What leaves is natural again. Products are
IEEE, sums float32. Causal: query i sees the keys j <= i. Lengths and D are masked to the tiles' size.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# Kernel arguments are pointers and tl values: Triton has no types for them.
# ruff: noqa: N803, N806
# Compile-time constants are upper case, as Triton code has them.

import triton
import triton.language as tl

from perflab.lab.attention.triton_pieces import LN_2, dot, load_tile, rounded, tile_pointers


@triton.jit
def _attend(
    acc, row_max, row_sum, q, k_ptrs, v_ptrs, queries, columns,
    key_start, key_stop, num_keys, stride_kn, stride_vn, scale_log2,
    IS_CAUSAL: tl.constexpr, MASKED: tl.constexpr, PADDED: tl.constexpr, EMULATE_BF16: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Fold the keys [key_start, key_stop) into the running softmax; returns it with advanced pointers."""
    for start in tl.range(key_start, key_stop, BLOCK_K):
        keys = start + tl.arange(0, BLOCK_K)
        k = load_tile(k_ptrs, keys < num_keys, columns, MASKED, PADDED, HEAD_DIM)
        v = load_tile(v_ptrs, keys < num_keys, columns, MASKED, PADDED, HEAD_DIM)
        scores = dot(q, tl.trans(k), tl.zeros([BLOCK_Q, BLOCK_K], tl.float32), EMULATE_BF16) * scale_log2
        if MASKED:
            visible = keys[None, :] < num_keys
            if IS_CAUSAL:
                visible = visible & (keys[None, :] <= queries[:, None])
            scores = tl.where(visible, scores, float("-inf"))

        # Key 0 is visible to every query and comes first, so new_max is finite from here on.
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        weights = tl.exp2(scores - new_max[:, None])
        rescale = tl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(weights, 1)
        acc = dot(rounded(weights, v.dtype, EMULATE_BF16), v, acc * rescale[:, None], EMULATE_BF16)
        row_max = new_max

        # Pointers advance by one tile, so no 32-bit offset ever spans the whole sequence.
        k_ptrs += BLOCK_K * stride_kn
        v_ptrs += BLOCK_K * stride_vn
    return acc, row_max, row_sum, k_ptrs, v_ptrs


@triton.jit
def attention_forward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, logsumexp_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_ob, stride_oh, stride_on, stride_od,
    num_heads, num_queries, num_keys, scale_log2,
    IS_CAUSAL: tl.constexpr, EMULATE_BF16: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: one tile of BLOCK_Q queries of one head against all the keys that they see."""
    PADDED: tl.constexpr = HEAD_DIM != BLOCK_D
    # One grid axis for everything: the y and z axes end at 65,535, which B * H may pass.
    num_tiles = tl.cdiv(num_queries, BLOCK_Q)
    tile = tl.program_id(0) % num_tiles
    batch_head = tl.program_id(0) // num_tiles
    if IS_CAUSAL:
        # The last queries see the most keys: start them first, so that short tiles fill the end.
        tile = num_tiles - 1 - tile
    # 64 bit: the offset of a head, or of a row of a long sequence, may pass 2**31 elements.
    batch = (batch_head // num_heads).to(tl.int64)
    head = (batch_head % num_heads).to(tl.int64)
    query_start = tile * BLOCK_Q
    first = query_start.to(tl.int64)

    rows = tl.arange(0, BLOCK_Q)
    keys = tl.arange(0, BLOCK_K)
    columns = tl.arange(0, BLOCK_D)
    queries = query_start + rows
    q_ptrs = tile_pointers(q_ptr, stride_qb, stride_qh, stride_qn, stride_qd, batch, head, first, rows, columns)
    k_ptrs = tile_pointers(k_ptr, stride_kb, stride_kh, stride_kn, stride_kd, batch, head, 0, keys, columns)
    v_ptrs = tile_pointers(v_ptr, stride_vb, stride_vh, stride_vn, stride_vd, batch, head, 0, keys, columns)
    out_ptrs = tile_pointers(out_ptr, stride_ob, stride_oh, stride_on, stride_od, batch, head, first, rows, columns)

    inside = (queries[:, None] < num_queries) & (columns[None, :] < HEAD_DIM)
    q = tl.load(q_ptrs, mask=inside, other=0.0)
    acc = tl.zeros([BLOCK_Q, BLOCK_D], dtype=tl.float32)
    row_max = tl.full([BLOCK_Q], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_Q], dtype=tl.float32)

    # First the key tiles that every query of this tile sees whole: no mask. Then those that the
    # diagonal or the end of the keys cuts: masked. Tiles above the diagonal are never visited.
    if IS_CAUSAL:
        seen_by_all = tl.minimum(query_start + 1, num_keys)
        seen_by_any = tl.minimum(query_start + BLOCK_Q, num_keys)
    else:
        seen_by_all = num_keys
        seen_by_any = num_keys
    whole = seen_by_all // BLOCK_K * BLOCK_K
    acc, row_max, row_sum, k_ptrs, v_ptrs = _attend(
        acc, row_max, row_sum, q, k_ptrs, v_ptrs, queries, columns,
        0, whole, num_keys, stride_kn, stride_vn, scale_log2,
        IS_CAUSAL, False, PADDED, EMULATE_BF16, HEAD_DIM, BLOCK_Q, BLOCK_K,
    )  # fmt: skip
    acc, row_max, row_sum, k_ptrs, v_ptrs = _attend(
        acc, row_max, row_sum, q, k_ptrs, v_ptrs, queries, columns,
        whole, seen_by_any, num_keys, stride_kn, stride_vn, scale_log2,
        IS_CAUSAL, True, PADDED, EMULATE_BF16, HEAD_DIM, BLOCK_Q, BLOCK_K,
    )  # fmt: skip

    out = acc / row_sum[:, None]
    logsumexp = (row_max + tl.log2(row_sum)) * LN_2  # back to natural units
    tl.store(out_ptrs, rounded(out, out_ptr.dtype.element_ty, EMULATE_BF16), mask=inside)
    logsumexp_ptrs = logsumexp_ptr + batch_head.to(tl.int64) * num_queries + queries
    tl.store(logsumexp_ptrs, logsumexp, mask=queries < num_queries)
