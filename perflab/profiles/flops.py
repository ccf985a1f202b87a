"""Multiplications and additions of an operator, from the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any


def flops_of(name: str, shapes: Sequence[Sequence[int]]) -> int:
    """By the formulas of PyTorch's own counter; 0 where it has none, or needs more than shapes of inputs."""
    formula = _formula(name)
    if formula is None:
        return 0
    try:
        return int(formula(*(list(shape) for shape in shapes if shape)))
    except (TypeError, ValueError, IndexError, AssertionError):
        return 0


@cache
def _formula(name: str) -> Callable[..., Any] | None:
    import torch

    from perflab.torch_internals import flop_registry, sdpa_backward_flop, sdpa_flop

    namespace, _, base = name.partition("::")
    if namespace != "aten":
        return None
    own: dict[str, Callable[..., Any]] = {
        "_scaled_dot_product_flash_attention_for_cpu": lambda *shapes: sdpa_flop(*shapes[:3]),
        "_scaled_dot_product_flash_attention_for_cpu_backward": lambda *shapes: sdpa_backward_flop(*shapes[:4]),
    }
    if base in own:
        return own[base]
    found: Callable[..., Any] | None = flop_registry.get(getattr(torch.ops.aten, base, None))
    return found
