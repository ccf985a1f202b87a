"""Hyena of order 2: two long convolutions, each followed by a gate, with filters that a small network makes.

B batch, T sequence, d model width, L context_length, the filters' length.

    v, x_1, x_2 = ShortConvolution(W_in u)                  3 taps of each channel alone
    z = x_1 (h_1 * v);  z = x_2 (h_2 * z)                   (h * z)_t = sum_{k=0}^{L-1} h_k z_{t-k}
    out = W_out z
    h_k = FFN(features(k)) exp(-rate k / L), and s more at k = 0

As Poli et al. (2023), "Hyena Hierarchy: Towards Larger Convolutional Language Models": definition 3.1 with N = 2, and
section 3.3 for the filter: features (k / L and complex exponentials), a network of sines, an exponential window. The
authors' code of order 2 leaves h_1 out, and has the term s. Widths and rates are those of their code.

The convolution is computed term by term (the definition), or by FFT in float32 (float64 for float64 inputs), of the
whole convolution's length at least: in a shorter one the end would come round to the beginning.

A filter has L taps, so a sequence's state is the last L - 1 inputs of both long convolutions: of fixed size, but as
large as a cache of keys and values for L tokens. A decoded token reads all of it. Beyond L tokens the oldest are
forgotten, in `forward` as in decoding.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from perflab.lab.attention.inputs import accumulation_dtype
from perflab.lab.models.config import ModelConfig
from perflab.lab.models.transformer import Linear, residual_gain
from perflab.lab.scan.mamba import causal_taps

ORDER = 2
"""Long convolutions, and gates."""
SHORT_TAPS = 3
"""Taps of the short convolutions behind the projections (section 3.1, "Projections")."""
HARMONICS = 16
"""Complex exponentials among a position's features: 2 of them a harmonic, and the position itself."""
FILTER_WIDTH, FILTER_LAYERS, SINE_FREQUENCY = 64, 3, 14.0
"""The filter network's hidden layers, and what its sines' arguments are multiplied by."""
SLOWEST, FASTEST = math.log(100) / 1.5, math.log(100) / 0.3
"""Rates of the window: of the first channel and of the last. It falls to 1 % at 1.5 and 0.3 of the context length."""

State = tuple[Tensor, ...]


def reference_long_convolution(u: Tensor, h: Tensor) -> Tensor:
    """y_t = sum_k h_k u_{t-k} of each channel alone, term by term, in float64: u (B, T, d), h (L, d) -> (B, T, d)."""
    u, h = u.double(), h.double()
    outputs = []
    for t in range(u.shape[1]):
        taps = min(t + 1, h.shape[0])
        outputs.append((h[:taps].flip(0) * u[:, t + 1 - taps : t + 1]).sum(dim=1))
    return torch.stack(outputs, dim=1)


def fft_long_convolution(u: Tensor, h: Tensor) -> Tensor:
    """The same by FFT, in float32 (float64 for float64), returned in the dtype of u."""
    wide = accumulation_dtype(u.dtype)
    length = u.shape[1]
    taps = min(length, h.shape[0])
    n = fft_length(length, taps)
    product = torch.fft.rfft(u.to(wide), n=n, dim=1) * torch.fft.rfft(h[:taps].to(wide), n=n, dim=0)
    y: Tensor = torch.fft.irfft(product, n=n, dim=1)[:, :length].to(u.dtype)
    return y


def fft_length(length: int, taps: int) -> int:
    """The least power of two that holds the whole convolution, of length + taps - 1."""
    return 1 << (length + taps - 2).bit_length()


class ImplicitFilter(nn.Module):
    """Filters (2, L, d) as a function of the position."""

    def __init__(self, d_model: int, context_length: int) -> None:
        super().__init__()
        self.d_model, self.context_length = d_model, context_length
        widths = (2 * HARMONICS + 1, *[FILTER_WIDTH] * FILTER_LAYERS)
        self.layers = nn.ModuleList(Linear(*pair) for pair in pairwise(widths))
        self.last = Linear(FILTER_WIDTH, ORDER * d_model)
        self.frequencies = nn.Parameter(torch.empty(FILTER_LAYERS, FILTER_WIDTH))
        self.skips = nn.Parameter(torch.empty(ORDER, d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew, so that each filter has a norm near one: a convolution then keeps the variance."""
        nn.init.constant_(self.frequencies, SINE_FREQUENCY)
        nn.init.normal_(self.skips)
        self.last.reset_parameters()
        with torch.no_grad():
            # A sine's mean square is 1/2, so a tap's variance that of the window over 2.
            energy = self.window(self.last.weight.device, self.last.weight.dtype).square().sum(0) / 2
            self.last.weight.mul_(energy.rsqrt().repeat(ORDER)[:, None])

    def window(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """exp(-rate k / L): (L, d), the rates evenly spread over the channels."""
        rates = torch.linspace(SLOWEST, FASTEST, self.d_model, device=device, dtype=dtype)
        positions = torch.arange(self.context_length, device=device, dtype=dtype) / self.context_length
        return torch.exp(-positions[:, None] * rates)

    def forward(self, length: int) -> Tensor:
        """The first `length` taps, or all L: (2, length, d)."""
        device, dtype = self.skips.device, self.skips.dtype
        length = min(length, self.context_length)
        # In float64: an angle of 2 pi 16 k / L loses digits that the sines of the network multiply.
        positions = torch.arange(length, device=device, dtype=torch.float64) / self.context_length
        angles = 2 * math.pi * positions[:, None] * torch.arange(HARMONICS, device=device, dtype=torch.float64)
        x = torch.cat((positions[:, None], angles.cos(), angles.sin()), dim=1).to(dtype)
        for layer, frequency in zip(self.layers, self.frequencies, strict=True):
            x = torch.sin(frequency * layer(x))
        taps = self.last(x).view(length, ORDER, self.d_model).transpose(0, 1) * self.window(device, dtype)[:length]
        return torch.cat((taps[:, :1] + self.skips[:, None], taps[:, 1:]), dim=1)


class Hyena(nn.Module):
    """A causal mixer (B, T, d) -> (B, T, d). Each call makes its filters anew: L x 64 x 2 d products."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.form: str = getattr(config, "mixer_form", "chunked")
        if self.form not in ("definition", "chunked"):
            raise ValueError(
                f"mixer_form={self.form!r}: Hyena is computed by the 'definition' or by FFT, which is 'chunked'; "
                f"give one of these"
            )
        self.d_model, self.context_length = config.d_model, config.context_length
        self.project_in = Linear(config.d_model, (ORDER + 1) * config.d_model)
        self.project_out = Linear(config.d_model, config.d_model, gain=residual_gain(config))
        self.taps = nn.Parameter(torch.empty(SHORT_TAPS, (ORDER + 1) * config.d_model))
        self.filters = ImplicitFilter(config.d_model, config.context_length)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the short taps anew, of a variance that the convolution keeps."""
        nn.init.normal_(self.taps, std=SHORT_TAPS**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, d) -> (B, T, d), from an empty state."""
        seen = x.new_zeros(x.shape[0], SHORT_TAPS - 1, (ORDER + 1) * self.d_model)
        return self._mix(x, seen, [None] * ORDER)[0]

    def initial_state(self, batch_size: int, device: torch.device | str, dtype: torch.dtype) -> State:
        """The empty state: inputs of the short convolutions (B, 2, 3 d), of each long one (B, L - 1, d)."""
        shapes = [(SHORT_TAPS - 1, (ORDER + 1) * self.d_model), *[(self.context_length - 1, self.d_model)] * ORDER]
        return tuple(torch.zeros(batch_size, *shape, dtype=dtype, device=device) for shape in shapes)

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, T, d) behind what the state has seen -> (B, T, d), and the state behind them."""
        seen, *before = state
        return self._mix(x, seen, before)

    def _mix(self, x: Tensor, seen: Tensor, before: list[Tensor] | list[None]) -> tuple[Tensor, State]:
        u = self.project_in(x)
        u = torch.cat((seen.to(u.dtype), u), dim=1)
        z, *gates = causal_taps(u, self.taps).chunk(ORDER + 1, dim=-1)
        state = [u[:, 1 - SHORT_TAPS :].clone()]  # copies: views would keep all T inputs
        length = x.shape[1] if before[0] is None else self.context_length
        for h, gate, inputs in zip(self.filters(length), gates, before, strict=True):
            behind = z if inputs is None else torch.cat((inputs.to(z.dtype), z), dim=1)
            state.append(behind[:, behind.shape[1] - self.context_length + 1 :].clone() if inputs is not None else z)
            z = gate * self._convolved(behind, h, x.shape[1])
        out: Tensor = self.project_out(z)
        return out, tuple(state)

    def _convolved(self, u: Tensor, h: Tensor, length: int) -> Tensor:
        """The last `length` outputs."""
        if self.form == "definition":
            return reference_long_convolution(u, h)[:, -length:].to(u.dtype)
        if length == 1:  # one output costs one sum; the FFT would compute all
            taps = min(u.shape[1], h.shape[0])
            wide = accumulation_dtype(u.dtype)
            return (h[:taps].flip(0).to(wide) * u[:, -taps:].to(wide)).sum(dim=1, keepdim=True).to(u.dtype)
        return fft_long_convolution(u, h)[:, -length:]
