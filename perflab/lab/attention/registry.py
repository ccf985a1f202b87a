"""What attention variants there are, and what each claims. The correctness suite holds them to it.

Shapes and equation: see the package. This module runs nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Unpack

import torch
from torch import Tensor

from perflab.lab.attention.scoring import Settings

_UP_TO_32_BIT = (torch.float32, torch.bfloat16, torch.float16)
_ALL = (torch.float64, *_UP_TO_32_BIT)

FEATURES = ("causal", "bottom-right", "window", "softcap", "grouped-heads")
"""What attention can be asked for beyond whole matrices; `scoring` says what each means."""
_EVERY_FEATURE = frozenset(FEATURES)


@dataclass(frozen=True, slots=True)
class Implementation:
    """One variant's claims.

    name           what `attention(impl=...)` takes
    summary        one line for a reader
    dtypes         the input dtypes that it accepts
    features       what it can be asked for, out of FEATURES
    gradients      it can be differentiated with respect to q, k and v
    logsumexp      `attention_with_logsumexp` can have its log-sum-exp
    needs_triton   it imports Triton, and wants a CUDA device or Triton's interpreter
    deterministic  the same inputs on the same machine give the same bits, gradients included
    """

    name: str
    summary: str
    dtypes: tuple[torch.dtype, ...] = _ALL
    features: frozenset[str] = _EVERY_FEATURE
    gradients: bool = True
    logsumexp: bool = True
    needs_triton: bool = False
    deterministic: bool = True


IMPLEMENTATIONS: Mapping[str, Implementation] = MappingProxyType(
    {
        implementation.name: implementation
        for implementation in (
            Implementation("reference", "the definition in float64, cast to the inputs' dtype"),
            Implementation("naive", "the definition written out in the inputs' dtype; holds N_q x N_k"),
            Implementation("tiled", "FlashAttention-2 forward and backward in plain PyTorch"),
            Implementation(
                "triton",
                "FlashAttention-2 forward and backward as Triton kernels",
                dtypes=_UP_TO_32_BIT,
                needs_triton=True,
            ),
            Implementation(
                "sdpa",
                "torch.nn.functional.scaled_dot_product_attention, PyTorch choosing the backend",
                features=frozenset(("causal", "grouped-heads")),
                logsumexp=False,
                # Its CUDA backwards add up dQ with atomics, in an order that differs from run to run.
                deterministic=False,
            ),
        )
    }
)


def needed_features(q: Tensor, k: Tensor, **settings: Unpack[Settings]) -> frozenset[str]:
    """Which of FEATURES these tensors and settings ask for."""
    is_causal, window_size = settings.get("is_causal", False), settings.get("window_size")
    has_window = window_size is not None and tuple(window_size) != (-1, -1)
    bottom_right = settings.get("causal_alignment") == "bottom-right"
    asked = {
        "causal": is_causal,
        # With equal lengths both alignments are one.
        "bottom-right": bottom_right and (is_causal or has_window) and q.shape[-2] != k.shape[-2],
        "window": has_window,
        "softcap": settings.get("softcap") is not None,
        "grouped-heads": q.shape[:-2] != k.shape[:-2],
    }
    return frozenset(name for name, wanted in asked.items() if wanted)


def require_features(claims: Implementation, needed: frozenset[str]) -> None:
    """NotImplementedError, with the variants that have them, where features are needed that this one lacks."""
    lacking = sorted(needed - claims.features)
    if lacking:
        able = ", ".join(name for name, other in IMPLEMENTATIONS.items() if needed <= other.features)
        raise NotImplementedError(
            f"attention impl {claims.name!r} has no {' and no '.join(lacking)}; choose one of: {able}"
        )


def get_implementation(impl: str) -> Implementation:
    """The variant of that name; ValueError with all the names where there is none."""
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"unknown attention impl {impl!r}; choose one of: {', '.join(IMPLEMENTATIONS)}")
    return IMPLEMENTATIONS[impl]
