"""RoPE scaling: the frequencies of rotary positions for contexts longer than a model was trained with.

D head dimension, pairs i = 0 .. D/2 - 1, f_i = theta^(-2i / D), L the trained context length, s its factor of growth.

    none            f_i
    linear          f_i / s                               Chen et al. (2023), "position interpolation", section 2.3
    ntk             (theta s^(D / (D - 2)))^(-2i / D)     Peng et al. (2023), section 3.1: the last pair slows by s
    yarn            (1 - g_i) f_i / s + g_i f_i           the same, sections 3.2 and 3.4
    yarn-rotations  the same, with the paper's g

A pair turns r_i = L f_i / 2 pi times over the trained context. Pairs of many turns keep their frequency (g = 1), those
of less than one are slowed down as by "linear" (g = 0). Between, the paper has g = (r - slow) / (fast - slow). The
authors' code, by which published checkpoints were trained, has a straight line over i instead, between the pairs that
turn `fast` and `slow` times, rounded outwards. YaRN also multiplies queries and keys by 0.1 ln s + 1 (section 3.4),
which `rope_temperature` gives: cosines and sines carry it.

Source: Peng, Quesnelle, Fan and Shippole (2023), "YaRN: Efficient Context Window Extension of Large Language Models".
"""

import math
from dataclasses import asdict, dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Kind = Literal["none", "linear", "ntk", "yarn", "yarn-rotations"]


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """The stretching of rotary positions: `ModelConfig.rope_scaling`, part of what function a model is.

    kind                     see the module
    factor                   s: the new context length over the trained one, 1 or more; with kind="none" it is 1
    trained_context_length   L; only YaRN reads it
    fast_rotations, slow_rotations
                             turns over L from which YaRN keeps a frequency, and up to which it divides it: the
                             paper's beta and alpha, and its choice of them

    Raises ValueError for an unknown kind, and for numbers out of range.
    """

    kind: Kind = "none"
    factor: float = 1.0
    trained_context_length: int = 1024
    fast_rotations: float = 32.0
    slow_rotations: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"unknown RoPE scaling kind={self.kind!r}; choose one of: {', '.join(get_args(Kind))}")
        if not (math.isfinite(self.factor) and self.factor >= 1):
            raise ValueError(f"RoPE scaling factor={self.factor!r}: wanted 1 or more; 1 leaves all as it was")
        if self.kind == "none" and self.factor != 1:
            raise ValueError(
                f"RoPE scaling kind='none' with factor={self.factor!r}: choose a kind that scales, out of "
                f"{', '.join(get_args(Kind)[1:])}, or factor=1"
            )
        if self.trained_context_length < 1:
            raise ValueError(
                f"RoPE scaling trained_context_length={self.trained_context_length!r}: wanted the length in "
                f"tokens that the model was trained with, 1 or more"
            )
        if not 0 < self.slow_rotations < self.fast_rotations:
            raise ValueError(
                f"RoPE scaling slow_rotations={self.slow_rotations!r} and fast_rotations={self.fast_rotations!r}: "
                f"wanted 0 < slow_rotations < fast_rotations; the paper has 1 and 32"
            )

    def architecture(self) -> dict[str, str | float]:
        """The settings that decide what function a model is: the kind, and all others if that scales."""
        return {"kind": self.kind} if self.kind == "none" else asdict(self)


NO_SCALING = RopeScaling()
"""Frequencies as they are."""


def rope_frequencies(
    head_dim: int, theta: float, scaling: RopeScaling = NO_SCALING, device: torch.device | None = None
) -> Tensor:
    """Radians a position that each pair turns by: (D / 2,) in float64."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim
    frequencies = torch.pow(theta, -exponents)
    if scaling.kind == "none":
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "ntk":
        if head_dim < 4:
            raise ValueError(f"RoPE scaling 'ntk' wants head_dim of 4 or more, got {head_dim}; choose kind='linear'")
        return torch.pow(theta * scaling.factor ** (head_dim / (head_dim - 2)), -exponents)
    kept = _kept_share(head_dim, theta, scaling, device)
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies


def rope_temperature(scaling: RopeScaling) -> float:
    """Return the factor of cosines and sines, whose square multiplies the scores: YaRN's 0.1 ln s + 1; else 1."""
    if scaling.kind not in ("yarn", "yarn-rotations"):
        return 1.0
    return 0.1 * math.log(scaling.factor) + 1.0


def _kept_share(head_dim: int, theta: float, scaling: RopeScaling, device: torch.device | None) -> Tensor:
    """YaRN's g: (D / 2,), 1 where a pair keeps its frequency."""
    fast, slow, trained = scaling.fast_rotations, scaling.slow_rotations, scaling.trained_context_length
    if scaling.kind == "yarn-rotations":
        turns = rope_frequencies(head_dim, theta, device=device) * trained / (2 * math.pi)
        return ((turns - slow) / (fast - slow)).clamp(0, 1)

    def pair_that_turns(times: float) -> float:
        return head_dim * math.log(trained / (times * 2 * math.pi)) / (2 * math.log(theta))

    # The authors' code bounds the last pair by D - 1, though there are D / 2.
    first, last = max(math.floor(pair_that_turns(fast)), 0), min(math.ceil(pair_that_turns(slow)), head_dim - 1)
    pairs = torch.arange(head_dim // 2, dtype=torch.float64, device=device)
    return 1 - ((pairs - first) / max(last - first, 1e-3)).clamp(0, 1)
