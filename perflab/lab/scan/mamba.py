"""Mamba's mixer: a short convolution, the selective scan, a gate.

B batch, T sequence, d model width, E = 2 d channels, N = 16 numbers of state a channel, R = ceil(d / 16) rank of dt.

    u, z = W_in x                                           (B, T, E) each
    u = silu(sum_k w_k u_{t-k} + w_0)                       of each channel alone, k = 0 .. 3
    s, b, c = W_x u                                         R, N and N wide
    dt = softplus(W_dt s + w_dt)                            (B, T, E)
    out = W_out (scan(u, dt, -exp(a_log), b, c, D) silu(z))

A sequence's state is the last 3 inputs of the convolution and the scan's h: of the same size at any length.

Source: Gu & Dao (2023), "Mamba", section 3.4 and figure 3; widths and initialisation as their section 3.6 ("S4D-Real":
a = -1 .. -N; dt in [0.001, 0.1]) and the authors' code, which draws dt log-uniform.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perflab.lab.attention.inputs import accumulation_dtype
from perflab.lab.models.config import ModelConfig
from perflab.lab.models.transformer import Linear, residual_gain
from perflab.lab.scan.scan import selective_scan

EXPAND = 2
"""Channels for each number of the model's width (Gu & Dao 2023, section 3.4)."""
STATE_SIZE = 16
"""Numbers of state for each channel, N (section 3.6)."""
KERNEL_SIZE = 4
"""Taps of the short convolution (figure 3, and the authors' code)."""
RANK_DIVISOR = 16
"""The rank of dt is d over this (section 3.6)."""
DT_MIN, DT_MAX, DT_FLOOR = 1e-3, 1e-1, 1e-4
"""Step sizes of a fresh model: log-uniform between the first two, the third at least."""

State = tuple[Tensor, ...]


class Mamba(nn.Module):
    """A causal mixer (B, T, d) -> (B, T, d) with a state of fixed size."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.channels = EXPAND * config.d_model
        self.rank = math.ceil(config.d_model / RANK_DIVISOR)
        self.form: str = getattr(config, "mixer_form", "chunked")
        self.project_in = Linear(config.d_model, 2 * self.channels)
        self.select = Linear(self.channels, self.rank + 2 * STATE_SIZE)
        self.project_out = Linear(self.channels, config.d_model, gain=residual_gain(config))
        self.taps = nn.Parameter(torch.empty(KERNEL_SIZE, self.channels))
        self.taps_bias = nn.Parameter(torch.empty(self.channels))
        self.dt_weight = nn.Parameter(torch.empty(self.channels, self.rank))
        self.dt_bias = nn.Parameter(torch.empty(self.channels))
        self.a_log = nn.Parameter(torch.empty(self.channels, STATE_SIZE))
        self.d = nn.Parameter(torch.empty(self.channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw taps, step sizes and decays anew from torch's global generator."""
        bound = KERNEL_SIZE**-0.5  # as torch.nn.Conv1d draws taps of one channel
        nn.init.uniform_(self.taps, -bound, bound)
        nn.init.zeros_(self.taps_bias)
        nn.init.uniform_(self.dt_weight, -(self.rank**-0.5), self.rank**-0.5)
        with torch.no_grad():
            spread = torch.rand_like(self.dt_bias) * math.log(DT_MAX / DT_MIN) + math.log(DT_MIN)
            dt = spread.exp().clamp(min=DT_FLOOR)
            self.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # softplus of it is dt
            exponents = torch.arange(1, STATE_SIZE + 1, dtype=self.a_log.dtype, device=self.a_log.device)
            self.a_log.copy_(exponents.log().expand(self.channels, -1))
        nn.init.ones_(self.d)

    def forward(self, x: Tensor, starts: Tensor | None = None) -> Tensor:
        """(B, T, d) -> (B, T, d), from an empty state. `starts` (B, T) of bool: where sequences begin."""
        return self.advance(x, self.initial_state(x.shape[0], x.device, x.dtype), starts)[0]

    def initial_state(self, batch_size: int, device: torch.device | str, dtype: torch.dtype) -> State:
        """The empty state: inputs of the convolution (B, 3, E) in `dtype`; h (B, E, N), in float32 at least."""
        seen = torch.zeros(batch_size, KERNEL_SIZE - 1, self.channels, dtype=dtype, device=device)
        h = torch.zeros(batch_size, self.channels, STATE_SIZE, dtype=accumulation_dtype(dtype), device=device)
        return seen, h

    def advance(self, x: Tensor, state: State, starts: Tensor | None = None) -> tuple[Tensor, State]:
        """(B, T, d) behind what the state has seen -> (B, T, d), and the state behind them."""
        seen, h = state
        u, z = self.project_in(x).chunk(2, dim=-1)
        behind = torch.cat((seen.to(u.dtype), u), dim=1)
        u = F.silu(causal_taps(behind, self.taps, starts) + self.taps_bias.to(u.dtype))
        s, b, c = self.select(u).split((self.rank, STATE_SIZE, STATE_SIZE), dim=-1)
        dt = F.softplus(F.linear(s, self.dt_weight, self.dt_bias).to(h.dtype))
        y, h = selective_scan(
            u, dt, -torch.exp(self.a_log.to(h.dtype)), b, c, self.d.to(h.dtype),
            z=z, state=h, starts=starts, form=self.form,
        )  # fmt: skip
        out: Tensor = self.project_out(y)
        # A copy: a view would keep all T inputs.
        return out, (behind[:, 1 - KERNEL_SIZE :].clone(), h)


def causal_taps(x: Tensor, taps: Tensor, starts: Tensor | None = None) -> Tensor:
    """y_t = sum_k taps_k x_{t-k} of each channel alone: x (B, K - 1 + T, E) with what stands before, taps (K, E).

    Returns (B, T, E) in the dtype of x. Where a sequence begins within the last k positions, x_{t-k} counts as zero.
    """
    before = taps.shape[0] - 1
    length = x.shape[1] - before
    sequence = None if starts is None else F.pad(starts.cumsum(dim=1), (before, 0))
    y = torch.zeros((), dtype=x.dtype, device=x.device)
    for k, tap in enumerate(taps.to(x.dtype)):
        first = before - k
        moved = x[:, first : first + length]
        if sequence is not None:
            same = sequence[:, first : first + length] == sequence[:, before:]
            moved = torch.where(same[..., None], moved, 0.0)
        y = y + tap * moved
    return y
