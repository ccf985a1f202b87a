"""RetNet's multi-scale retention: a fixed decay a head.

B batch, T sequence, d model width, H heads, K = d / H key width, V = 2 d / H value width.

    q, k = Theta W_q x, Theta W_k x / sqrt(K)     Theta turns position n by n theta, pair by pair
    S_t = gamma_h S_{t-1} + k_t^T v_t             gamma_h = 1 - 2^(-5-h)
    y = W_o (swish(W_g x) * GroupNorm(q_t S_t))

Sun et al. (2023), "Retentive Network", equations 5 to 8. The paper's parallel form is one chunk, its recurrent form
chunks of one token, its chunkwise form the rest.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from perflab.lab.models.config import ModelConfig
from perflab.lab.models.transformer import Linear, residual_gain
from perflab.lab.recurrence.mixer import HeadNorm, Mixer, State, head_width
from perflab.lab.recurrence.recurrence import linear_recurrence

# Sun et al. (2023), section 2.3: W_v, W_g and W_o are twice as wide.
VALUE_EXPANSION = 2
# The rotary frequencies of Su et al. (2021), section 3.3, which xPos and RetNet take over.
ROTARY_BASE = 10_000.0


class RetNet(Mixer):
    """Multi-scale retention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        d_model, d_value = config.d_model, VALUE_EXPANSION * config.d_model
        self.key_width = head_width(d_model, config.num_heads, "RetNet", "keys")
        if self.key_width % 2:
            raise ValueError(f"RetNet turns pairs of channels, and {self.key_width} a head is odd; choose fewer heads")
        self.value_width = d_value // config.num_heads
        self.q, self.k = Linear(d_model, d_model), Linear(d_model, d_model)
        self.v, self.gate = Linear(d_model, d_value), Linear(d_model, d_value)
        self.norm = HeadNorm(config.num_heads, self.value_width, config.norm_eps)
        self.out = Linear(d_value, d_model, gain=residual_gain(config))

    def initial_state(self, batch_size: int, device: torch.device, dtype: torch.dtype) -> State:
        """S (B, H, K, V), float32 at least; and the position of the next token (B,)."""
        wide = torch.promote_types(dtype, torch.float32)
        held = torch.zeros(batch_size, self.num_heads, self.key_width, self.value_width, device=device, dtype=wide)
        return held, torch.zeros(batch_size, device=device, dtype=torch.int64)

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """See `Mixer`."""
        held, position = state
        positions = position[:, None] + torch.arange(x.shape[1], device=x.device)
        q = self._turned(self.heads(self.q(x)), positions)
        k = self._turned(self.heads(self.k(x)) / math.sqrt(self.key_width), positions)
        v = self.heads(self.v(x))
        log_decay = log_decays(self.num_heads, x.device)[:, None].expand(*q.shape[:-1])
        mixed, held = linear_recurrence(q, k, v, log_decay, state=held, form=self.form)
        out: Tensor = self.out(F.silu(self.gate(x)) * self.norm(mixed))
        return out, (held, position + x.shape[1])

    def _turned(self, x: Tensor, positions: Tensor) -> Tensor:
        """(B, H, T, K) with the pair (2i, 2i + 1) of position n turned by n * base^(-2i / K)."""
        pair = torch.arange(0, self.key_width, 2, device=x.device, dtype=torch.float64)
        # In float64: at position 100,000 a float32 angle is already off by 0.004 rad.
        angle = positions[:, None, :, None].double() * ROTARY_BASE ** (-pair / self.key_width)
        wide = torch.promote_types(x.dtype, torch.float32)
        cos, sin = angle.cos().to(wide), angle.sin().to(wide)
        even, odd = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x.dtype)


def log_decays(num_heads: int, device: torch.device) -> Tensor:
    """log(1 - 2^(-5-h)) of each head (H,), float32."""
    heads = torch.arange(num_heads, device=device, dtype=torch.float64)
    return torch.log1p(-torch.exp2(-5 - heads)).float()
