"""A decoder-only transformer language model, from tokens to logits, top to bottom.

B batch, T sequence, V vocabulary, d model width, H heads, D = d / H head dimension.

    x = E[tokens]                                               (B, T, d)
    num_layers times, with n = RMSNorm(x) afresh in each line:
        x = x + W_o Attention(RoPE(W_q n), RoPE(W_k n), W_v n)  causal, over H heads
        x = x + W_down (silu(W_gate n) * W_up n)                SwiGLU, d_ff wide inside
    logits = W_head RMSNorm(x)                                  (B, T, V)

No biases, untied head, pre-norm. The dimensions come from `ModelConfig`; how attention is computed is
`perflab.lab.attention`'s business, and what a pass costs is in `cost.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perflab.lab.attention import attention
from perflab.lab.models.config import ModelConfig


class Linear(nn.Linear):
    """`W x` without a bias, drawn from N(0, gain^2 / fan_in), so that variance survives any width.

    LeCun et al. 1998, section 4.6. Attention scores are then of order 1 at every size, `tiny` too; a fixed
    small deviation would leave them near zero, and attention near a plain mean that hides mistakes.
    """

    def __init__(self, fan_in: int, fan_out: int, gain: float = 1.0) -> None:
        self.std = gain * fan_in**-0.5  # ahead of super().__init__, which draws the weight
        super().__init__(fan_in, fan_out, bias=False)

    def reset_parameters(self) -> None:
        """Draw the weight anew from torch's global generator."""
        nn.init.normal_(self.weight, std=self.std)


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * gain` over the last dimension (Zhang & Sennrich 2019, equation 4).

    Computed in float32 at least, returned in the dtype of `x`, any shape (..., d). Written out rather than
    `F.rms_norm`, which is one kernel on CUDA and several on a CPU and saves different tensors on each.
    """

    def __init__(self, d_model: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.empty(d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the gain to 1."""
        nn.init.ones_(self.gain)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d) -> (..., d)."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (normed * self.gain).to(x.dtype)


class RotaryEmbedding(nn.Module):
    """RoPE: position m turns the pair (x_2i, x_2i+1) by m * theta^(-2i / D) (Su et al. 2021, equation 34).

    After it, the product of a query and a key depends on their positions only through the difference. The
    tables `cos` and `sin` are (context_length, D / 2) float32 buffers that no checkpoint carries.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, head_dim: int, context_length: int, theta: float) -> None:
        super().__init__()
        self.head_dim, self.context_length, self.theta = head_dim, context_length, theta
        cos, sin = self._tables(None)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Turn (B, T, H, D) by position along T; same shape and dtype."""
        cos, sin = self.cos[: x.shape[1], None], self.sin[: x.shape[1], None]  # (T, 1, D / 2), for all heads
        even, odd = x.view(*x.shape[:-1], -1, 2).unbind(-1)
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
        return turned.flatten(-2).to(x.dtype)

    def _tables(self, device: torch.device | None) -> tuple[Tensor, Tensor]:
        # In float64: at position 100,000 a float32 angle is already off by 0.004 rad.
        pair = torch.arange(0, self.head_dim, 2, device=device, dtype=torch.float64)
        position = torch.arange(self.context_length, device=device, dtype=torch.float64)
        angle = torch.outer(position, self.theta ** (-pair / self.head_dim))
        return angle.cos().float(), angle.sin().float()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RotaryEmbedding:
        # `.to(bfloat16)` would round the tables, and `to_empty` leave them uninitialised with no checkpoint
        # to restore them; so wherever the module moves, they are made anew there, in float32.
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.cos, self.sin = self._tables(self.cos.device)
        return self


class MultiHeadAttention(nn.Module):
    """Causal self-attention with rotary positions (Vaswani et al. 2017, section 3.2.2)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.impl = config.attention
        # Three projections, not one of width 3 d: attention saves `v` for backward, and as a view into a
        # joint result it would keep the unrotated q and k alive with it.
        self.q = Linear(config.d_model, config.d_model)
        self.k = Linear(config.d_model, config.d_model)
        self.v = Linear(config.d_model, config.d_model)
        self.out = Linear(config.d_model, config.d_model, gain=residual_gain(config))

    def forward(self, x: Tensor, rope: RotaryEmbedding) -> Tensor:
        """(B, T, d) -> (B, T, d)."""
        # `view`, since under a default device (torch.set_default_device) Dynamo cannot trace `unflatten`.
        heads = (*x.shape[:-1], self.num_heads, -1)  # (B, T, H, D)
        q, k, v = self.q(x).view(heads), self.k(x).view(heads), self.v(x).view(heads)
        # Turned before the heads come forward: the result of attention takes the memory order of q, so
        # merging the heads again is a view and not one more copy that backward keeps.
        q, k, v = rope(q).transpose(1, 2), rope(k).transpose(1, 2), v.transpose(1, 2)  # (B, H, T, D)
        mixed = attention(q, k, v, is_causal=True, impl=self.impl)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return out


class SwiGLU(nn.Module):
    """`W_down (silu(W_gate x) * W_up x)` (Shazeer 2020, equation 6)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = Linear(config.d_model, config.d_ff)
        self.up = Linear(config.d_model, config.d_ff)
        self.down = Linear(config.d_ff, config.d_model, gain=residual_gain(config))

    def forward(self, x: Tensor) -> Tensor:
        """(..., d) -> (..., d)."""
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class Block(nn.Module):
    """One pre-norm layer: attention, then SwiGLU, each added to the residual stream (Xiong et al. 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.d_model, config.norm_eps)
        self.attention = MultiHeadAttention(config)
        self.feed_forward_norm = RMSNorm(config.d_model, config.norm_eps)
        self.feed_forward = SwiGLU(config)

    def forward(self, x: Tensor, rope: RotaryEmbedding) -> Tensor:
        """(B, T, d) -> (B, T, d)."""
        x = x + self.attention(self.attention_norm(x), rope)
        x = x + self.feed_forward(self.feed_forward_norm(x))
        return x


class TransformerLM(nn.Module):
    """Tokens to next-token logits.

    Every layer draws its own weights where it is made, from torch's global generator and on the ambient
    device: `torch.manual_seed` before construction decides them, and under `with torch.device("meta")` there
    are shapes only. `build_model` does that for a size given by name.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)  # N(0, 1), torch's default
        self.rope = RotaryEmbedding(config.head_dim, config.context_length, config.rope_theta)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        self.head = Linear(config.d_model, config.vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        """Integer tokens (B, T), T at most `context_length` -> logits (B, T, V).

        Raises:
            ValueError: `tokens` is not (B, T), or longer than the context.
        """
        if tokens.ndim != 2:
            raise ValueError(f"tokens of shape {tuple(tokens.shape)}: wanted (batch, sequence)")
        if tokens.shape[1] > self.config.context_length:
            raise ValueError(
                f"a sequence of {tokens.shape[1]} tokens is longer than context_length="
                f"{self.config.context_length}; build the model with context_length={tokens.shape[1]} or "
                "shorten the batch"
            )
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.rope)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def extra_repr(self) -> str:
        """The configuration, where `print(model)` shows it."""
        return repr(self.config)


def residual_gain(config: ModelConfig) -> float:
    """1 / sqrt(2 L): 2 L layers write to the residual stream, whose variance must not grow with depth.

    Radford et al. 2019, section 2.3.
    """
    return float((2 * config.num_layers) ** -0.5)
