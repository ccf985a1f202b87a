"""Mamba-2's mixer: state-space duality, in which a selective state space is a linear recurrence with a decay a head.

B batch, T sequence, d model width, H heads, P = 2 d / H head width, N state width, W width of the convolution.

    z, u, dt = W_in x                                   u = (x', b, c), 2 d + 2 N wide
    x', b, c = silu(causal depthwise convolution of u)
    dt = softplus(dt + bias)                            a number a head and token
    S_t = exp(-exp(A) dt_t) S_{t-1} + b_t^T (dt_t x'_t) S (N, P) a head; b and c are those of all heads
    y = W_out (RMSNorm((c_t S_t + D x'_t) silu(z)))

Dao & Gu (2024), "Transformers are SSMs", sections 5 (the duality) and 7 (the block; that all heads share b and c is its
multi-value attention). In the words of `linear_recurrence`: q is c, k is b and v is dt x'.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perflab.lab.models.config import ModelConfig
from perflab.lab.models.transformer import Linear, RMSNorm, residual_gain
from perflab.lab.recurrence.mixer import Mixer, State, head_width
from perflab.lab.recurrence.recurrence import linear_recurrence

# Dao & Gu (2024): the block of section 7.1 is twice as wide as the model, its convolution 4 tokens; the models of
# section 9 have states of 128.
EXPANSION = 2
STATE_WIDTH = 128
CONVOLUTION_WIDTH = 4
# Gu & Dao (2023), "Mamba", section 3.6: a fresh dt is drawn from here, evenly in its logarithm.
SMALLEST_STEP, LARGEST_STEP = 1e-3, 1e-1
# Dao & Gu's code draws -A evenly from here.
SMALLEST_RATE, LARGEST_RATE = 1.0, 16.0


class Mamba2(Mixer):
    """Mamba-2."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        heads, self.inner = config.num_heads, EXPANSION * config.d_model
        self.head_width = head_width(self.inner, heads, "Mamba-2", "values")
        self.mixed = self.inner + 2 * STATE_WIDTH
        self.into = Linear(config.d_model, self.inner + self.mixed + heads)
        self.convolution = nn.Parameter(torch.empty(self.mixed, CONVOLUTION_WIDTH))
        self.convolution_bias = nn.Parameter(torch.empty(self.mixed))
        self.step_bias = nn.Parameter(torch.empty(heads))
        self.log_rate = nn.Parameter(torch.empty(heads))
        self.skip = nn.Parameter(torch.empty(heads))
        self.norm = RMSNorm(self.inner, config.norm_eps)
        self.out = Linear(self.inner, config.d_model, gain=residual_gain(config))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the convolution, the steps and the rates anew from torch's global generator."""
        nn.init.normal_(self.convolution, std=CONVOLUTION_WIDTH**-0.5)
        nn.init.zeros_(self.convolution_bias)
        nn.init.ones_(self.skip)
        with torch.no_grad():
            step = self.step_bias.uniform_(math.log(SMALLEST_STEP), math.log(LARGEST_STEP)).exp()
            self.step_bias.copy_(step + torch.log(-torch.expm1(-step)))  # softplus of it is the step
            self.log_rate.uniform_(SMALLEST_RATE, LARGEST_RATE).log_()

    def initial_state(self, batch_size: int, device: torch.device, dtype: torch.dtype) -> State:
        """S (B, H, N, P), float32 at least; and the convolution's last inputs (B, W - 1, 2 d + 2 N)."""
        wide = torch.promote_types(dtype, torch.float32)
        held = torch.zeros(batch_size, self.num_heads, STATE_WIDTH, self.head_width, device=device, dtype=wide)
        return held, torch.zeros(batch_size, CONVOLUTION_WIDTH - 1, self.mixed, device=device, dtype=dtype)

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """See `Mixer`."""
        held, last = state
        gate, mixed, step = torch.split(self.into(x), [self.inner, self.mixed, self.num_heads], dim=-1)
        seen = torch.cat((last.to(mixed.dtype), mixed), dim=1)
        convolved = F.conv1d(seen.mT, self.convolution[:, None], self.convolution_bias, groups=self.mixed).mT
        value, key, query = torch.split(F.silu(convolved), [self.inner, STATE_WIDTH, STATE_WIDTH], dim=-1)
        wide = torch.promote_types(x.dtype, torch.float32)
        step = F.softplus(step.to(wide) + self.step_bias.to(wide)).transpose(1, 2)  # (B, H, T)
        value = self.heads(value)
        shared = (x.shape[0], self.num_heads, x.shape[1], STATE_WIDTH)
        out, held = linear_recurrence(
            query[:, None].expand(shared),
            key[:, None].expand(shared),
            (value * step[..., None]).to(value.dtype),
            -self.log_rate.to(wide).exp()[:, None] * step,
            state=held,
            form=self.form,
        )
        out = (out + self.skip[:, None, None] * value).transpose(1, 2).flatten(-2)
        # The gate first and the norm behind it, in float32: what is small in one head stays so beside the others.
        gated: Tensor = self.norm(out.to(wide) * F.silu(gate.to(wide))).to(x.dtype)
        result: Tensor = self.out(gated)
        return result, (held, seen[:, -(CONVOLUTION_WIDTH - 1) :])
