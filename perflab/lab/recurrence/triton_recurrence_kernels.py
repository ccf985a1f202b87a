"""The Triton kernels of the gated linear recurrence: three, two of which run either way through time.

Shapes
    q, k, log_decay g, dq, dk, dg  (B, H, T, K); the first three with any strides, a stride of 0 too
    v, d_out, out, dv              (B, H, T, V)
    entering, leaving              (B, H, N, K, V), contiguous float32: the state that enters each chunk of C tokens,
                                   and the gradient of the state that leaves it
    one program                    a chunk of C = BLOCK_T tokens of one head; in `states` all chunks, one by one

Within a chunk, since_i is the sum of g from its start to i, and after_j that behind j to its end:

    states, forward    S' = exp(since_C) S + (k exp(after))^T v
    states, backward   D  = exp(since_C) D' + (q exp(since))^T do            D, D' gradients of S, S'
    values, forward    out_i = (q_i exp(since_i)) S + sum_{j <= i} s_ij v_j
    values, backward   dv_j = (k_j exp(after_j)) D' + sum_{i >= j} s_ij do_i
    gradients          dq_i = exp(since_i) do_i S^T + sum_{j <= i} do_i.v_j e_ij k_j,  and dk_j likewise
    with               s_ij = sum over channels of q_i k_j e_ij,  e_ij = exp(g_{j+1} + ... + g_i)

Yang et al. (2024), "Gated Linear Attention", section 4 and appendix C. Theirs takes e_ij apart into factors; here pairs
are visited by their distance i - j, and the exponent grows by one g at each step: no exponent is above zero, and no sum
is subtracted from another. The pairs' products with v are products of matrices; sums are float32.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# Kernel arguments are pointers and tl values: Triton has no types for them.
# ruff: noqa: N803
# Compile-time constants are upper case, as Triton code has them.

import triton
import triton.language as tl

from perflab.lab.attention.triton_pieces import dot, rounded


@triton.jit
def _rows(ptr, rows, columns, stride_t, stride_d, inside, WIDTH: tl.constexpr):
    """The tile (rows, columns) of one head, zero where `inside` (of rows) is false or columns end. 64-bit rows."""
    mask = inside[:, None] & (columns < WIDTH)[None, :]
    return tl.load(ptr + rows[:, None] * stride_t + columns[None, :] * stride_d, mask=mask, other=0.0)


@triton.jit
def _sums_since(g_ptr, rows, columns, stride_t, stride_d, inside, WIDTH: tl.constexpr):
    """Sums of g from the chunk's start to each row, that row included (rows, columns)."""
    g = _rows(g_ptr, rows, columns, stride_t, stride_d, inside, WIDTH).to(tl.float32)
    return tl.cumsum(g, 0)


@triton.jit
def _sums_after(g_ptr, rows, columns, stride_t, stride_d, length, WIDTH: tl.constexpr, BLOCK_T: tl.constexpr):
    """Sums of g behind each row, to the chunk's end.

    Loaded a row further on, since subtracting a row's own from the sum that includes it would lose digits.
    """
    following = (tl.arange(0, BLOCK_T) < BLOCK_T - 1) & (rows + 1 < length)
    g = _rows(g_ptr, rows + 1, columns, stride_t, stride_d, following, WIDTH).to(tl.float32)
    return tl.cumsum(g, 0, reverse=True)


@triton.jit
def _states_tile(batch_head, chunk, num_chunks, keys, values, K: tl.constexpr, V: tl.constexpr):
    """Offsets (64 bit: all states together may pass 2**31 elements) and mask of a tile of one chunk's state."""
    first = (batch_head * num_chunks + chunk) * K * V
    mask = (keys < K)[:, None] & (values < V)[None, :]
    return first + keys[:, None] * V + values[None, :], mask


@triton.jit
def recurrence_states_kernel(
    x_ptr, y_ptr, g_ptr, first_ptr, states_ptr, last_ptr,
    stride_xb, stride_xh, stride_xt, stride_xd,
    stride_yb, stride_yh, stride_yt, stride_yd,
    stride_gb, stride_gh, stride_gt, stride_gd,
    num_heads, length,
    BACKWARD: tl.constexpr, HAS_FIRST: tl.constexpr, EMULATE_BF16: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One program: a (BLOCK_K, BLOCK_V) tile of one head's state, through all chunks; each tile goes its own way.

    Forward x is k, y is v, and states are those that enter. Backward x is q, y is d_out, chunks come last to first, and
    states are the gradients of those that leave.
    """
    tiles_v: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    tiles: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K * tiles_v
    tile = tl.program_id(0) % tiles
    batch_head = (tl.program_id(0) // tiles).to(tl.int64)
    batch, head = batch_head // num_heads, batch_head % num_heads
    x_ptr += batch * stride_xb + head * stride_xh
    y_ptr += batch * stride_yb + head * stride_yh
    g_ptr += batch * stride_gb + head * stride_gh
    keys = tile // tiles_v * BLOCK_K + tl.arange(0, BLOCK_K)
    values = tile % tiles_v * BLOCK_V + tl.arange(0, BLOCK_V)
    num_chunks = tl.cdiv(length, BLOCK_T)
    own, mask = _states_tile(batch_head, 0, 1, keys, values, K, V)
    state = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    if HAS_FIRST:
        state += tl.load(first_ptr + own, mask=mask, other=0.0)
    for step in range(num_chunks):
        chunk = step
        if BACKWARD:
            chunk = num_chunks - 1 - step
        place, _ = _states_tile(batch_head, chunk, num_chunks, keys, values, K, V)
        tl.store(states_ptr + place, state, mask=mask)
        rows = chunk * BLOCK_T + tl.arange(0, BLOCK_T).to(tl.int64)
        inside = rows < length
        x = _rows(x_ptr, rows, keys, stride_xt, stride_xd, inside, K)
        y = _rows(y_ptr, rows, values, stride_yt, stride_yd, inside, V)
        g = _rows(g_ptr, rows, keys, stride_gt, stride_gd, inside, K).to(tl.float32)
        sums = tl.cumsum(g, 0)
        if not BACKWARD:
            sums = _sums_after(g_ptr, rows, keys, stride_gt, stride_gd, length, K, BLOCK_T)
        kept = tl.exp(tl.sum(g, 0))
        x = rounded(x.to(tl.float32) * tl.exp(sums), y.dtype, EMULATE_BF16)
        state = dot(tl.trans(x), y, state * kept[:, None], EMULATE_BF16)
    tl.store(last_ptr + own, state, mask=mask)


@triton.jit
def recurrence_values_kernel(
    q_ptr, k_ptr, y_ptr, g_ptr, states_ptr, result_ptr,
    stride_qb, stride_qh, stride_qt, stride_qd,
    stride_kb, stride_kh, stride_kt, stride_kd,
    stride_yb, stride_yh, stride_yt, stride_yd,
    stride_gb, stride_gh, stride_gt, stride_gd,
    num_heads, length,
    BACKWARD: tl.constexpr, EMULATE_BF16: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_V columns of a chunk's result. Forward y is v, result out; backward y is d_out, result dv."""
    tiles_v: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    num_chunks = tl.cdiv(length, BLOCK_T)
    chunk = (tl.program_id(0) // tiles_v % num_chunks).to(tl.int64)
    batch_head = (tl.program_id(0) // tiles_v // num_chunks).to(tl.int64)
    batch, head = batch_head // num_heads, batch_head % num_heads
    q_ptr += batch * stride_qb + head * stride_qh
    k_ptr += batch * stride_kb + head * stride_kh
    y_ptr += batch * stride_yb + head * stride_yh
    g_ptr += batch * stride_gb + head * stride_gh
    values = tl.program_id(0) % tiles_v * BLOCK_V + tl.arange(0, BLOCK_V)
    local = tl.arange(0, BLOCK_T)
    rows = chunk * BLOCK_T + local
    inside = rows < length
    y = _rows(y_ptr, rows, values, stride_yt, stride_yd, inside, V)
    result = tl.zeros([BLOCK_T, BLOCK_V], tl.float32)
    scores = tl.zeros([BLOCK_T, BLOCK_T], tl.float32)
    for first_key in range(0, K, BLOCK_K):
        keys = first_key + tl.arange(0, BLOCK_K)
        q = _rows(q_ptr, rows, keys, stride_qt, stride_qd, inside, K).to(tl.float32)
        place, mask = _states_tile(batch_head, chunk, num_chunks, keys, values, K, V)
        state = rounded(tl.load(states_ptr + place, mask=mask, other=0.0), y.dtype, EMULATE_BF16)
        if BACKWARD:
            k = _rows(k_ptr, rows, keys, stride_kt, stride_kd, inside, K).to(tl.float32)
            far = k * tl.exp(_sums_after(g_ptr, rows, keys, stride_gt, stride_gd, length, K, BLOCK_T))
        else:
            far = q * tl.exp(_sums_since(g_ptr, rows, keys, stride_gt, stride_gd, inside, K))
        result = dot(rounded(far, y.dtype, EMULATE_BF16), state, result, EMULATE_BF16)
        between = tl.zeros([BLOCK_T, BLOCK_K], tl.float32)
        for distance in range(BLOCK_T):
            earlier = inside & (local >= distance)
            k = _rows(k_ptr, rows - distance, keys, stride_kt, stride_kd, earlier, K).to(tl.float32)
            score = tl.sum(q * tl.exp(between) * k, 1)
            scores += tl.where(local[None, :] == local[:, None] - distance, score[:, None], 0.0)
            between += _rows(g_ptr, rows - distance, keys, stride_gt, stride_gd, earlier, K).to(tl.float32)
    scores = rounded(scores, y.dtype, EMULATE_BF16)
    if BACKWARD:
        scores = tl.trans(scores)
    result = rounded(dot(scores, y, result, EMULATE_BF16), result_ptr.dtype.element_ty, EMULATE_BF16)
    result_ptr += batch_head * length * V
    tl.store(
        result_ptr + rows[:, None] * V + values[None, :], result, mask=inside[:, None] & (values < V)[None, :]
    )  # fmt: skip


@triton.jit
def recurrence_gradients_kernel(
    q_ptr, k_ptr, v_ptr, d_out_ptr, g_ptr, entering_ptr, leaving_ptr, dq_ptr, dk_ptr, dg_ptr,
    stride_qb, stride_qh, stride_qt, stride_qd,
    stride_kb, stride_kh, stride_kt, stride_kd,
    stride_vb, stride_vh, stride_vt, stride_vd,
    stride_ob, stride_oh, stride_ot, stride_od,
    stride_gb, stride_gh, stride_gt, stride_gd,
    num_heads, length,
    EMULATE_BF16: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_K columns of a chunk's dq, dk and dg.

    g_t stands in every exponent from before t to t or behind it: of pairs in the chunk, of a state that enters and is
    read from t on, of a key before t and the state that leaves, and of one state and the other. Summed over the pairs
    in the chunk it is q dq less k dk from t on, in which pairs behind t cancel; the others are summed as they are.
    """
    tiles_k: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    num_chunks = tl.cdiv(length, BLOCK_T)
    chunk = (tl.program_id(0) // tiles_k % num_chunks).to(tl.int64)
    batch_head = (tl.program_id(0) // tiles_k // num_chunks).to(tl.int64)
    batch, head = batch_head // num_heads, batch_head % num_heads
    q_ptr += batch * stride_qb + head * stride_qh
    k_ptr += batch * stride_kb + head * stride_kh
    v_ptr += batch * stride_vb + head * stride_vh
    d_out_ptr += batch * stride_ob + head * stride_oh
    g_ptr += batch * stride_gb + head * stride_gh
    keys = tl.program_id(0) % tiles_k * BLOCK_K + tl.arange(0, BLOCK_K)
    local = tl.arange(0, BLOCK_T)
    rows = chunk * BLOCK_T + local
    inside = rows < length

    dq = tl.zeros([BLOCK_T, BLOCK_K], tl.float32)
    dk = tl.zeros([BLOCK_T, BLOCK_K], tl.float32)
    passing = tl.zeros([BLOCK_K], tl.float32)
    d_scores = tl.zeros([BLOCK_T, BLOCK_T], tl.float32)
    for first_value in range(0, V, BLOCK_V):
        values = first_value + tl.arange(0, BLOCK_V)
        v = _rows(v_ptr, rows, values, stride_vt, stride_vd, inside, V)
        d_out = _rows(d_out_ptr, rows, values, stride_ot, stride_od, inside, V)
        place, mask = _states_tile(batch_head, chunk, num_chunks, keys, values, K, V)
        entering = tl.load(entering_ptr + place, mask=mask, other=0.0)
        leaving = tl.load(leaving_ptr + place, mask=mask, other=0.0)
        passing += tl.sum(entering * leaving, 1)
        dq = dot(d_out, tl.trans(rounded(entering, v.dtype, EMULATE_BF16)), dq, EMULATE_BF16)
        dk = dot(v, tl.trans(rounded(leaving, v.dtype, EMULATE_BF16)), dk, EMULATE_BF16)
        d_scores = dot(d_out, tl.trans(v), d_scores, EMULATE_BF16)
    since = _sums_since(g_ptr, rows, keys, stride_gt, stride_gd, inside, K)
    after = _sums_after(g_ptr, rows, keys, stride_gt, stride_gd, length, K, BLOCK_T)
    kept = tl.exp(tl.sum(_rows(g_ptr, rows, keys, stride_gt, stride_gd, inside, K).to(tl.float32), 0))
    q = _rows(q_ptr, rows, keys, stride_qt, stride_qd, inside, K).to(tl.float32)
    k = _rows(k_ptr, rows, keys, stride_kt, stride_kd, inside, K).to(tl.float32)
    dq *= tl.exp(since)
    dk *= tl.exp(after)
    read, written = q * dq, k * dk  # by states; what follows is of pairs

    to_past = tl.zeros([BLOCK_T, BLOCK_K], tl.float32)
    to_future = tl.zeros([BLOCK_T, BLOCK_K], tl.float32)
    dq_pairs = tl.zeros([BLOCK_T, BLOCK_K], tl.float32)
    dk_pairs = tl.zeros([BLOCK_T, BLOCK_K], tl.float32)
    for distance in range(1, BLOCK_T):
        # The exponent from i - distance to i, and from j to j + distance.
        previous = inside & (local >= distance - 1)
        earlier = inside & (local >= distance)
        later = (local + distance < BLOCK_T) & (rows + distance < length)
        to_past += _rows(g_ptr, rows - (distance - 1), keys, stride_gt, stride_gd, previous, K).to(tl.float32)
        to_future += _rows(g_ptr, rows + distance, keys, stride_gt, stride_gd, later, K).to(tl.float32)
        other_k = _rows(k_ptr, rows - distance, keys, stride_kt, stride_kd, earlier, K).to(tl.float32)
        other_q = _rows(q_ptr, rows + distance, keys, stride_qt, stride_qd, later, K).to(tl.float32)
        pairs = tl.where(local[None, :] == local[:, None] - distance, d_scores, 0.0)
        dq_pairs += tl.sum(pairs, 1)[:, None] * tl.exp(to_past) * other_k
        dk_pairs += tl.sum(pairs, 0)[:, None] * tl.exp(to_future) * other_q

    from_here = (local[:, None] <= local[None, :]).to(tl.float32)
    before = (local[:, None] > local[None, :]).to(tl.float32)
    dg = tl.zeros([BLOCK_T, BLOCK_K], tl.float32) + (passing * kept)[None, :]
    dg = dot(from_here, q * dq_pairs - k * dk_pairs + read, dg, EMULATE_BF16)
    dg = dot(before, written, dg, EMULATE_BF16)
    itself = tl.sum(tl.where(local[None, :] == local[:, None], d_scores, 0.0), 1)[:, None]
    dq += dq_pairs + itself * k
    dk += dk_pairs + itself * q

    offsets = batch_head * length * K + rows[:, None] * K + keys[None, :]
    mask = inside[:, None] & (keys < K)[None, :]
    tl.store(dq_ptr + offsets, rounded(dq, dq_ptr.dtype.element_ty, EMULATE_BF16), mask=mask)
    tl.store(dk_ptr + offsets, rounded(dk, dk_ptr.dtype.element_ty, EMULATE_BF16), mask=mask)
    tl.store(dg_ptr + offsets, dg, mask=mask)
