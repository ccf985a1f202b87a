"""The selective scan as two Triton kernels: forward, and backward with the states computed again.

Shapes
    x, dt, z, y, dy    (B, T, E), any strides; x, z, y, dy in float32, bfloat16 or float16, dt in that or float32
    a                  (E, N); b, c (B, T, N); d (E,); state (B, E, N); starts (B, T) of uint8
    kept               (B, T / CHUNK, E, N), contiguous float32: the state ahead of each chunk
    d_b, d_c           (E / BLOCK_E, B, T, N), contiguous float32: each program's part of the sum over channels
    d_a, d_d           (B, E, N), (B, E), contiguous float32: each batch's part
    scratch            (programs, CHUNK, BLOCK_E, BLOCK_N), float32: the states of the chunk that the backward is in
    one program        BLOCK_E channels of one sequence, all T positions: their state stays in registers

    forward   r_t = exp(dt_t a)    h_t = r_t h_{t-1} + dt_t b_t x_t    y_t = (c_t h_t + d x_t) silu(z_t)
    backward  g_t = c_t dy_t + r_{t+1} g_{t+1}, from the last position to the first; then
              dx = dt (b g) + d dy         d_dt = x (b g) + sum_n g r h_{t-1} a      d_a = sum_t g r h_{t-1} dt
              d_b = sum_e dt x g           d_c = sum_e dy h                          d_d = sum_t dy x

No tensor of (B, T, E, N) is ever held: the forward keeps the state ahead of each chunk, and the backward computes a
chunk's states again from it (Gu & Dao 2023, section 3.3.2, "recomputation"). Sums over channels and batches are each
program's own, added up afterwards in a fixed order: no atomics, the same bits each time. All is float32 inside. Rows
are reached by 64-bit pointers and offsets: no product of 32 bits spans a tensor (mamba#1015).
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# Kernel arguments are pointers and tl values: Triton has no types for them.
# ruff: noqa: N803
# Compile-time constants are upper case, as Triton code has them.

import triton
import triton.language as tl

from perflab.lab.attention.triton_pieces import rounded


@triton.jit
def _wide(ptrs, inside):
    """Load values in float32; zero outside, where they then leave the state at zero."""
    return tl.load(ptrs, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _decay(dt, a, starts_ptr, HAS_STARTS: tl.constexpr):
    """exp(dt a) (BLOCK_E, BLOCK_N); zero where a sequence begins."""
    decay = tl.exp(dt[:, None] * a)
    if HAS_STARTS:
        decay = tl.where(tl.load(starts_ptr) != 0, 0.0, decay)
    return decay


@triton.jit
def selective_scan_kernel(
    x_ptr, dt_ptr, a_ptr, b_ptr, c_ptr, d_ptr, z_ptr, state_ptr, starts_ptr, y_ptr, kept_ptr, final_ptr,
    stride_xb, stride_xt, stride_xe, stride_tb, stride_tt, stride_te, stride_zb, stride_zt, stride_ze,
    stride_bb, stride_bt, stride_bn, stride_cb, stride_ct, stride_cn,
    stride_ae, stride_an, stride_de, stride_hb, stride_he, stride_hn, stride_sb, stride_st,
    length, channels, states,
    HAS_D: tl.constexpr, HAS_Z: tl.constexpr, HAS_STATE: tl.constexpr, HAS_STARTS: tl.constexpr,
    EMULATE_BF16: tl.constexpr, CHUNK: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One program: y, the states ahead of chunks and the last state, of BLOCK_E channels of one sequence."""
    num_tiles = tl.cdiv(channels, BLOCK_E)
    num_chunks = tl.cdiv(length, CHUNK)
    batch = (tl.program_id(0) // num_tiles).to(tl.int64)
    e = (tl.program_id(0) % num_tiles).to(tl.int64) * BLOCK_E + tl.arange(0, BLOCK_E)
    n = tl.arange(0, BLOCK_N).to(tl.int64)
    in_e, in_n = e < channels, n < states
    inside = in_e[:, None] & in_n[None, :]
    flat = e[:, None] * states + n[None, :]
    a = _wide(a_ptr + e[:, None] * stride_ae + n[None, :] * stride_an, inside)
    h = tl.zeros([BLOCK_E, BLOCK_N], tl.float32)
    if HAS_STATE:
        h = _wide(state_ptr + batch * stride_hb + e[:, None] * stride_he + n[None, :] * stride_hn, inside)
    if HAS_D:
        d = _wide(d_ptr + e * stride_de, in_e)
    x_ptr += batch * stride_xb
    dt_ptr += batch * stride_tb
    b_ptr += batch * stride_bb
    c_ptr += batch * stride_cb
    z_ptr += batch * stride_zb
    starts_ptr += batch * stride_sb
    y_ptr += batch * length * channels
    kept_ptr += batch * num_chunks * channels * states
    for chunk in range(0, num_chunks):
        tl.store(kept_ptr + flat, h, mask=inside)
        kept_ptr += channels.to(tl.int64) * states
        for _ in range(chunk * CHUNK, tl.minimum(length, (chunk + 1) * CHUNK)):
            x, dt = _wide(x_ptr + e * stride_xe, in_e), _wide(dt_ptr + e * stride_te, in_e)
            b, c = _wide(b_ptr + n * stride_bn, in_n), _wide(c_ptr + n * stride_cn, in_n)
            h = _decay(dt, a, starts_ptr, HAS_STARTS) * h + (dt * x)[:, None] * b[None, :]
            y = tl.sum(h * c[None, :], 1)
            if HAS_D:
                y += d * x
            if HAS_Z:
                z = _wide(z_ptr + e * stride_ze, in_e)
                y *= z / (1.0 + tl.exp(-z))
            tl.store(y_ptr + e, rounded(y, y_ptr.dtype.element_ty, EMULATE_BF16), mask=in_e)
            x_ptr += stride_xt
            dt_ptr += stride_tt
            b_ptr += stride_bt
            c_ptr += stride_ct
            z_ptr += stride_zt
            starts_ptr += stride_st
            y_ptr += channels
    tl.store(final_ptr + batch * channels * states + flat, h, mask=inside)


@triton.jit
def selective_scan_backward_kernel(
    x_ptr, dt_ptr, a_ptr, b_ptr, c_ptr, d_ptr, z_ptr, starts_ptr, kept_ptr, scratch_ptr, dy_ptr, d_final_ptr,
    dx_ptr, d_dt_ptr, d_a_ptr, d_b_ptr, d_c_ptr, d_d_ptr, dz_ptr, d_state_ptr,
    stride_xb, stride_xt, stride_xe, stride_tb, stride_tt, stride_te, stride_zb, stride_zt, stride_ze,
    stride_bb, stride_bt, stride_bn, stride_cb, stride_ct, stride_cn, stride_gb, stride_gt, stride_ge,
    stride_ae, stride_an, stride_de, stride_sb, stride_st,
    num_batches, length, channels, states,
    HAS_D: tl.constexpr, HAS_Z: tl.constexpr, HAS_STARTS: tl.constexpr, HAS_D_FINAL: tl.constexpr,
    EMULATE_BF16: tl.constexpr, CHUNK: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One program: the gradients of BLOCK_E channels of one sequence, from its last chunk to its first."""
    num_tiles = tl.cdiv(channels, BLOCK_E)
    num_chunks = tl.cdiv(length, CHUNK)
    batch = (tl.program_id(0) // num_tiles).to(tl.int64)
    tile = (tl.program_id(0) % num_tiles).to(tl.int64)
    e = tile * BLOCK_E + tl.arange(0, BLOCK_E)
    n = tl.arange(0, BLOCK_N).to(tl.int64)
    in_e, in_n = e < channels, n < states
    inside = in_e[:, None] & in_n[None, :]
    flat = e[:, None] * states + n[None, :]
    of_batch = batch * channels * states
    a = _wide(a_ptr + e[:, None] * stride_ae + n[None, :] * stride_an, inside)
    if HAS_D:
        d = _wide(d_ptr + e * stride_de, in_e)
    g = tl.zeros([BLOCK_E, BLOCK_N], tl.float32)
    if HAS_D_FINAL:
        g = _wide(d_final_ptr + of_batch + flat, inside)
    d_a = tl.zeros([BLOCK_E, BLOCK_N], tl.float32)
    d_d = tl.zeros([BLOCK_E], tl.float32)
    scratch_ptr += tl.program_id(0).to(tl.int64) * CHUNK * BLOCK_E * BLOCK_N
    cells = tl.arange(0, BLOCK_E)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    for back in range(0, num_chunks):
        chunk = num_chunks - 1 - back
        first = chunk * CHUNK
        rows = tl.minimum(length - first, CHUNK)
        t = first.to(tl.int64)
        h = _wide(kept_ptr + (batch * num_chunks + chunk) * channels * states + flat, inside)
        for row in range(0, rows):
            x = _wide(x_ptr + batch * stride_xb + (t + row) * stride_xt + e * stride_xe, in_e)
            dt = _wide(dt_ptr + batch * stride_tb + (t + row) * stride_tt + e * stride_te, in_e)
            b = _wide(b_ptr + batch * stride_bb + (t + row) * stride_bt + n * stride_bn, in_n)
            tl.store(scratch_ptr + row * BLOCK_E * BLOCK_N + cells, h)
            decay = _decay(dt, a, starts_ptr + batch * stride_sb + (t + row) * stride_st, HAS_STARTS)
            h = decay * h + (dt * x)[:, None] * b[None, :]
        tl.debug_barrier()  # what one thread stored, another may load
        for later in range(0, rows):
            row = rows - 1 - later
            x = _wide(x_ptr + batch * stride_xb + (t + row) * stride_xt + e * stride_xe, in_e)
            dt = _wide(dt_ptr + batch * stride_tb + (t + row) * stride_tt + e * stride_te, in_e)
            b = _wide(b_ptr + batch * stride_bb + (t + row) * stride_bt + n * stride_bn, in_n)
            c = _wide(c_ptr + batch * stride_cb + (t + row) * stride_ct + n * stride_cn, in_n)
            dy = _wide(dy_ptr + batch * stride_gb + (t + row) * stride_gt + e * stride_ge, in_e)
            before = tl.load(scratch_ptr + row * BLOCK_E * BLOCK_N + cells)
            decay = _decay(dt, a, starts_ptr + batch * stride_sb + (t + row) * stride_st, HAS_STARTS)
            kept = decay * before
            h = kept + (dt * x)[:, None] * b[None, :]
            here = (batch * length + t + row) * channels + e
            if HAS_Z:
                z = _wide(z_ptr + batch * stride_zb + (t + row) * stride_zt + e * stride_ze, in_e)
                sigmoid = 1.0 / (1.0 + tl.exp(-z))
                y = tl.sum(h * c[None, :], 1)
                if HAS_D:
                    y += d * x
                dz = dy * y * sigmoid * (1.0 + z * (1.0 - sigmoid))
                tl.store(dz_ptr + here, rounded(dz, dz_ptr.dtype.element_ty, EMULATE_BF16), mask=in_e)
                dy *= z * sigmoid
            g += dy[:, None] * c[None, :]
            there = ((tile * num_batches + batch) * length + t + row) * states + n
            tl.store(d_c_ptr + there, tl.sum(dy[:, None] * h, 0), mask=in_n)
            tl.store(d_b_ptr + there, tl.sum((dt * x)[:, None] * g, 0), mask=in_n)
            of_input = tl.sum(g * b[None, :], 1)
            of_exponent = g * kept
            dx = dt * of_input
            if HAS_D:
                dx += d * dy
                d_d += dy * x
            d_dt = x * of_input + tl.sum(of_exponent * a, 1)
            d_a += of_exponent * dt[:, None]
            tl.store(dx_ptr + here, rounded(dx, dx_ptr.dtype.element_ty, EMULATE_BF16), mask=in_e)
            tl.store(d_dt_ptr + here, rounded(d_dt, d_dt_ptr.dtype.element_ty, EMULATE_BF16), mask=in_e)
            g *= decay
        tl.debug_barrier()  # the next chunk's states take this one's place
    tl.store(d_a_ptr + of_batch + flat, d_a, mask=inside)
    tl.store(d_state_ptr + of_batch + flat, g, mask=inside)
    if HAS_D:
        tl.store(d_d_ptr + batch * channels + e, d_d, mask=in_e)
