"""What generating costs, in closed form: bytes of the cache, bytes that a token reads, and the least time for that.

B sequences, n tokens in each, L layers, K heads of keys and values, D head dimension, b bytes a number, d width, V
vocabulary.

    cache bytes a token          2 L K D b                (int8: 2 L K (D + 4), a float32 scale for each token and head)
    weight bytes a decode step   all matrices and norms once, and B rows of the embedding
    cache bytes a decode step    B min(n, w) times the bytes of a token, with a window of w tokens
    time of a decode step        at least (weight bytes + cache bytes) / bandwidth
    time of a prompt             at least operations / rate of matrix products (`models/cost.py` counts them)

A decode step multiplies each weight with B rows, so for small B memory decides, and tokens/s grow with B until reading
the cache costs as much as reading the weights (Pope et al. 2023, section 2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from perflab.lab.inference.quantised import layer_bytes
from perflab.lab.models.config import ModelConfig, parameter_count


@dataclass(frozen=True, kw_only=True)
class DecodeCost:
    """What one decode step of a batch moves and computes.

    weight_bytes  weights that are read
    cache_bytes   keys and values that are read; those written are B tokens more
    flops         operations of the matrix products
    """

    weight_bytes: int
    cache_bytes: int
    flops: int

    @property
    def read_bytes(self) -> int:
        """Bytes read, weights and cache."""
        return self.weight_bytes + self.cache_bytes


def cache_bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes that a cache keeps of one token of one sequence."""
    of_a_head = config.head_dim * dtype.itemsize + (4 if dtype == torch.int8 else 0)
    return 2 * config.num_layers * config.kv_heads * of_a_head


def weight_bytes(config: ModelConfig, dtype: torch.dtype, *, bits: int | None = None, group_size: int = 128) -> int:
    """Bytes of the weights: matrices, norms and embedding.

    Args:
        config: the model.
        dtype: of the weights.
        bits: 8 or 4: of the matrices, if they are quantised (`quantised.py`); None: as all others.
        group_size: of 4 bits, weights with one scale.
    """
    parameters, matrices = parameter_count(config), _matrices(config)
    if bits is None:
        return parameters * dtype.itemsize
    kept = parameters - sum(d_in * d_out for d_in, d_out in matrices)
    quantised = sum(layer_bytes(d_in, d_out, bits=bits, group_size=group_size) for d_in, d_out in matrices)
    return kept * dtype.itemsize + quantised


def decode_cost(
    config: ModelConfig,
    *,
    batch_size: int,
    context: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype | None = None,
    bits: int | None = None,
    group_size: int = 128,
) -> DecodeCost:
    """What one decode step of B sequences with `context` tokens each costs; the new token is one of them."""
    embedding = 0 if config.tied_head else config.vocab_size * config.d_model
    read = weight_bytes(config, dtype, bits=bits, group_size=group_size) - embedding * dtype.itemsize
    rows = batch_size * config.d_model * dtype.itemsize
    if config.positions == "learned":
        read -= (config.context_length - batch_size) * config.d_model * dtype.itemsize
    seen = context if config.window is None else min(context, config.window)
    weights = sum(d_in * d_out for d_in, d_out in _matrices(config))
    if config.tied_head:
        weights += config.vocab_size * config.d_model
    attention = 4 * batch_size * config.num_layers * seen * config.d_model
    return DecodeCost(
        weight_bytes=read + rows,
        cache_bytes=batch_size * seen * cache_bytes_per_token(config, cache_dtype or dtype),
        flops=2 * batch_size * weights + attention,
    )


def _matrices(config: ModelConfig) -> list[tuple[int, int]]:
    """Inputs and outputs of each linear layer; a tied head is the embedding, and none."""
    d, f, kv = config.d_model, config.d_ff, config.kv_dim
    block = [(d, d), (d, kv), (d, kv), (d, d), (d, f), (f, d), *([(d, f)] if config.feed_forward == "swiglu" else [])]
    return block * config.num_layers + ([] if config.tied_head else [(d, config.vocab_size)])
