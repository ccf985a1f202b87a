"""The cost of mixing at a context of N tokens, for each way to mix: closed forms, exact at a million tokens too.

N tokens, H heads of D numbers, d = H D; w window, s sinks, m block of two levels; E channels of S numbers of state.

    mixing        pairs of query and key                        held while decoding, numbers
    full          N (N + 1) / 2                                 2 N d
    window        w N - w (w - 1) / 2                           2 w d
    sinks         those of the window, and the sinks below it   2 (w + s) d
    pattern       of its blocks, see `pattern`                  2 N d
    two levels    near tokens, and means of far blocks          2 (2 m + N / m) d
    scan          none: 3 multiply-adds a number of state       E S + 3 E, at any N
    hyena         none: transforms of twice the length          2 L d + 6 d for filters of L taps, at any N

A pair costs 4 D operations a head forward: two products.
"""

from dataclasses import dataclass

from perflab.lab.attention.pattern import Pattern
from perflab.lab.attention.scoring import pairs_in_band


@dataclass(frozen=True, slots=True)
class LengthCost:
    """One layer's mixing of one sequence: operations of the whole forward, and what a decoding sequence holds."""

    forward_flops: int
    held_bytes: int


def attention_cost(
    length: int, d_model: int, *, window: int | None = None, sinks: int = 0, bytes_a_number: int = 2
) -> LengthCost:
    """Causal attention, all before it or a window of `window` tokens (itself included) with `sinks` first ones."""
    reach = length if window is None else min(window, length)
    pairs = pairs_in_band(length, length, 1 - reach, 0, sinks)
    held = min(length, reach + sinks)
    return LengthCost(4 * pairs * d_model, 2 * held * d_model * bytes_a_number)


def pattern_cost(pattern: Pattern, d_model: int, *, bytes_a_number: int = 2) -> LengthCost:
    """Block-sparse attention: the pairs that it sees; keys and values are all held, as a later stride may read any."""
    return LengthCost(4 * pattern.pairs() * d_model, 2 * pattern.length * d_model * bytes_a_number)


def hierarchical_pairs(length: int, block: int) -> int:
    """Pairs of two-level attention: tokens of the block itself and the one before, and means of those before these."""
    whole, rest = divmod(length, block)
    own = whole * block * (block + 1) // 2 + rest * (rest + 1) // 2
    before = block * block * max(0, whole - 1) + (rest * block if whole else 0)
    # Queries of block b see b - 1 means: sum over whole blocks, then the rest of block `whole`.
    means = block * (whole - 1) * (whole - 2) // 2 if whole > 1 else 0
    return own + before + means + rest * max(0, whole - 1)


def hierarchical_cost(length: int, d_model: int, block: int, *, bytes_a_number: int = 2) -> LengthCost:
    """Two-level attention. Held: two blocks of tokens, and the means of the others."""
    held = min(length, 2 * block) + max(0, length // block - 2)
    return LengthCost(4 * hierarchical_pairs(length, block) * d_model, 2 * held * d_model * bytes_a_number)


def scan_cost(length: int, channels: int, state_size: int, *, taps: int = 4, bytes_a_number: int = 2) -> LengthCost:
    """The selective scan: 6 operations a number of state and token; a state in float32, and inputs of the taps."""
    held = channels * state_size * 4 + (taps - 1) * channels * bytes_a_number
    return LengthCost(6 * length * channels * state_size, held)


def hyena_cost(length: int, d_model: int, context_length: int, *, bytes_a_number: int = 2) -> LengthCost:
    """Hyena of order 2, without what makes the filters: three real transforms of length n a convolution, and products.

    A complex transform of radix 2 takes 5 n log2 n operations (Van Loan 1992, section 1.4), a real one half of that;
    n / 2 complex products take 6 each.
    """
    taps = min(length, context_length)
    log2_n = (length + taps - 2).bit_length()
    n = 1 << log2_n
    convolution = 3 * (5 * n * log2_n // 2) + 3 * n
    held = 2 * (context_length - 1) * d_model + 2 * 3 * d_model
    return LengthCost(2 * d_model * convolution, held * bytes_a_number)
