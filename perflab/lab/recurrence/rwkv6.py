"""RWKV-6's time mixing ("Finch"): a decay a channel made from the token, and a bonus for the token itself.

B batch, T sequence, d model width, H heads, K = d / H width of keys and values.

    x_r, x_k, x_v, x_g, x_w = x + (x_before - x) * (mu_i + lora_i(x + (x_before - x) * mu_x))
    r, k, v, g = W_r x_r, W_k x_k, W_v x_v, silu(W_g x_g)
    w = decay + tanh(x_w A) B,  a_t = exp(-exp(w_t))
    S_t = diag(a_t) S_{t-1} + k_t^T v_t
    y = W_o (g * GroupNorm(r_t (S_{t-1} + diag(u) k_t^T v_t)))

x_before is the token before; lora_i(y) = tanh(y A_i) B_i. Peng et al. (2024), "Eagle and Finch: RWKV with Matrix-Valued
States and Dynamic Recurrence", section 4.2 (equations 14 to 20). In the words of `linear_recurrence`: q is r.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perflab.lab.models.config import ModelConfig
from perflab.lab.models.transformer import Linear, residual_gain
from perflab.lab.recurrence.mixer import HeadNorm, Mixer, State, head_width
from perflab.lab.recurrence.recurrence import linear_recurrence

# Peng et al. (2024), section 4.2 and the authors' code: ranks of the mixes' and the decay's low-rank parts, and the
# norm's eps of 1e-5 for outputs that are divided by 8.
MIX_RANK = 32
DECAY_RANK = 64
NORM_EPS = 64e-5
SLOWEST, FASTEST, CURVE = -6.0, -1.0, 0.7
"""A fresh decay's w, from the first channel to the last, by a power: exp(-exp(w)) is 0.9975 to 0.69."""


class RWKV6(Mixer):
    """RWKV-6's time mixing."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        d_model = config.d_model
        self.width = head_width(d_model, config.num_heads, "RWKV-6", "keys")
        self.mix = TokenMix(d_model, ("w", "k", "v", "r", "g"))
        self.r, self.k, self.v, self.gate = (Linear(d_model, d_model) for _ in range(4))
        self.decay_down, self.decay_up = Linear(d_model, DECAY_RANK), Linear(DECAY_RANK, d_model)
        self.decay = nn.Parameter(torch.empty(d_model))
        self.bonus = nn.Parameter(torch.empty(config.num_heads, self.width))
        self.norm = HeadNorm(config.num_heads, self.width, NORM_EPS)
        self.out = Linear(d_model, d_model, gain=residual_gain(config))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the decay and the bonus to the values that training begins with."""
        with torch.no_grad():
            place = torch.linspace(0.0, 1.0, self.decay.shape[0], device=self.decay.device)
            self.decay.copy_(SLOWEST + (FASTEST - SLOWEST) * place**CURVE)
            self.bonus.copy_((1 - place).view_as(self.bonus))

    def initial_state(self, batch_size: int, device: torch.device, dtype: torch.dtype) -> State:
        """S (B, H, K, K), float32 at least; and the last token (B, 1, d)."""
        wide = torch.promote_types(dtype, torch.float32)
        held = torch.zeros(batch_size, self.num_heads, self.width, self.width, device=device, dtype=wide)
        return held, torch.zeros(batch_size, 1, self.decay.shape[0], device=device, dtype=dtype)

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """See `Mixer`."""
        held, last = state
        mixes = self.mix(x, torch.cat((last.to(x.dtype), x[:, :-1]), dim=1))
        # Rounded to the activations' dtype, as the authors' kernel takes it; the double exponential is float32.
        w = self.decay + self.decay_up(torch.tanh(self.decay_down(mixes["w"])))
        decay = -torch.exp(w.to(torch.promote_types(w.dtype, torch.float32)))
        out, held = linear_recurrence(
            self.heads(self.r(mixes["r"])),
            self.heads(self.k(mixes["k"])),
            self.heads(self.v(mixes["v"])),
            self.heads(decay),
            bonus=self.bonus,
            state=held,
            form=self.form,
        )
        result: Tensor = self.out(F.silu(self.gate(mixes["g"])) * self.norm(out))
        return result, (held, x[:, -1:])


class TokenMix(nn.Module):
    """Several mixes of each token with the one before, how much of each made from both (equations 14 to 16)."""

    def __init__(self, d_model: int, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names
        self.base = nn.Parameter(torch.empty(d_model))
        self.shares = nn.Parameter(torch.empty(len(names), d_model))
        self.down = Linear(d_model, MIX_RANK * len(names))
        self.up = nn.Parameter(torch.empty(len(names), MIX_RANK, d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Half of each token; what the tokens change of that begins small."""
        nn.init.constant_(self.base, 0.5)
        nn.init.constant_(self.shares, 0.5)
        nn.init.uniform_(self.up, -0.01, 0.01)

    def forward(self, x: Tensor, before: Tensor) -> dict[str, Tensor]:
        """(B, T, d) and the tokens before -> {name: (B, T, d)}."""
        difference = before - x
        hidden = torch.tanh(self.down(x + difference * self.base)).view(*x.shape[:-1], len(self.names), MIX_RANK)
        changes = torch.einsum("btnr,nrd->nbtd", hidden, self.up)
        return {name: x + difference * (self.shares[n] + changes[n]) for n, name in enumerate(self.names)}
