"""The parts that the recurrent mixers share: heads, the norm of each head, and a form by name.

B batch, T sequence, d model width, H heads, V value width of a head.

A mixer is to a block what attention is, and keeps a state of fixed size where attention keeps all keys and values:

    forward(x)             (B, T, d) -> (B, T, d), causal, from an empty state
    initial_state(...)     the empty state, a tuple of tensors
    advance(x, state)      (B, T, d) behind what the state has seen -> (B, T, d), and the state behind that
"""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perflab.lab.models.config import ModelConfig

State = tuple[Tensor, ...]


class Mixer(nn.Module, ABC):
    """A layer that mixes tokens along the sequence through a state of fixed size."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        # Until ModelConfig has the field, which says how and not what: every form computes the same.
        self.form: str = getattr(config, "mixer_form", "chunked")

    @abstractmethod
    def initial_state(self, batch_size: int, device: torch.device, dtype: torch.dtype) -> State:
        """The state before any token, for activations of that dtype; its size does not depend on T."""

    @abstractmethod
    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, T, d) behind what the state has seen -> (B, T, d), and the new state. T = 1 is decoding."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, d) -> (B, T, d), from an empty state."""
        return self.advance(x, self.initial_state(x.shape[0], x.device, x.dtype))[0]

    def heads(self, x: Tensor) -> Tensor:
        """(B, T, H * D) -> (B, H, T, D)."""
        return x.view(*x.shape[:-1], self.num_heads, -1).transpose(1, 2)


class HeadNorm(nn.Module):
    """Group norm with a group a head (Wu & He 2018): zero mean and unit variance of each head, gain and bias a channel.

    (B, H, T, V) -> (B, T, H * V), in the dtype of x, computed in float32 at least.
    """

    def __init__(self, num_heads: int, head_width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.empty(num_heads * head_width))
        self.bias = nn.Parameter(torch.empty(num_heads * head_width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the gain to 1 and the bias to 0."""
        nn.init.ones_(self.gain)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, T, V) -> (B, T, H * V)."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = F.layer_norm(wide, x.shape[-1:], eps=self.eps).transpose(1, 2).flatten(-2)
        return (normed * self.gain + self.bias).to(x.dtype)


def head_width(total: int, num_heads: int, mixer: str, what: str) -> int:
    """The width of one of `num_heads` heads; ValueError where it is not whole."""
    if total % num_heads:
        raise ValueError(
            f"{mixer} gives its {num_heads} heads {total} channels of {what} together, which is not whole a head; "
            f"choose num_heads that divides {total}"
        )
    return total // num_heads
