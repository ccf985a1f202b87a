"""What a transformer is made of: its dimensions, checked once, and how many parameters they come to.

B batch, T sequence, V vocab_size, d d_model, F d_ff, L num_layers, H num_heads, D = d / H head dimension.

    parameters = 2 V d + L (4 d^2 + 3 d F + 2 d) + d

The two V d are the token embedding and the untied head; a block has four attention projections, three SwiGLU
projections and two norm gains; the last d is the final norm's gain. There are no biases.

Plain data: nothing here builds a tensor. Named configurations are in `sizes.py`, the model is in
`transformer.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from perflab.lab.attention import IMPLEMENTATIONS


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The dimensions of one `TransformerLM`; equal configurations are equal models up to their weights.

    Args:
        vocab_size: number of token ids, V.
        context_length: the longest sequence the model accepts; it sizes the rotary tables, nothing else.
        d_model: width of the residual stream.
        d_ff: width of the SwiGLU hidden layer.
        num_layers: number of blocks.
        num_heads: attention heads; `d_model / num_heads` must be a whole, even number (RoPE turns pairs).
        rope_theta: base of the rotary frequencies (Su et al. 2021, section 3.3 uses 10,000).
        norm_eps: added to the mean square inside RMSNorm's root.
        attention: the implementation that `perflab.lab.attention.attention` runs.

    Raises:
        ValueError: a value is out of range or two do not fit each other; names the value and a remedy.
        TypeError: a dimension is not an integer.
    """

    vocab_size: int = 10_000
    context_length: int = 1024
    d_model: int
    d_ff: int
    num_layers: int
    num_heads: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    attention: str = "sdpa"

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context_length", "d_model", "d_ff", "num_layers", "num_heads"):
            value = getattr(self, name)
            # bool is an int to Python; True heads is a mistake to a person.
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name}={value!r}: wanted an integer, got {type(value).__name__}")
            if value < 1:
                raise ValueError(f"{name}={value}: wanted a positive integer; give {name}=1 or more")
        if self.d_model % self.num_heads:
            raise ValueError(
                f"d_model={self.d_model} does not divide into num_heads={self.num_heads}; give a multiple "
                f"such as d_model={_round_up(self.d_model, 2 * self.num_heads)}, or another num_heads"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"d_model={self.d_model} with num_heads={self.num_heads} gives an odd head dimension "
                f"{self.head_dim}, and RoPE turns pairs; "
                f"give d_model={_round_up(self.d_model, 2 * self.num_heads)}, or another num_heads"
            )
        for name in ("rope_theta", "norm_eps"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}={value!r}: wanted a positive, finite number")
        if self.attention not in IMPLEMENTATIONS:
            raise ValueError(f"attention={self.attention!r}: wanted one of {', '.join(IMPLEMENTATIONS)}")

    @property
    def head_dim(self) -> int:
        """Width of one attention head, D."""
        return self.d_model // self.num_heads


def block_matmul_parameter_count(config: ModelConfig) -> int:
    """Weights of one block that a matrix product reads: attention `4 d^2`, SwiGLU `3 d F`."""
    return 4 * config.d_model**2 + 3 * config.d_model * config.d_ff


def parameter_count(config: ModelConfig) -> int:
    """Trainable parameters of `TransformerLM(config)`, in closed form (this module's equation)."""
    table = config.vocab_size * config.d_model
    block = block_matmul_parameter_count(config) + 2 * config.d_model
    return 2 * table + config.num_layers * block + config.d_model


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
