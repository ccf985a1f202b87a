"""What attention variants there are, and what each claims. The correctness suite holds them to it.

Shapes and equation: see the package. This module runs nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

_UP_TO_32_BIT = (torch.float32, torch.bfloat16, torch.float16)
_ALL = (torch.float64, *_UP_TO_32_BIT)


@dataclass(frozen=True, slots=True)
class Implementation:
    """One variant's claims.

    name           what `attention(impl=...)` takes
    summary        one line for a reader
    dtypes         the input dtypes that it accepts
    gradients      it can be differentiated with respect to q, k and v
    logsumexp      `attention_with_logsumexp` can have its log-sum-exp
    needs_triton   it imports Triton, and wants a CUDA device or Triton's interpreter
    deterministic  the same inputs on the same machine give the same bits, gradients included
    """

    name: str
    summary: str
    dtypes: tuple[torch.dtype, ...] = _ALL
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
                logsumexp=False,
                # Its CUDA backwards add up dQ with atomics, in an order that differs from run to run.
                deterministic=False,
            ),
        )
    }
)


def get_implementation(impl: str) -> Implementation:
    """The variant of that name; ValueError with all the names where there is none."""
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"unknown attention impl {impl!r}; choose one of: {', '.join(IMPLEMENTATIONS)}")
    return IMPLEMENTATIONS[impl]
