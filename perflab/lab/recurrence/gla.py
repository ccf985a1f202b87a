"""Gated linear attention: a decay a channel of the keys, made from the token.

B batch, T sequence, d model width, H heads, K = d / (2 H) key width, V = d / H value width.

    a_t = sigmoid(W_2 W_1 x_t + b)^(1/16)
    S_t = diag(a_t) S_{t-1} + k_t^T v_t
    y = W_o (swish(W_g x) * Norm(q_t S_t / sqrt(K)))

Yang et al. (2024), "Gated Linear Attention Transformers with Hardware-Efficient Training", section 4.4 (the layer) and
equation 3 (the recurrence).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perflab.lab.models.config import ModelConfig
from perflab.lab.models.transformer import Linear, residual_gain
from perflab.lab.recurrence.mixer import HeadNorm, Mixer, State, head_width
from perflab.lab.recurrence.recurrence import linear_recurrence

# Yang et al. (2024), section 4.4: d_k = d / 2, W_1 of rank 16, and a temperature of 16, by which a fresh gate forgets
# slowly.
KEY_SHARE = 2
GATE_RANK = 16
GATE_TEMPERATURE = 16.0


class GatedLinearAttention(Mixer):
    """Gated linear attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        d_model, d_key = config.d_model, config.d_model // KEY_SHARE
        self.key_width = head_width(d_key, config.num_heads, "gated linear attention", "keys")
        self.value_width = head_width(d_model, config.num_heads, "gated linear attention", "values")
        self.q, self.k = Linear(d_model, d_key), Linear(d_model, d_key)
        self.v, self.gate = Linear(d_model, d_model), Linear(d_model, d_model)
        self.decay = LowRankDecay(d_model, GATE_RANK, d_key)
        self.norm = HeadNorm(config.num_heads, self.value_width, config.norm_eps)
        self.out = Linear(d_model, d_model, gain=residual_gain(config))

    def initial_state(self, batch_size: int, device: torch.device, dtype: torch.dtype) -> State:
        """S (B, H, K, V), float32 at least."""
        wide = torch.promote_types(dtype, torch.float32)
        return (torch.zeros(batch_size, self.num_heads, self.key_width, self.value_width, device=device, dtype=wide),)

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """See `Mixer`."""
        q, k, v = self.heads(self.q(x)) * self.key_width**-0.5, self.heads(self.k(x)), self.heads(self.v(x))
        mixed, held = linear_recurrence(q, k, v, self.heads(self.decay(x)), state=state[0], form=self.form)
        out: Tensor = self.out(F.silu(self.gate(x)) * self.norm(mixed))
        return out, (held,)


class LowRankDecay(nn.Module):
    """log a = log sigmoid(W_2 W_1 x + b) / temperature, (B, T, d) -> (B, T, d_key), float32 at least."""

    def __init__(self, d_model: int, rank: int, d_key: int) -> None:
        super().__init__()
        self.down, self.up = Linear(d_model, rank), Linear(rank, d_key)
        self.bias = nn.Parameter(torch.empty(d_key))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the bias to 0."""
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The log decay of each channel."""
        gate = self.up(self.down(x)) + self.bias
        return F.logsigmoid(gate.to(torch.promote_types(gate.dtype, torch.float32))) / GATE_TEMPERATURE
