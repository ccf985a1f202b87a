"""A mixer as a reader would write one: each channel a running mean that forgets, gated by the token."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from perflab.lab.models import ModelConfig
from perflab.lab.models.mixers import State
from perflab.lab.models.transformer import Linear, residual_gain

DECAY = 0.8


class DecayMixer(nn.Module):
    """s_t = DECAY s_(t-1) + W_in x_t, y_t = W_out (s_t * sigmoid(W_gate x_t)), and a count of what it has seen."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.inner = Linear(config.d_model, config.d_model)
        self.gate = Linear(config.d_model, config.d_model)
        self.out = Linear(config.d_model, config.d_model, gain=residual_gain(config))

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, d) -> (B, T, d), from an empty state."""
        return self.advance(x, self.initial_state(x.shape[0], x.device, x.dtype))[0]

    def initial_state(self, batch_size: int, device: torch.device | str, dtype: torch.dtype) -> State:
        """The running sums (B, d), and how many tokens they are of (B, 1)."""
        width = self.inner.out_features
        return torch.zeros(batch_size, width, device=device, dtype=dtype), torch.zeros(batch_size, 1, device=device)

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, T, d) behind the state, and the state after."""
        total, seen = state
        added, rows = self.inner(x), []
        with torch.autocast(
            x.device.type, enabled=False
        ):  # sums over a sequence stay wide, as in the lab's recurrences
            for t in range(x.shape[1]):
                total = DECAY * total + added[:, t]
                rows.append(total)
        mixed = torch.stack(rows, 1) * torch.sigmoid(self.gate(x))
        return self.out(mixed), (total, seen + x.shape[1])
