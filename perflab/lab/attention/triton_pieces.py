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
_UNIT = tl.constexpr(0.6931471805599453 / 2)


@triton.jit
def place(number, num_tiles, section):
    """Return the tile and the head (over all batches) of a program.

    `section` heads, which divides the number of heads, come together: first tiles of all of them, then second ones. So
    the short tiles of a causal mask fill the end, and what a section's programs walk over stays in the L2 cache.
    Source: FlashAttention-3's `hopper/tile_scheduler.hpp` (DynamicPersistentTileScheduler, SingleTileBwdLPTScheduler).
    """
    row = number // section
    return row % num_tiles, row // num_tiles * section + number % section


@triton.jit
def tile_pointers(ptr, stride_b, stride_h, stride_n, stride_d, batch, head, start, rows, columns):
    """Pointers to the tile (rows, columns) that begins at row `start` (int64) of one head.

    Within the tile offsets are 32 bits: (rows - 1) * stride_n and (columns - 1) * stride_d stay below 2**31.
    """
    corner = ptr + batch * stride_b + head * stride_h + start * stride_n
    return corner + rows[:, None] * stride_n + columns[None, :] * stride_d


@triton.jit
def offsets_in(stride_n, stride_d, rows, columns):
    """Offsets of the elements of a tile from its first row, 32 bits wide."""
    return rows[:, None] * stride_n + columns[None, :] * stride_d


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
def tanh(y):
    """Hyperbolic tangent of y log(2) / 2 in float32, within 9e-7, and near zero to a few units in the last place.

    1 - 2 / (1 + exp2(y)) loses digits to cancellation near zero: there the Taylor series, whose first neglected term
    is below 1e-8 of the result. PTX has tanh.approx.f32, of 11 bits: too few for float32. The square of a reciprocal
    root is two instructions, and a division six, some for divisors that do not occur here.
    """
    root = tl.rsqrt(1.0 + tl.exp2(y))
    far = 1.0 - 2.0 * (root * root)
    square = y * y
    series = _UNIT**5 * (2.0 / 15.0) - square * (_UNIT**7 * (17.0 / 315.0) - square * (_UNIT**9 * (62.0 / 2835.0)))
    series = _UNIT + square * (square * series - _UNIT**3 / 3.0)
    return tl.where(tl.abs(y) < 0.7, y * series, far)


@triton.jit
def score(products, factor, softcap_log2, HAS_SOFTCAP: tl.constexpr):
    """q k^T (float32) to values and the factor that makes them scores in units of log 2.

    factor is scale log2 e; with a soft cap c, 2 log2(e) scale / c. softcap_log2 is c log2 e.
    """
    if HAS_SOFTCAP:
        return tanh(products * factor), softcap_log2
    else:
        return products, factor


@triton.jit
def rising(products, factor, softcap_log2, HAS_SOFTCAP: tl.constexpr, FLIPPED: tl.constexpr):
    """Values that rise with the scores, and the factor >= 0 that makes them scores (units of log 2).

    The greatest score is then the factor times the greatest of these, and exp2(factor * x - max) is one fused
    multiplication before the exponential. FLIPPED is for negative factors, of which the absolute value is given.
    """
    if FLIPPED:
        return -products, factor
    else:
        return score(products, factor, softcap_log2, HAS_SOFTCAP)


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
def seen_keys(
    queries, keys, num_keys, lower, upper, sinks,
    HAS_LOWER: tl.constexpr, HAS_UPPER: tl.constexpr, HAS_SINKS: tl.constexpr,
):  # fmt: skip
    """Return the mask (queries, keys) of the pairs in the band, without keys behind the last."""
    if HAS_UPPER and not HAS_LOWER:
        # The last key that a query sees is the same in every tile: one comparison for each pair.
        return keys[None, :] <= tl.minimum(queries + upper, num_keys - 1)[:, None]
    else:
        ahead = keys[None, :] - queries[:, None]
        seen = in_band(ahead, lower, upper, HAS_LOWER, HAS_UPPER, keys[None, :], sinks, HAS_SINKS)
        return seen & (keys[None, :] < num_keys)


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
