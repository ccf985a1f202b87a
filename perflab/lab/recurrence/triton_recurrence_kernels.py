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
    """The tile (rows, columns) behind ptr, zero where `inside` (of rows) is false or columns end.

    Within the tile offsets are 32 bits: a chunk's rows times stride_t stay below 2**31.
    """
    mask = inside[:, None] & (columns < WIDTH)[None, :]
    return tl.load(ptr + rows[:, None] * stride_t + columns[None, :] * stride_d, mask=mask, other=0.0)


@triton.jit
def _sums_since(g_ptr, rows, columns, stride_t, stride_d, inside, WIDTH: tl.constexpr):
    """Sums of g from the chunk's start to each row, that row included (rows, columns)."""
    g = _rows(g_ptr, rows, columns, stride_t, stride_d, inside, WIDTH).to(tl.float32)
    return tl.cumsum(g, 0)


@triton.jit
def _sums_after(g_ptr, rows, columns, stride_t, stride_d, num_rows, WIDTH: tl.constexpr):
    """Sums of g behind each of the chunk's num_rows rows, to its end.

    Loaded a row further on, since subtracting a row's own from the sum that includes it would lose digits.
    """
    following = rows + 1 < num_rows
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
    rows = tl.arange(0, BLOCK_T)
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
        first_row = tl.cast(chunk * BLOCK_T, tl.int64)
        num_rows = tl.minimum(length - chunk * BLOCK_T, BLOCK_T)
        inside = rows < num_rows
        x = _rows(x_ptr + first_row * stride_xt, rows, keys, stride_xt, stride_xd, inside, K)
        y = _rows(y_ptr + first_row * stride_yt, rows, values, stride_yt, stride_yd, inside, V)
        g = _rows(g_ptr + first_row * stride_gt, rows, keys, stride_gt, stride_gd, inside, K).to(tl.float32)
        sums = tl.cumsum(g, 0)
        if not BACKWARD:
            sums = _sums_after(g_ptr + first_row * stride_gt, rows, keys, stride_gt, stride_gd, num_rows, K)
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
    first_row = chunk * BLOCK_T
    q_ptr += batch * stride_qb + head * stride_qh + first_row * stride_qt
    k_ptr += batch * stride_kb + head * stride_kh + first_row * stride_kt
    y_ptr += batch * stride_yb + head * stride_yh + first_row * stride_yt
    g_ptr += batch * stride_gb + head * stride_gh + first_row * stride_gt
    values = tl.program_id(0) % tiles_v * BLOCK_V + tl.arange(0, BLOCK_V)
    rows = tl.arange(0, BLOCK_T)
    num_rows = tl.minimum(length - first_row, BLOCK_T).to(tl.int32)
    inside = rows < num_rows
    scores = tl.zeros([BLOCK_T, BLOCK_T], tl.float32)
    for first_key in range(0, K, BLOCK_K):
        keys = first_key + tl.arange(0, BLOCK_K)
        q = _rows(q_ptr, rows, keys, stride_qt, stride_qd, inside, K).to(tl.float32)
        between = tl.zeros([BLOCK_T, BLOCK_K], tl.float32)
        for distance in range(BLOCK_T):
            earlier = inside & (rows >= distance)
            k = _rows(k_ptr, rows - distance, keys, stride_kt, stride_kd, earlier, K).to(tl.float32)
            score = tl.sum(q * tl.exp(between) * k, 1)
            scores += tl.where(rows[None, :] == rows[:, None] - distance, score[:, None], 0.0)
            between += _rows(g_ptr, rows - distance, keys, stride_gt, stride_gd, earlier, K).to(tl.float32)
    y = _rows(y_ptr, rows, values, stride_yt, stride_yd, inside, V)
    scores = rounded(scores, y.dtype, EMULATE_BF16)
    if BACKWARD:
        scores = tl.trans(scores)
    result = dot(scores, y, tl.zeros([BLOCK_T, BLOCK_V], tl.float32), EMULATE_BF16)
    for first_key in range(0, K, BLOCK_K):
        keys = first_key + tl.arange(0, BLOCK_K)
        place, mask = _states_tile(batch_head, chunk, num_chunks, keys, values, K, V)
        state = rounded(tl.load(states_ptr + place, mask=mask, other=0.0), y.dtype, EMULATE_BF16)
        if BACKWARD:
            far = _rows(k_ptr, rows, keys, stride_kt, stride_kd, inside, K).to(tl.float32)
            far *= tl.exp(_sums_after(g_ptr, rows, keys, stride_gt, stride_gd, num_rows, K))
        else:
            far = _rows(q_ptr, rows, keys, stride_qt, stride_qd, inside, K).to(tl.float32)
            far *= tl.exp(_sums_since(g_ptr, rows, keys, stride_gt, stride_gd, inside, K))
        result = dot(rounded(far, y.dtype, EMULATE_BF16), state, result, EMULATE_BF16)
    result = rounded(result, result_ptr.dtype.element_ty, EMULATE_BF16)
    result_ptr += (batch_head * length + first_row) * V
    mask = inside[:, None] & (values < V)[None, :]
    tl.store(result_ptr + rows[:, None] * V + values[None, :], result, mask=mask)


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
    first_row = chunk * BLOCK_T
    q_ptr += batch * stride_qb + head * stride_qh + first_row * stride_qt
    k_ptr += batch * stride_kb + head * stride_kh + first_row * stride_kt
    v_ptr += batch * stride_vb + head * stride_vh + first_row * stride_vt
    d_out_ptr += batch * stride_ob + head * stride_oh + first_row * stride_ot
    g_ptr += batch * stride_gb + head * stride_gh + first_row * stride_gt
    keys = tl.program_id(0) % tiles_k * BLOCK_K + tl.arange(0, BLOCK_K)
    rows = tl.arange(0, BLOCK_T)
    num_rows = tl.minimum(length - first_row, BLOCK_T).to(tl.int32)
    inside = rows < num_rows
    offsets = rows[:, None] * K + keys[None, :]
    mask = inside[:, None] & (keys < K)[None, :]
    first = (batch_head * length + first_row) * K

    d_scores = tl.zeros([BLOCK_T, BLOCK_T], tl.float32)
    for first_value in range(0, V, BLOCK_V):
        values = first_value + tl.arange(0, BLOCK_V)
        v = _rows(v_ptr, rows, values, stride_vt, stride_vd, inside, V)
        d_out = _rows(d_out_ptr, rows, values, stride_ot, stride_od, inside, V)
        d_scores = dot(d_out, tl.trans(v), d_scores, EMULATE_BF16)
    itself = tl.sum(tl.where(rows[None, :] == rows[:, None], d_scores, 0.0), 1)[:, None]

    # dq: of earlier keys in the chunk, of the state that enters, of the token itself.
    between = tl.zeros([BLOCK_T, BLOCK_K], tl.float32)  # the exponent from i - distance to i
    of_pairs = tl.zeros([BLOCK_T, BLOCK_K], tl.float32)
    for distance in range(1, BLOCK_T):
        last = inside & (rows >= distance - 1)
        between += _rows(g_ptr, rows - (distance - 1), keys, stride_gt, stride_gd, last, K).to(tl.float32)
        other = _rows(k_ptr, rows - distance, keys, stride_kt, stride_kd, inside & (rows >= distance), K)
        pairs = tl.sum(tl.where(rows[None, :] == rows[:, None] - distance, d_scores, 0.0), 1)
        of_pairs += pairs[:, None] * tl.exp(between) * other.to(tl.float32)
    of_state = tl.zeros([BLOCK_T, BLOCK_K], tl.float32)
    passing = tl.zeros([BLOCK_K], tl.float32)
    for first_value in range(0, V, BLOCK_V):
        values = first_value + tl.arange(0, BLOCK_V)
        d_out = _rows(d_out_ptr, rows, values, stride_ot, stride_od, inside, V)
        place, state_mask = _states_tile(batch_head, chunk, num_chunks, keys, values, K, V)
        entering = tl.load(entering_ptr + place, mask=state_mask, other=0.0)
        passing += tl.sum(entering * tl.load(leaving_ptr + place, mask=state_mask, other=0.0), 1)
        of_state = dot(d_out, tl.trans(rounded(entering, d_out.dtype, EMULATE_BF16)), of_state, EMULATE_BF16)
    of_state *= tl.exp(_sums_since(g_ptr, rows, keys, stride_gt, stride_gd, inside, K))
    q = _rows(q_ptr, rows, keys, stride_qt, stride_qd, inside, K).to(tl.float32)
    k = _rows(k_ptr, rows, keys, stride_kt, stride_kd, inside, K).to(tl.float32)
    dq = rounded(of_pairs + of_state + itself * k, dq_ptr.dtype.element_ty, EMULATE_BF16)
    tl.store(dq_ptr + first + offsets, dq, mask=mask)
    from_here = q * (of_pairs + of_state)

    # dk: of later queries in the chunk, of the state that leaves, of the token itself.
    between = tl.zeros([BLOCK_T, BLOCK_K], tl.float32)  # the exponent from j to j + distance
    of_pairs = tl.zeros([BLOCK_T, BLOCK_K], tl.float32)
    for distance in range(1, BLOCK_T):
        later = rows + distance < num_rows
        between += _rows(g_ptr, rows + distance, keys, stride_gt, stride_gd, later, K).to(tl.float32)
        other = _rows(q_ptr, rows + distance, keys, stride_qt, stride_qd, later, K)
        pairs = tl.sum(tl.where(rows[None, :] == rows[:, None] - distance, d_scores, 0.0), 0)
        of_pairs += pairs[:, None] * tl.exp(between) * other.to(tl.float32)
    of_state = tl.zeros([BLOCK_T, BLOCK_K], tl.float32)
    before = tl.zeros([BLOCK_T, BLOCK_K], tl.float32)  # of_state, a row further on
    for first_value in range(0, V, BLOCK_V):
        values = first_value + tl.arange(0, BLOCK_V)
        v_before = _rows(v_ptr, rows - 1, values, stride_vt, stride_vd, inside & (rows > 0), V)
        v = _rows(v_ptr, rows, values, stride_vt, stride_vd, inside, V)
        place, state_mask = _states_tile(batch_head, chunk, num_chunks, keys, values, K, V)
        leaving = tl.load(leaving_ptr + place, mask=state_mask, other=0.0)
        leaving = tl.trans(rounded(leaving, v.dtype, EMULATE_BF16))
        of_state = dot(v, leaving, of_state, EMULATE_BF16)
        before = dot(v_before, leaving, before, EMULATE_BF16)
    of_state *= tl.exp(_sums_after(g_ptr, rows, keys, stride_gt, stride_gd, num_rows, K))
    q = _rows(q_ptr, rows, keys, stride_qt, stride_qd, inside, K).to(tl.float32)
    k = _rows(k_ptr, rows, keys, stride_kt, stride_kd, inside, K).to(tl.float32)
    dk = rounded(of_pairs + of_state + itself * q, dk_ptr.dtype.element_ty, EMULATE_BF16)
    tl.store(dk_ptr + first + offsets, dk, mask=mask)
    from_here -= k * of_pairs

    g = _rows(g_ptr, rows, keys, stride_gt, stride_gd, inside, K).to(tl.float32)
    dg = tl.cumsum(from_here, 0, reverse=True) + (passing * tl.exp(tl.sum(g, 0)))[None, :]
    # Of keys before t alone. To subtract t's own from a sum that includes it would leave its rounding, and strong decay
    # makes what is before it far smaller.
    k_before = _rows(k_ptr, rows - 1, keys, stride_kt, stride_kd, inside & (rows > 0), K).to(tl.float32)
    dg += tl.cumsum(k_before * before * tl.exp(tl.cumsum(g, 0, reverse=True)), 0)
    tl.store(dg_ptr + first + offsets, dg, mask=mask)
