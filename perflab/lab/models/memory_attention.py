"""How many bytes an attention variant needs beside q and the output; the letters are those of `memory_terms.py`.

Three kinds of variants: those that write out a number for each pair of tokens, the reference, which does so in float64,
and FlashAttention, which holds tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from perflab.lab.attention import IMPLEMENTATIONS
from perflab.lab.attention.tiled import TILE
from perflab.lab.models.config import ModelConfig

WRITTEN_OUT = ("naive", "sdpa-math")
"""Variants that hold T x T weights in the dtype of their inputs."""
UNFUSED_DROPOUT = ("sdpa",)
"""Variants that do so for dropout, on a CPU at least."""
TILES_GOING_BACK = ("tiled", "triton", "triton-tma")
"""Variants that hold a few tiles of scores at a time, going back."""


@dataclass(frozen=True, kw_only=True)
class VariantMemory:
    """What an attention variant needs, in bytes.

    kv           k and v, as it takes them
    kept         for backward
    drawn        kept besides where it drops
    forward      at hand besides, going forward
    backward     at hand besides, going back
    is_operator  an operator of its own, whose results selective checkpointing keeps
    """

    kv: int
    kept: int
    drawn: int = 0
    forward: int
    backward: int
    is_operator: bool = False


def variant_memory(config: ModelConfig, *, batch_size: int, seq_len: int, a: int, w: int) -> VariantMemory:
    """What `config.attention` needs for inputs of `a` bytes a number, and of `w` bytes where it keeps them wide.

    ValueError for a variant that is for generating alone.
    """
    name, numbers = config.attention, (config, batch_size, seq_len)
    if not IMPLEMENTATIONS[name].trains:
        able = ", ".join(name for name, claims in IMPLEMENTATIONS.items() if claims.trains)
        raise ValueError(
            f"attention={name!r} is for generating, and what a step of training needs with it has no equation; "
            f"give attention= one of {able}"
        )
    if name in WRITTEN_OUT or (name in UNFUSED_DROPOUT and config.attention_dropout):
        return _written_out(*numbers, a)
    if name == "reference":
        return _in_float64(*numbers, a)
    return _fused(*numbers, a, w)


def _written_out(config: ModelConfig, batch_size: int, seq_len: int, a: int) -> VariantMemory:
    """The weights, `B H T^2 a`, and the mask, `T^2`; with dropout what was drawn and the weights that are left."""
    weights = batch_size * config.num_heads * seq_len**2 * a
    return VariantMemory(
        kv=2 * batch_size * seq_len * config.d_model * a,  # repeated for every head
        kept=weights + seq_len**2,
        drawn=2 * weights if config.attention_dropout else 0,
        forward=weights,
        backward=2 * weights,
    )


def _in_float64(config: ModelConfig, batch_size: int, seq_len: int, a: int) -> VariantMemory:
    """Scores and weights, `16 B H T^2`; q, k and v cast, `3 n d (8 - a)` more than they are uncast."""
    scores = batch_size * config.num_heads * seq_len**2
    layer = batch_size * seq_len * config.d_model
    return VariantMemory(
        kv=2 * layer * a,  # repeated for every head
        kept=16 * scores + 3 * layer * (8 - a),
        forward=8 * scores,
        backward=24 * scores,
    )


def _fused(config: ModelConfig, batch_size: int, seq_len: int, a: int, w: int) -> VariantMemory:
    """FlashAttention: keeps the log-sum-exp, `B H T w`, and sums dq wide, `n d w`.

    Of tiles of scores, `B H min(T, TILE)^2 w`, there are five at a time going back; in "tiled" four going forward.
    """
    n, heads, name = batch_size * seq_len, batch_size * config.num_heads, config.attention
    tile = heads * min(seq_len, TILE) ** 2 * w
    return VariantMemory(
        kv=2 * n * config.kv_dim * a,
        kept=heads * seq_len * w,
        forward=4 * tile if name == "tiled" else 0,
        backward=n * config.d_model * w + (5 * tile if name in TILES_GOING_BACK else 0),
        is_operator=name != "tiled",
    )
