"""What the Triton attention kernels share: tiles, products, rounding.

Triton's interpreter keeps bfloat16 as 16-bit integers: its dot multiplies those as integers, and its
casts truncate where a GPU rounds to nearest. EMULATE_BF16 does both by hand there.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# Kernel arguments are pointers and tl values: Triton has no types for them.
# ruff: noqa: N803
# Compile-time constants are upper case, as Triton code has them.

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def tile_pointers(ptr, stride_b, stride_h, stride_n, stride_d, batch, head, start, rows, columns):
    """Pointers to the tile (rows, columns) that begins at row `start` (int64) of one head.

    Within the tile offsets are 32 bits: (rows - 1) * stride_n and (columns - 1) * stride_d stay below 2**31.
    """
    corner = ptr + batch * stride_b + head * stride_h + start * stride_n
    return corner + rows[:, None] * stride_n + columns[None, :] * stride_d


@triton.jit
def load_tile(ptrs, row_inside, columns, MASKED: tl.constexpr, PADDED: tl.constexpr, HEAD_DIM: tl.constexpr):
    """A tile of rows; what lies beyond the end or the head dimension reads as zero.

    It must: the weight of such a row is zero, but 0 * NaN is NaN.
    """
    if MASKED:
        inside = row_inside[:, None]
        if PADDED:
            inside &= columns[None, :] < HEAD_DIM
        return tl.load(ptrs, mask=inside, other=0.0)
    elif PADDED:
        return tl.load(ptrs, mask=columns[None, :] < HEAD_DIM, other=0.0)
    else:
        return tl.load(ptrs)


@triton.jit
def dot(a, b, acc, EMULATE_BF16: tl.constexpr):
    """a @ b + acc in float32."""
    if EMULATE_BF16:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    # "ieee": for float32 the default would round both operands to TF32's 10 bits.
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def rounded(x, dtype: tl.constexpr, EMULATE_BF16: tl.constexpr):
    """float32 to dtype, to nearest even."""
    if EMULATE_BF16:
        bits = x.to(tl.uint32, bitcast=True)
        bits += 0x7FFF + ((bits >> 16) & 1)
        x = (bits & 0xFFFF0000).to(tl.float32, bitcast=True)
    return x.to(dtype)
