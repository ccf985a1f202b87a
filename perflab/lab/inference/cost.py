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

from perflab.lab.models.config import ModelConfig, norm_vectors, parameter_count


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

    def least_seconds(self, bytes_per_s: float, flops_per_s: float) -> float:
        """Time of the step at least, by the slower of memory and arithmetic."""
        return max(self.read_bytes / bytes_per_s, self.flops / flops_per_s)


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
    parameters = parameter_count(config)
    if bits is None:
        return parameters * dtype.itemsize
    kept, quantised, scales = _split(config, parameters, bits, group_size)
    return kept * dtype.itemsize + quantised * bits // 8 + scales * 4  # scales are float32


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
    norms = config.num_layers * 2 * norm_vectors(config) * config.d_model + norm_vectors(config) * config.d_model
    tables = embedding + (config.context_length * config.d_model if config.positions == "learned" else 0)
    products = 2 * batch_size * (parameter_count(config) - tables - norms)
    attention = 4 * batch_size * config.num_layers * seen * config.d_model
    return DecodeCost(
        weight_bytes=read + rows,
        cache_bytes=batch_size * seen * cache_bytes_per_token(config, cache_dtype or dtype),
        flops=products + attention,
    )


def largest_batch(memory_bytes: int, taken_bytes: int, context: int, bytes_per_token: int, page_size: int = 1) -> int:
    """How many sequences of `context` tokens a cache has room for beside what is taken; whole pages each."""
    pages = -(-context // page_size)
    return max(0, (memory_bytes - taken_bytes) // (pages * page_size * bytes_per_token))


def _split(config: ModelConfig, parameters: int, bits: int, group_size: int) -> tuple[int, int, int]:
    """How many parameters stay as they are, how many are quantised, and how many scales these have."""
    d, f, kv = config.d_model, config.d_ff, config.kv_dim
    # rows x columns of each matrix of a block, and of the head; a tied head is the embedding, and stays.
    block = [(d, d), (kv, d), (kv, d), (d, d), (f, d), (d, f), *([(f, d)] if config.feed_forward == "swiglu" else [])]
    matrices = block * config.num_layers + ([] if config.tied_head else [(config.vocab_size, d)])
    quantised = sum(rows * columns for rows, columns in matrices)
    scales = sum(rows * (1 if bits == 8 else columns // group_size) for rows, columns in matrices)
    return parameters - quantised, quantised, scales
