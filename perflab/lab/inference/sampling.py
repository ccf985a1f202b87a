"""Draw the next token from logits: greedy, temperature, top-k, top-p; the same for one seed in any batch.

B sequences, V vocabulary. For a sequence with seed s, at position n:

    p = softmax(logits / temperature), cut to the k largest and to the fewest whose sum reaches top_p, over its sum
    u = uniform(s, n)                       in [0, 1)
    token = the first i with p_0 + ... + p_i > u

(top-k: Fan et al. 2018, section 5.4; top-p, or nucleus: Holtzman et al. 2020, section 3.1.) `uniform` is a hash of seed
and position, SplitMix64 (Steele, Lea & Flood 2014, figure 17), and no generator with a state. So a token depends on its
own sequence alone: not on the batch, nor on requests that were preempted and computed again; and a CUDA graph can
replay it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # as int64
_MIX = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)


@dataclass(frozen=True)
class Sampling:
    """The choice of tokens.

    temperature  divides the logits; 0 is greedy, the largest logit
    top_k        only the k largest probabilities; None: all
    top_p        only the largest probabilities that add up to it; 1: all
    seed         of the sequence; sequence b of a batch without seeds of its own has `seed + b`

    Raises:
        ValueError: a number is out of range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature={self.temperature}: wanted 0 (greedy) or a positive, finite number")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k}: wanted 1 or more, or None for all tokens")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: wanted more than 0 and at most 1, which cuts nothing")


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """(..., V) logits -> (..., V) float32 probabilities as they are drawn from; greedy: 1 at the largest logit."""
    if sampling.temperature == 0:
        return torch.zeros_like(logits, dtype=torch.float32).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    p = (logits.float() / sampling.temperature).softmax(-1)
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        p = p.where(p >= p.topk(sampling.top_k).values[..., -1:], 0.0)  # ties of the last all stay
        p = p / p.sum(-1, keepdim=True)
    if sampling.top_p < 1:
        ordered, order = p.sort(-1, descending=True)
        before = ordered.cumsum(-1) - ordered
        p = torch.zeros_like(p).scatter_(-1, order, ordered.where(before < sampling.top_p, 0.0))
        p = p / p.sum(-1, keepdim=True)
    return p


def draw(p: Tensor, u: Tensor) -> Tensor:
    """Tokens (...) from probabilities (..., V), by inverting their sums at u (...) in [0, 1)."""
    sums = p.double().cumsum(-1)
    # Times the sum, which rounding may leave below 1: u itself could lie beyond the last token. And `right`, so that a
    # token of probability 0 is never drawn.
    u = u.double() * sums[..., -1]
    return torch.searchsorted(sums, u[..., None], right=True)[..., 0].clamp(max=p.shape[-1] - 1)


def sample(logits: Tensor, sampling: Sampling, seeds: Tensor, positions: Tensor) -> Tensor:
    """The next token (B,) of each sequence from its logits (B, V); seeds and positions (B,) int64."""
    if sampling.temperature == 0:
        return logits.argmax(-1)
    return draw(probabilities(logits, sampling), uniform(seeds, positions))


def uniform(seeds: Tensor, positions: Tensor, stream: int = 0) -> Tensor:
    """A number in [0, 1), float64, for each seed, position and stream: always the same."""
    mixed = _mixed(_mixed(_mixed(seeds) + stream) + positions)
    number: Tensor = _shifted(mixed, 11).double() * 2.0**-53
    return number


def _mixed(x: Tensor) -> Tensor:
    x = x + _GOLDEN
    x = (x ^ _shifted(x, 30)) * _MIX[0]
    x = (x ^ _shifted(x, 27)) * _MIX[1]
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Bits to the right, zeros from the left: `>>` of an int64 repeats its sign."""
    shifted: Tensor = (x >> bits) & (2 ** (64 - bits) - 1)
    return shifted
