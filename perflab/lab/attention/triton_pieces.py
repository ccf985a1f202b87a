"""The parts that the Triton attention kernels share: tiles, products, scores, which tiles are seen, rounding.

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


@triton.jit
def tanh(x):
    """Hyperbolic tangent of float32, to a few units in the last place.

    (1 - e) / (1 + e) with e = exp(-2 |x|) loses digits to cancellation near zero: there the Taylor series, whose first
    neglected term is below 2e-8 of the result. PTX has tanh.approx.f32, of 11 bits: too few for float32.
    """
    e = tl.exp2(tl.abs(x) * (-2.0 * LOG2_E))
    far = (1.0 - e) / (1.0 + e)
    square = x * x
    series = -17.0 / 315.0 + square * (62.0 / 2835.0 - square * (1382.0 / 155925.0))
    series = 1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 + square * series))
    return tl.where(square < 0.35 * 0.35, x * series, tl.where(x < 0, -far, far))


@triton.jit
def score(products, factor, softcap_log2, HAS_SOFTCAP: tl.constexpr):
    """q k^T (float32) to scores in units of log 2: factor is scale log2 e, or with a soft cap c, scale / c.

    softcap_log2 is c log2 e.
    """
    if HAS_SOFTCAP:
        return tanh(products * factor) * softcap_log2
    else:
        return products * factor


@triton.jit
def rising(products, factor, softcap_log2, HAS_SOFTCAP: tl.constexpr, FLIPPED: tl.constexpr):
    """Values that rise with the scores, and the factor >= 0 that makes them scores (units of log 2).

    The greatest score is then the factor times the greatest of these, and exp2(factor * x - max) is one fused
    multiplication before the exponential. FLIPPED is for negative factors, of which the absolute value is given.
    """
    if HAS_SOFTCAP:
        return score(products, factor, softcap_log2, HAS_SOFTCAP), 1.0
    elif FLIPPED:
        return -products, factor
    else:
        return products, factor


@triton.jit
def softcap_slope(scores, softcap_log2):
    """Return the derivative of a soft cap at a score, from the capped score: 1 - tanh^2."""
    capped = scores * (1.0 / softcap_log2)
    return 1.0 - capped * capped


@triton.jit
def in_band(
    ahead, lower, upper, HAS_LOWER: tl.constexpr, HAS_UPPER: tl.constexpr,
    keys=None, sinks=0, HAS_SINKS: tl.constexpr = False,
):  # fmt: skip
    """Return the mask of the pairs in the band lower <= key less query <= upper. Sinks have no lower bound."""
    seen = ahead == ahead
    if HAS_LOWER:
        seen = (ahead >= lower) | (keys < sinks) if HAS_SINKS else seen & (ahead >= lower)
    if HAS_UPPER:
        seen = seen & (ahead <= upper)
    return seen


@triton.jit
def stretches(
    own_start, num_others, lower, upper,
    HAS_LOWER: tl.constexpr, HAS_UPPER: tl.constexpr, BLOCK_OWN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the tiles of BLOCK of num_others that the positions [own_start, own_start + BLOCK_OWN) see.

    Position i sees j if lower <= j - i <= upper. Returns (first, whole, cut, stop): the tiles [first, whole) are cut
    by the lower edge of the band, [whole, cut) are seen whole by every position, and [cut, stop) are cut by the upper
    edge or by the end. `stop` is no multiple of BLOCK. Tiles beyond are seen by nobody, and never visited.
    """
    if HAS_LOWER:
        first = tl.maximum(own_start + lower, 0) // BLOCK * BLOCK
        whole = tl.cdiv(tl.maximum(own_start + BLOCK_OWN - 1 + lower, 0), BLOCK) * BLOCK
    else:
        first = 0
        whole = 0
    if HAS_UPPER:
        stop = tl.minimum(num_others, own_start + BLOCK_OWN + upper)
        seen_by_all = tl.minimum(num_others, tl.maximum(own_start + upper + 1, 0))
    else:
        stop = num_others
        seen_by_all = num_others
    cut = tl.maximum(whole, seen_by_all // BLOCK * BLOCK)
    return first, whole, cut, stop
