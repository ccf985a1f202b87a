"""FlashAttention-2's forward pass for Hopper: tiles travel by TMA, and programs persist.

Shapes
    q, out             (B, H, N_q, D) behind tensor descriptors; float16, bfloat16 or float32
    k, v               (B, H_kv, N_k, D), likewise; query head h reads head h // (H / H_kv)
    logsumexp          (B, H, N_q), contiguous, float32, natural logarithm
    one tile           (BLOCK_Q, BLOCK_D) of queries against (BLOCK_K, BLOCK_D) of keys

The same mathematics as `triton_forward_kernel`, on other hardware: the tensor memory accelerator copies a whole tile
for one instruction of one thread, computes its addresses itself and fills what lies outside of a head's N x D with
zeros; threads are left with the softmax, and registers with the products. There are as many programs as the GPU runs
at once, each takes one tile of queries after the other, so that none waits to be started.

Source: Shah et al. (2024), "FlashAttention-3", section 3.1, for what Hopper wants; tensor descriptors as in Triton's
documentation of `tl.make_tensor_descriptor`.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# Kernel arguments are pointers and tl values: Triton has no types for them.
# ruff: noqa: N803
# Compile-time constants are upper case, as Triton code has them.

import triton
import triton.language as tl

from perflab.lab.attention.triton_forward_kernel import finished, fold
from perflab.lab.attention.triton_pieces import dot, rising, rounded, seen_keys, stretches


@triton.jit
def _attend(
    acc, row_max, row_sum, q, k_desc, v_desc, batch, key_head, queries,
    key_start, key_stop, num_keys, score_factor, softcap_log2, lower, upper,
    HAS_LOWER: tl.constexpr, HAS_UPPER: tl.constexpr, HAS_SOFTCAP: tl.constexpr, FLIPPED: tl.constexpr,
    MAY_SEE_NOTHING: tl.constexpr,
    MASKED: tl.constexpr, EMULATE_BF16: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Fold the keys [key_start, key_stop) into the running softmax."""
    for start in tl.range(key_start, key_stop, BLOCK_K):
        k = k_desc.load([batch, key_head, start, 0]).reshape([BLOCK_K, BLOCK_D])
        products = dot(q, tl.trans(k), tl.zeros([BLOCK_Q, BLOCK_K], tl.float32), EMULATE_BF16)
        raised, factor = rising(products, score_factor, softcap_log2, HAS_SOFTCAP, FLIPPED)
        if MASKED:
            keys = start + tl.arange(0, BLOCK_K)
            seen = seen_keys(queries, keys, num_keys, lower, upper, 0, HAS_LOWER, HAS_UPPER, False)
            raised = tl.where(seen, raised, float("-inf"))
        v = v_desc.load([batch, key_head, start, 0]).reshape([BLOCK_K, BLOCK_D])
        acc, row_max, row_sum = fold(
            acc, row_max, row_sum, raised, factor, v, MASKED and MAY_SEE_NOTHING, EMULATE_BF16
        )  # fmt: skip
    return acc, row_max, row_sum


@triton.jit
def attention_forward_tma_kernel(
    q_desc, k_desc, v_desc, out_desc, logsumexp_ptr,
    num_tiles, num_heads, group, num_queries, num_keys, score_factor, softcap_log2, lower, upper,
    HAS_LOWER: tl.constexpr, HAS_UPPER: tl.constexpr, HAS_SOFTCAP: tl.constexpr, FLIPPED: tl.constexpr,
    MAY_SEE_NOTHING: tl.constexpr,
    EMULATE_BF16: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: every num_programs-th of the num_tiles tiles of queries of all heads."""
    tiles_a_head = tl.cdiv(num_queries, BLOCK_Q)
    for number in tl.range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        if HAS_UPPER and not HAS_LOWER:
            # The last queries see the most keys. Longest first over all heads, short tiles fill the end.
            num_heads_in_all = num_tiles // tiles_a_head
            tile = tiles_a_head - 1 - number // num_heads_in_all
            batch_head = number % num_heads_in_all
        else:
            tile = number % tiles_a_head
            batch_head = number // tiles_a_head
        batch = batch_head // num_heads
        head = batch_head % num_heads
        key_head = head // group
        query_start = tile * BLOCK_Q
        first, whole, cut, stop = stretches(
            query_start, num_keys, lower, upper, HAS_LOWER, HAS_UPPER, BLOCK_Q, BLOCK_K
        )  # fmt: skip

        queries = query_start + tl.arange(0, BLOCK_Q)
        q = q_desc.load([batch, head, query_start, 0]).reshape([BLOCK_Q, BLOCK_D])
        acc = tl.zeros([BLOCK_Q, BLOCK_D], dtype=tl.float32)
        row_max = tl.full([BLOCK_Q], float("-inf"), dtype=tl.float32)
        row_sum = tl.zeros([BLOCK_Q], dtype=tl.float32)
        if HAS_LOWER:
            acc, row_max, row_sum = _attend(
                acc, row_max, row_sum, q, k_desc, v_desc, batch, key_head, queries,
                first, tl.minimum(whole, stop), num_keys, score_factor, softcap_log2, lower, upper,
                HAS_LOWER, HAS_UPPER, HAS_SOFTCAP, FLIPPED, MAY_SEE_NOTHING,
                True, EMULATE_BF16, BLOCK_Q, BLOCK_K, BLOCK_D,
            )  # fmt: skip
        acc, row_max, row_sum = _attend(
            acc, row_max, row_sum, q, k_desc, v_desc, batch, key_head, queries,
            whole, cut, num_keys, score_factor, softcap_log2, lower, upper,
            HAS_LOWER, HAS_UPPER, HAS_SOFTCAP, FLIPPED, MAY_SEE_NOTHING,
            False, EMULATE_BF16, BLOCK_Q, BLOCK_K, BLOCK_D,
        )  # fmt: skip
        acc, row_max, row_sum = _attend(
            acc, row_max, row_sum, q, k_desc, v_desc, batch, key_head, queries,
            cut, stop, num_keys, score_factor, softcap_log2, lower, upper,
            HAS_LOWER, HAS_UPPER, HAS_SOFTCAP, FLIPPED, MAY_SEE_NOTHING,
            True, EMULATE_BF16, BLOCK_Q, BLOCK_K, BLOCK_D,
        )  # fmt: skip

        out, logsumexp = finished(acc, row_max, row_sum, MAY_SEE_NOTHING)
        out = rounded(out, out_desc.dtype, EMULATE_BF16)
        out_desc.store([batch, head, query_start, 0], out.reshape([1, 1, BLOCK_Q, BLOCK_D]))
        ends = logsumexp_ptr + batch_head.to(tl.int64) * num_queries + queries
        tl.store(ends, logsumexp, mask=queries < num_queries)
