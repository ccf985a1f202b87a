"""Attention of few queries over many keys as two Triton kernels: one program for each split of the keys, and a merge.

Shapes
    q                  (B, H, T, D), any strides; float16, bfloat16 or float32
    keys, values       (B, C, K, D) or a pool of pages (num_pages, page_size, K, D), any strides; q's dtype, or int8
    scales             (B, C, K) or (num_pages, page_size, K), where keys and values are int8
    parts, ends        (S, B, H, T, D) and (S, B, H, T): output and log-sum-exp of each of S splits; with one split
                       these are the results themselves
    one program        a (BLOCK_Q, BLOCK_D) tile of rows against the (BLOCK_K, BLOCK_D) tiles of one split

The rows of a tile are the query heads of one key head times the queries, so grouped heads share one read of the keys.
The equations are in `decode`, the running softmax in `triton_forward_kernel`. The grid is that of the capacity; what
lies beyond a sequence's length, or out of every window, is not read.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# Kernel arguments are pointers and tl values: Triton has no types for them.
# ruff: noqa: N803, N806
# Compile-time constants are upper case, as Triton code has them.

import triton
import triton.language as tl

from perflab.lab.attention.triton_forward_kernel import finished, fold
from perflab.lab.attention.triton_pieces import dot, in_band, load_tile, rising, rounded


@triton.jit
def attention_decode_kernel(
    q_ptr, k_ptr, v_ptr, k_scales_ptr, v_scales_ptr, lengths_ptr, pages_ptr, parts_ptr, ends_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kn, stride_kh, stride_kd,
    stride_vb, stride_vn, stride_vh, stride_vd,
    stride_ksb, stride_ksn, stride_ksh,
    stride_vsb, stride_vsn, stride_vsh,
    stride_lb, stride_pb, stride_pn,
    stride_os, stride_ob, stride_oh, stride_on, stride_od,
    batch_size, num_heads, key_heads, num_queries, num_keys, num_splits, split_keys, page_size,
    score_factor, softcap_log2, lower, upper,
    HAS_LENGTHS: tl.constexpr, IS_PAGED: tl.constexpr, HAS_SCALES: tl.constexpr,
    HAS_LOWER: tl.constexpr, HAS_UPPER: tl.constexpr, HAS_SOFTCAP: tl.constexpr, FLIPPED: tl.constexpr,
    EMULATE_BF16: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: one tile of rows of one key head against one split of its keys, a multiple of BLOCK_K of them."""
    PADDED: tl.constexpr = HEAD_DIM != BLOCK_D
    group = num_heads // key_heads
    num_tiles = tl.cdiv(group * num_queries, BLOCK_Q)
    split = tl.program_id(0) % num_splits
    tile = tl.program_id(0) // num_splits % num_tiles
    batch_head = tl.program_id(0) // num_splits // num_tiles
    # 64 bit: the offset of a head, or of a slot of a large pool, may pass 2**31 elements.
    batch = (batch_head // key_heads).to(tl.int64)
    key_head = (batch_head % key_heads).to(tl.int64)
    length = num_keys
    shift = 0
    if HAS_LENGTHS:
        length = tl.minimum(tl.load(lengths_ptr + batch * stride_lb), num_keys).to(tl.int32)
        shift = length - num_queries

    rows = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    columns = tl.arange(0, BLOCK_D).to(tl.int64)
    row_inside = rows < group * num_queries
    # Heads of one query stand together: a tile then has few queries, and a narrow band.
    queries = rows // group
    heads = key_head * group + rows % group
    positions = queries + shift
    # The keys [first, stop) of this split are seen by some row.
    first = split * split_keys
    start = first
    stop = tl.minimum(first + split_keys, length)
    if HAS_UPPER:
        last_query = tl.minimum((tile * BLOCK_Q + BLOCK_Q - 1) // group, num_queries - 1)
        stop = tl.minimum(stop, last_query + shift + upper + 1)
    if HAS_LOWER:
        first = tl.maximum(first, tile * BLOCK_Q // group + shift + lower)
        start = first // BLOCK_K * BLOCK_K

    of_rows = batch * stride_qb + heads * stride_qh + queries.to(tl.int64) * stride_qn
    q = load_tile(q_ptr + of_rows[:, None] + columns[None, :] * stride_qd, row_inside, columns, True, PADDED, HEAD_DIM)
    acc = tl.zeros([BLOCK_Q, BLOCK_D], dtype=tl.float32)
    row_max = tl.full([BLOCK_Q], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_Q], dtype=tl.float32)
    for key_start in tl.range(start, stop, BLOCK_K):
        keys = key_start + tl.arange(0, BLOCK_K)
        # Not below `first` either: the page of a key that no window reaches may have been given away.
        inside = (keys >= first) & (keys < stop)
        if IS_PAGED:
            pages = pages_ptr + batch * stride_pb + (keys // page_size).to(tl.int64) * stride_pn
            place = tl.load(pages, mask=inside, other=0).to(tl.int64)
            slot = (keys % page_size).to(tl.int64)
        else:
            place = batch
            slot = keys.to(tl.int64)
        at = key_head * stride_kh + place * stride_kb + slot * stride_kn
        k = load_tile(k_ptr + at[:, None] + columns[None, :] * stride_kd, inside, columns, True, PADDED, HEAD_DIM)
        at = key_head * stride_vh + place * stride_vb + slot * stride_vn
        v = load_tile(v_ptr + at[:, None] + columns[None, :] * stride_vd, inside, columns, True, PADDED, HEAD_DIM)
        if HAS_SCALES:
            k = rounded(k.to(tl.float32), q.dtype, EMULATE_BF16)  # exact: 8 bits fit into each dtype
            at = key_head * stride_vsh + place * stride_vsb + slot * stride_vsn
            v_scales = tl.load(v_scales_ptr + at, mask=inside, other=0.0).to(tl.float32)
            v = rounded(v.to(tl.float32) * v_scales[:, None], q.dtype, EMULATE_BF16)
        products = dot(q, tl.trans(k), tl.zeros([BLOCK_Q, BLOCK_K], tl.float32), EMULATE_BF16)
        if HAS_SCALES:
            at = key_head * stride_ksh + place * stride_ksb + slot * stride_ksn
            products *= tl.load(k_scales_ptr + at, mask=inside, other=0.0).to(tl.float32)[None, :]
        raised, factor = rising(products, score_factor, softcap_log2, HAS_SOFTCAP, FLIPPED)
        seen = in_band(keys[None, :] - positions[:, None], lower, upper, HAS_LOWER, HAS_UPPER)
        raised = tl.where(seen & inside[None, :], raised, float("-inf"))
        acc, row_max, row_sum = fold(acc, row_max, row_sum, raised, factor, v, True, EMULATE_BF16)

    out, ends = finished(acc, row_max, row_sum, True)
    of_rows = split * stride_os.to(tl.int64) + batch * stride_ob + heads * stride_oh + queries.to(tl.int64) * stride_on
    # Of what saw nothing a merge reads the log-sum-exp alone; the results themselves are always written.
    num_written = group * num_queries
    if num_splits > 1:
        num_written = tl.where(start < stop, num_written, 0)
    tl.store(
        parts_ptr + of_rows[:, None] + columns[None, :] * stride_od,
        rounded(out, parts_ptr.dtype.element_ty, EMULATE_BF16),
        mask=(rows < num_written)[:, None] & (columns < HEAD_DIM)[None, :],
    )
    of_rows = ((split * batch_size + batch) * num_heads + heads) * num_queries + queries
    tl.store(ends_ptr + of_rows, ends, mask=row_inside)


@triton.jit
def attention_decode_merge_kernel(
    parts_ptr, ends_ptr, out_ptr, logsumexp_ptr, stride_ob, stride_oh, stride_on, stride_od,
    num_heads, num_queries, num_rows, num_splits,
    EMULATE_BF16: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_R rows of the B H T, merged over all splits. parts (S, B H T, D) is contiguous.

    BLOCK_S splits at once: one after the other each would wait for its own load.
    """
    rows = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    columns = tl.arange(0, BLOCK_D).to(tl.int64)
    row_inside = rows < num_rows
    column_inside = columns < HEAD_DIM
    acc = tl.zeros([BLOCK_R, BLOCK_D], dtype=tl.float32)
    row_max = tl.full([BLOCK_R], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_R], dtype=tl.float32)
    for start in range(0, num_splits, BLOCK_S):
        splits = start + tl.arange(0, BLOCK_S)
        at = splits.to(tl.int64)[None, :] * num_rows + rows[:, None]
        inside = row_inside[:, None] & (splits < num_splits)[None, :]
        ends = tl.load(ends_ptr + at, mask=inside, other=float("-inf"))
        # Where a split saw nothing, no output was written.
        wanted = (ends > float("-inf"))[:, :, None] & column_inside[None, None, :]
        parts = tl.load(parts_ptr + at[:, :, None] * HEAD_DIM + columns[None, None, :], mask=wanted, other=0.0)
        new_max = tl.maximum(row_max, tl.max(ends, 1))
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        weights = tl.exp(ends - shift[:, None])
        rescale = tl.exp(row_max - shift)
        acc = acc * rescale[:, None] + tl.sum(parts * weights[:, :, None], 1)
        row_sum = row_sum * rescale + tl.sum(weights, 1)
        row_max = new_max
    total = tl.where(row_sum == 0.0, 1.0, row_sum)
    query = rows % num_queries
    head = rows // num_queries % num_heads
    at = rows // num_queries // num_heads * stride_ob + head * stride_oh + query * stride_on
    out = rounded(acc / total[:, None], out_ptr.dtype.element_ty, EMULATE_BF16)
    mask = row_inside[:, None] & column_inside[None, :]
    tl.store(out_ptr + at[:, None] + columns[None, :] * stride_od, out, mask=mask)
    tl.store(logsumexp_ptr + rows, row_max + tl.log(total), mask=row_inside)
