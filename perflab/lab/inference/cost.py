"""The cost of generating, in closed form: bytes of the cache, bytes that a token reads, and the least time for that.

B sequences, n tokens in each, L layers, K heads of keys and values, D head dimension, b bytes a number, d width, V
vocabulary.

    cache bytes a token          2 L K D b                (int8: 2 L K (D + 4), a float32 scale for each token and head)
    weight bytes a decode step   all matrices and norms once, and B rows of the embedding
    cache bytes a decode step    B min(n, w) times the bytes of a token, with a window of w tokens; with a mixer that
                                 has a state, B times its bytes, whatever n
    time of a decode step        at least (weight bytes + cache bytes) / bandwidth
    time of a prompt             at least operations / rate of matrix products (`models/cost.py` counts them)

A decode step multiplies each weight with B rows, so for small B memory decides, and tokens/s grow with B until reading
the cache costs as much as reading the weights (Pope et al. 2023, section 2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from perflab.lab.inference.quantised import layer_bytes
from perflab.lab.models.block import mixer_flops, mixer_matrices, state_bytes
from perflab.lab.models.config import (
    ModelConfig,
    attention_parameter_count,
    feed_forward_matrices,
    feed_forward_weights_per_token,
    parameter_count,
)
from perflab.lab.models.mixers import kind_of


@dataclass(frozen=True, kw_only=True)
class DecodeCost:
    """The bytes that one decode step of a batch moves, and its FLOPs.

    weight_bytes  weights that are read
    cache_bytes   keys and values that are read, those written are B tokens more; or the state, which is read and
                  written
    flops         operations of the matrix products
    """

    weight_bytes: int
    cache_bytes: int
    flops: int

    @property
    def read_bytes(self) -> int:
        """Bytes read, weights and cache."""
        return self.weight_bytes + self.cache_bytes


def cache_bytes(config: ModelConfig, dtype: torch.dtype, *, batch_size: int, tokens: int) -> int:
    """Bytes of keys and values of so many tokens of B sequences, or of their states, for which tokens do not count."""
    if kind_of(config).has_state:
        return batch_size * state_bytes(config, dtype)
    return batch_size * tokens * cache_bytes_per_token(config, dtype)


def cache_bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes that a cache of keys and values keeps of one token of one sequence; with a state instead, 0."""
    if kind_of(config).has_state:
        return 0
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
    """Return the cost of one decode step of B sequences of `context` tokens each, the new token among them."""
    read = weight_bytes(config, dtype, bits=bits, group_size=group_size)
    if not config.tied_head:
        read -= config.vocab_size * config.d_model * dtype.itemsize
    if config.feed_forward == "moe":  # of the experts, those that B tokens can choose at most
        experts = config.experts
        idle = experts.num_experts - min(experts.num_experts, batch_size * experts.experts_per_token)
        matrices = _matrices_of_experts(config, idle) * config.num_layers
        read -= sum(
            d_in * d_out * dtype.itemsize
            if bits is None
            else layer_bytes(d_in, d_out, bits=bits, group_size=group_size)
            for d_in, d_out in matrices
        )
    rows = batch_size * config.d_model * dtype.itemsize
    if config.positions == "learned":
        read -= (config.context_length - batch_size) * config.d_model * dtype.itemsize
    seen = context if config.window is None else min(context, config.window)
    weights = config.num_layers * feed_forward_weights_per_token(config) + config.vocab_size * config.d_model
    if kind_of(config).has_state:
        mixing = config.num_layers * mixer_flops(config, 1)
    else:
        weights += config.num_layers * attention_parameter_count(config)
        mixing = 4 * config.num_layers * seen * config.d_model
    return DecodeCost(
        weight_bytes=read + rows,
        cache_bytes=cache_bytes(config, cache_dtype or dtype, batch_size=batch_size, tokens=seen),
        flops=batch_size * (2 * weights + mixing),
    )


def _matrices(config: ModelConfig) -> list[tuple[int, int]]:
    """Inputs and outputs of each matrix that can be quantised; a tied head is the embedding, and none."""
    d, f, kv = config.d_model, config.d_ff, config.kv_dim
    mixer = mixer_matrices(config) if kind_of(config).has_state else [(d, d), (d, kv), (d, kv), (d, d)]
    if config.feed_forward == "moe":
        shared = config.experts.shared_experts * config.experts.expert_width(f)
        of_shared = [(d, shared), (d, shared), (shared, d)] if shared else []
        of_routed = _matrices_of_experts(config, config.experts.num_experts)
        feed_forward = [(d, config.experts.num_experts), *of_shared, *of_routed]
    else:
        feed_forward = [(d, f)] * (feed_forward_matrices(config) - 1) + [(f, d)]
    return [*mixer, *feed_forward] * config.num_layers + ([] if config.tied_head else [(d, config.vocab_size)])


def _matrices_of_experts(config: ModelConfig, num_experts: int) -> list[tuple[int, int]]:
    """Inputs and outputs of so many experts' matrices in one layer, those of the same kind side by side."""
    d, width = config.d_model, config.experts.expert_width(config.d_ff)
    return [(d, num_experts * width), (d, num_experts * width), (width, num_experts * d)] if num_experts else []
