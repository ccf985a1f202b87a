"""A decoder-only transformer language model, from tokens to logits, top to bottom.

B batch, T sequence, V vocabulary, d model width, H heads, K heads of keys and values, D = d / H head dimension.

    x = E[tokens]                                               (B, T, d)
    num_layers times, with n = Norm(x) afresh in each line:
        x = x + W_o Attention(RoPE(W_q n), RoPE(W_k n), W_v n)  causal, over H heads; or another mixer
        x = x + FeedForward(n)                                  d_ff wide inside; or experts
    logits = W_head Norm(x)                                     (B, T, V)

`ModelConfig` says what Norm and FeedForward are, whether positions come by RoPE or by a table added to E[tokens],
how many heads keys and values have, how far attention looks back, and what is dropped in training. No matrix has a
bias; pre-norm. How attention is computed is `perflab.lab.attention`'s business, which other mixers and feed-forwards
there are stands in `mixers.py`, what of a block is kept for backward in `recompute.py`, what a pass costs in `cost.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perflab.lab import kernels
from perflab.lab.attention import attention
from perflab.lab.attention.scoring import Settings
from perflab.lab.models.config import ModelConfig, check_cache
from perflab.lab.models.mixers import StateMixer, kind_of, make_feed_forward, make_mixer
from perflab.lab.models.recompute import check_checkpointing, run_block
from perflab.lab.models.rope_scaling import NO_SCALING, RopeScaling, rope_frequencies, rope_temperature


class Cache(Protocol):
    """A model's memory of the tokens before the new ones; `perflab.lab.inference` has several."""

    @property
    def config(self) -> ModelConfig:
        """The model that fills it."""

    @property
    def positions(self) -> Tensor:
        """(B, T) positions of the new tokens."""


class KeyCache(Cache, Protocol):
    """Keys and values of tokens before these, for attention."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of the new tokens, (B, H, T, D), over those before and themselves."""


class StateCache(Cache, Protocol):
    """A mixer's state, which stands for the tokens before the new ones."""

    def advance(self, layer: int, mixer: StateMixer, x: Tensor) -> Tensor:
        """The mixer's outputs (B, T, d) for x (B, T, d), behind the layer's state, which moves on."""


Angles = tuple[Tensor, Tensor]  # cosines and sines of what RoPE turns by
C = TypeVar("C", bound=Cache)


class Cached(NamedTuple, Generic[C]):
    """The cache as a layer sees it. `angles`: of the new tokens, without RoPE None; the same in all layers."""

    cache: C
    layer: int
    angles: Angles | None


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


class Embedding(nn.Embedding):
    """A table of rows, drawn from N(0, std^2)."""

    def __init__(self, num_rows: int, width: int, std: float = 1.0) -> None:
        self.std = std  # ahead of super().__init__, which draws the weight
        super().__init__(num_rows, width)

    def reset_parameters(self) -> None:
        """Draw the weight anew from torch's global generator."""
        nn.init.normal_(self.weight, std=self.std)


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * gain` over the last dimension (Zhang & Sennrich 2019, equation 4).

    Computed in float32 at least, returned in the dtype of `x`, any shape (..., d). Written out rather than
    `F.rms_norm`, which is one kernel on CUDA and several on a CPU and saves different tensors on each; or, if
    `fused`, by the lab's own kernel.
    """

    def __init__(self, d_model: int, eps: float, fused: bool = False) -> None:
        super().__init__()
        self.eps = eps
        # Looked up here: where Triton is missing, that is said when the model is built.
        self.kernel = kernels.rms_norm if fused else None
        self.gain = nn.Parameter(torch.empty(d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the gain to 1."""
        nn.init.ones_(self.gain)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d) -> (..., d)."""
        if self.kernel is not None:
            return self.kernel(x, self.gain, self.eps).to(x.dtype)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (normed * self.gain).to(x.dtype)


class LayerNorm(nn.Module):
    """`(x - mean(x)) / sqrt(var(x) + eps) * gain + bias` over the last dimension (Ba et al. 2016, equation 4).

    Computed in float32 at least, returned in the dtype of `x`, any shape (..., d). By PyTorch's own kernel, one on
    every device: it keeps its input, and the mean and the root of each row.
    """

    def __init__(self, d_model: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.empty(d_model))
        self.bias = nn.Parameter(torch.empty(d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the gain to 1 and the bias to 0."""
        nn.init.ones_(self.gain)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d) -> (..., d)."""
        return F.layer_norm(x, self.gain.shape, self.gain, self.bias, self.eps).to(x.dtype)


class RotaryEmbedding(nn.Module):
    """RoPE: position m turns the pair (x_2i, x_2i+1) by m * theta^(-2i / D) (Su et al. 2021, equation 34), or scaled.

    After it, the product of a query and a key depends on their positions only through the difference. The
    tables `cos` and `sin` are (context_length, D / 2) float32 buffers that no checkpoint carries.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, head_dim: int, context_length: int, theta: float, scaling: RopeScaling = NO_SCALING) -> None:
        super().__init__()
        self.head_dim, self.context_length, self.theta, self.scaling = head_dim, context_length, theta, scaling
        cos, sin = self._tables(None)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def at(self, positions: Tensor) -> Angles:
        """Cosines and sines (B, T, 1, D / 2) of tokens at the positions (B, T), the same in all layers."""
        return self.cos[positions].unsqueeze(-2), self.sin[positions].unsqueeze(-2)

    def forward(self, x: Tensor, angles: Angles | None = None) -> Tensor:
        """Turn (B, T, H, D) by position along T, or by the angles of `at`; same shape and dtype."""
        if angles is None:
            cos, sin = self.cos[: x.shape[1], None], self.sin[: x.shape[1], None]  # (T, 1, D / 2), for all heads
        else:
            cos, sin = angles
        even, odd = x.view(*x.shape[:-1], -1, 2).unbind(-1)
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
        return turned.flatten(-2).to(x.dtype)

    def _tables(self, device: torch.device | None) -> tuple[Tensor, Tensor]:
        # In float64: at position 100,000 a float32 angle is already off by 0.004 rad.
        position = torch.arange(self.context_length, device=device, dtype=torch.float64)
        angle = torch.outer(position, rope_frequencies(self.head_dim, self.theta, self.scaling, device))
        scale = rope_temperature(self.scaling)
        return (scale * angle.cos()).float(), (scale * angle.sin()).float()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RotaryEmbedding:
        # `.to(bfloat16)` would round the tables, and `to_empty` leave them uninitialised with no checkpoint
        # to restore them; so wherever the module moves, they are made anew there, in float32.
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.cos, self.sin = self._tables(self.cos.device)
        return self


class MultiHeadAttention(nn.Module):
    """Causal self-attention with rotary positions (Vaswani et al. 2017, section 3.2.2), or without.

    Keys and values may have fewer heads than queries, and a token may see a window only: itself and those before it.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.impl = config.attention
        self.dropout = config.attention_dropout
        self.settings = Settings(is_causal=True)
        if config.window is not None:
            self.settings["window_size"] = (config.window - 1, 0)
        # Three projections, not one of width d + 2 K D: attention saves `v` for backward, and as a view into a
        # joint result it would keep the unrotated q and k alive with it.
        self.q = Linear(config.d_model, config.d_model)
        self.k = Linear(config.d_model, config.kv_dim)
        self.v = Linear(config.d_model, config.kv_dim)
        self.out = Linear(config.d_model, config.d_model, gain=residual_gain(config))

    def forward(self, x: Tensor, rope: RotaryEmbedding | None, cached: Cached[KeyCache] | None = None) -> Tensor:
        """(B, T, d) -> (B, T, d); with a cache, behind the tokens that its layer has."""
        # `view`, since under a default device (torch.set_default_device) Dynamo cannot trace `unflatten`.
        heads = (*x.shape[:-1], -1, self.head_dim)  # (B, T, H, D), and (B, T, K, D)
        q, k, v = self.q(x).view(heads), self.k(x).view(heads), self.v(x).view(heads)
        # Turned before the heads come forward: the result of attention takes the memory order of q, so
        # merging the heads again is a view and not one more copy that backward keeps.
        if rope is not None:
            angles = None if cached is None else cached.angles
            q, k = rope(q, angles), rope(k, angles)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B, H, T, D)
        if cached is not None:
            mixed = cached.cache.attend(cached.layer, q, k, v)
        else:
            settings = self.settings | {"dropout_p": self.dropout if self.training else 0.0}
            mixed = attention(q, k, v, impl=self.impl, **settings)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return out


class SwiGLU(nn.Module):
    """`W_down (silu(W_gate x) * W_up x)` (Shazeer 2020, equation 6)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.kernel = kernels.swiglu if config.fused_feed_forward else None  # looked up as RMSNorm does
        self.gate = Linear(config.d_model, config.d_ff)
        self.up = Linear(config.d_model, config.d_ff)
        self.down = Linear(config.d_ff, config.d_model, gain=residual_gain(config))

    def forward(self, x: Tensor) -> Tensor:
        """(..., d) -> (..., d)."""
        if self.kernel is not None:
            out: Tensor = self.down(self.kernel(self.gate(x), self.up(x)))
        else:
            out = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class GELU(nn.Module):
    """`W_down gelu(W_up x)`, gelu(u) = u Phi(u), Phi normal's distribution (Hendrycks & Gimpel 2016, section 2)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = Linear(config.d_model, config.d_ff)
        self.down = Linear(config.d_ff, config.d_model, gain=residual_gain(config))

    def forward(self, x: Tensor) -> Tensor:
        """(..., d) -> (..., d)."""
        out: Tensor = self.down(F.gelu(self.up(x)))
        return out


class Block(nn.Module):
    """One pre-norm layer: a mixer, then feed-forward, each added to the residual stream (Xiong et al. 2020).

    In training mode what each adds is dropped out first (Vaswani et al. 2017, section 5.4).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dropout = config.residual_dropout
        self.has_state = kind_of(config).has_state
        if self.has_state:
            self.mixer_norm, self.mixer = make_norm(config), make_mixer(config)
        else:
            self.attention_norm, self.attention = make_norm(config), MultiHeadAttention(config)
        self.feed_forward_norm = make_norm(config)
        self.feed_forward = make_feed_forward(config)

    def forward(self, x: Tensor, rope: RotaryEmbedding | None, cached: Cached[Any] | None = None) -> Tensor:
        """(B, T, d) -> (B, T, d)."""
        if not self.has_state:
            mixed: Tensor = self.attention(self.attention_norm(x), rope, cached)
        elif cached is None:
            mixed = self.mixer(self.mixer_norm(x))
        else:
            mixed = cached.cache.advance(cached.layer, self.mixer, self.mixer_norm(x))
        x = x + dropped(mixed, self.dropout, self.training)
        del mixed  # else it lies in memory beside all that the feed-forward makes
        x = x + dropped(self.feed_forward(self.feed_forward_norm(x)), self.dropout, self.training)
        return x


class TransformerLM(nn.Module):
    """Tokens to next-token logits.

    Every layer draws its own weights where it is made, from torch's global generator and on the ambient
    device: `torch.manual_seed` before construction decides them, and under `with torch.device("meta")` there
    are shapes only. `build_model` does that for a size given by name.

    `checkpointing` is for training, and no part of the configuration: what each block keeps for backward.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.checkpointing = "none"
        std = embedding_std(config)
        self.embedding = Embedding(config.vocab_size, config.d_model, std)
        learned, rotary = config.positions == "learned", (config.head_dim, config.context_length, config.rope_theta)
        # Of the tokens' own size, so that neither drowns the other.
        self.positions = Embedding(config.context_length, config.d_model, std) if learned else None
        self.rope = RotaryEmbedding(*rotary, config.rope_scaling) if config.rotates else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = make_norm(config)
        # A tied head is no module: moved from "meta", two modules that share a parameter would share it no more.
        self.head = None if config.tied_head else Linear(config.d_model, config.vocab_size)

    @property
    def checkpointing(self) -> str:
        """One of `perflab.lab.models.CHECKPOINTING`; heeded in training mode. ValueError for anything else."""
        return self._checkpointing

    @checkpointing.setter
    def checkpointing(self, policy: str) -> None:
        self._checkpointing = check_checkpointing(policy)

    def forward(self, tokens: Tensor, cache: KeyCache | StateCache | None = None, at: Tensor | None = None) -> Tensor:
        """Integer tokens (B, T), T at most `context_length` -> logits (B, T, V).

        Args:
            tokens: (B, T).
            cache: what sequences have so far (`perflab.lab.inference`): the tokens stand behind that, and are added.
            at: (B,) the one token of each sequence whose logits (B, 1, V) are wanted, which spares the others' head.

        Raises:
            ValueError: `tokens` is not (B, T), or longer than the context; or the cache is another model's.
        """
        if tokens.ndim != 2:
            raise ValueError(f"tokens of shape {tuple(tokens.shape)}: wanted (batch, sequence)")
        if tokens.shape[1] > self.config.context_length:
            raise ValueError(
                f"a sequence of {tokens.shape[1]} tokens is longer than context_length="
                f"{self.config.context_length}; build the model with context_length={tokens.shape[1]} or "
                "shorten the batch"
            )
        if cache is not None:
            check_cache(cache.config, self.config)
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + (self.positions.weight[: tokens.shape[1]] if cache is None else self.positions(cache.positions))
        x = dropped(x, self.config.embedding_dropout, self.training)
        angles = None if cache is None or self.rope is None else self.rope.at(cache.positions)
        for layer, block in enumerate(self.blocks):
            cached = () if cache is None else (Cached(cache, layer, angles),)
            x = run_block(block, x, self.rope, *cached, checkpointing=self.checkpointing)
        if at is not None:
            x = x[torch.arange(len(x), device=x.device), at][:, None]
        x = self.norm(x)
        logits: Tensor = F.linear(x, self.embedding.weight) if self.head is None else self.head(x)
        return logits

    def extra_repr(self) -> str:
        """The configuration, where `print(model)` shows it."""
        return repr(self.config)


def make_norm(config: ModelConfig) -> RMSNorm | LayerNorm:
    """A norm of the configuration's kind."""
    if config.norm == "layer":
        return LayerNorm(config.d_model, config.norm_eps)
    return RMSNorm(config.d_model, config.norm_eps, config.fused_norm)


def dropped(x: Tensor, p: float, training: bool) -> Tensor:
    """Drop each number of x with probability p, scale others by 1 / (1 - p), in training (Srivastava et al. 2014)."""
    return F.dropout(x, p) if p and training else x


def embedding_std(config: ModelConfig) -> float:
    """Deviation of the embedding's numbers: 1; with a tied head 1 / sqrt(d), which is any head's.

    Of a normed x, |x|^2 = d, so rows of deviation 1 / sqrt(d) give logits of variance 1; of deviation 1, variance d.
    Scaling E[tokens] up again on its way in, as Vaswani et al. (2017, section 3.4) do, the first norm would undo, and
    the stream not: x would point along its own token's row, the logit of that token would be near sqrt(d), and a fresh
    model be sure that every token repeats. As it is, the blocks soon outweigh the embedding.
    """
    return config.d_model**-0.5 if config.tied_head else 1.0


def residual_gain(config: ModelConfig) -> float:
    """1 / sqrt(2 L): 2 L layers write to the residual stream, whose variance must not grow with depth.

    Radford et al. 2019, section 2.3.
    """
    return float((2 * config.num_layers) ** -0.5)
