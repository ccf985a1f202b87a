"""The operators of recurrent mixers, in chunks of PyTorch, in Triton, and as others publish them, where that installs.

Shapes: q, k, decay of channels (B, H, T, K); v (B, H, T, V); x, dt (B, T, E); b, c (B, T, N); a (E, N).

Rivals are the kernels of flash-linear-attention and mamba-ssm on the same inputs, each in the layout that its functions
take without a copy: fla's (B, T, H, K), which is what a layer's projection gives, and mamba-ssm's (B, E, T).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from perflab import Perf
from perflab.lab.recurrence import linear_recurrence
from perflab.lab.scan import selective_scan

Operator = Callable[..., Tensor]
IMPLS = ("chunked", "triton", pytest.param("rival", marks=pytest.mark.perf(last=True)))
"""Rivals come last: theirs are tuned when they are called first, which takes minutes."""


@dataclass(frozen=True)
class Sizes:
    """B sequences of T tokens; H heads of K x V, or E channels of N states."""

    batch_size: int
    seq_len: int
    num_heads: int = 16
    width_k: int = 64
    width_v: int = 128
    num_states: int = 16


ON_A_GPU, ON_A_CPU = Sizes(8, 2048), Sizes(1, 256, num_heads=4, width_k=16, width_v=32, num_states=8)


def sizes_on(device: torch.device) -> Sizes:
    return ON_A_CPU if device.type == "cpu" else ON_A_GPU


def rival(module: str, name: str) -> Any:
    """A function of a package of others. Their packages want a GPU to be loaded at all."""
    return getattr(pytest.importorskip(module, reason=f"{module.partition('.')[0]} is not installed"), name)


def heads_first(*tensors: Tensor) -> list[Tensor]:
    """(B, T, H, ...) seen as (B, H, T, ...)."""
    return [x.transpose(1, 2) for x in tensors]


def recurrence(impl: str, module: str, name: str) -> Operator:
    """The gated linear recurrence of q, k, v, decay and a bonus, as the lab has it or a function of fla has."""
    if impl == "rival":
        theirs = rival(module, name)
        return lambda q, k, v, decay, *bonus: theirs(q, k, v, decay, *bonus, scale=1.0)[0]

    def ours(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, *bonus: Tensor) -> Tensor:
        extra = {"bonus": bonus[0]} if bonus else {}
        return linear_recurrence(*heads_first(q, k, v, decay), form=impl, **extra)[0]

    return ours


def scan(impl: str) -> Operator:
    """Mamba's selective scan."""
    if impl == "rival":
        theirs = rival("mamba_ssm.ops.selective_scan_interface", "selective_scan_fn")
        return lambda x, dt, a, b, c: theirs(x.mT, dt.mT, a, b.mT, c.mT).mT
    return lambda x, dt, a, b, c: selective_scan(x, dt, a, b, c, form=impl)[0]


def draw_recurrence(sizes: Sizes, device: torch.device, *, per_channel: bool, with_bonus: bool) -> list[Tensor]:
    """q, k, v, decay (float32, below zero), and the bonus (H, K) if there is one."""
    generator = torch.Generator(device).manual_seed(0)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16

    def one(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)

    rows = (sizes.batch_size, sizes.seq_len, sizes.num_heads)
    keys = (*rows, sizes.width_k)
    decay = F.logsigmoid(one(*(keys if per_channel else rows), dtype=torch.float32))
    bonus = [one(sizes.num_heads, sizes.width_k, dtype=torch.float32)] if with_bonus else []
    return [one(*keys) * sizes.width_k**-0.5, one(*keys), one(*rows, sizes.width_v), decay, *bonus]


def draw_scan(sizes: Sizes, device: torch.device, *, in_time: bool) -> list[Tensor]:
    """x, dt (above zero), a (below zero), b, c; time is the innermost dimension ``in_time``."""
    generator = torch.Generator(device).manual_seed(0)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    rows, channels = (sizes.batch_size, sizes.seq_len), sizes.num_heads * sizes.width_v

    def one(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)

    a = -torch.exp(one(channels, sizes.num_states, dtype=torch.float32))
    b, c = one(*rows, sizes.num_states), one(*rows, sizes.num_states)
    x, dt = one(*rows, channels), F.softplus(one(*rows, channels))
    return [x if x is a or not in_time else x.mT.contiguous().mT for x in (x, dt, a, b, c)]


def operator_and_inputs(operator: str, impl: str, device: torch.device) -> tuple[Operator, list[Tensor]]:
    """The function that is measured, and what it takes. Nothing stands in for another: what cannot run is skipped."""
    if impl != "chunked" and device.type == "cpu":
        pytest.skip("in Triton's interpreter, so its time means nothing" if impl == "triton" else "wants a GPU")
    sizes = sizes_on(device)
    if operator == "scan":
        return scan(impl), draw_scan(sizes, device, in_time=impl == "rival")
    module, name = {
        "gla": ("fla.ops.gla", "chunk_gla"),
        "retention": ("fla.ops.simple_gla", "chunk_simple_gla"),
        "rwkv6": ("fla.ops.rwkv6", "chunk_rwkv6"),
    }[operator]
    drawn = draw_recurrence(sizes, device, per_channel=operator != "retention", with_bonus=operator == "rwkv6")
    return recurrence(impl, module, name), drawn


pytestmark = [
    pytest.mark.perf(budget=1, side_by_side="impl"),
    pytest.mark.parametrize("impl", IMPLS),
    pytest.mark.parametrize("operator", ["gla", "retention", "rwkv6", "scan"]),
]


def test_recurrence(perf: Perf, device: torch.device, operator: str, impl: str) -> None:
    function, inputs = operator_and_inputs(operator, impl, device)
    with torch.no_grad():
        out = perf(function, *inputs)
    sizes = sizes_on(device)
    assert out.numel() == sizes.batch_size * sizes.seq_len * sizes.num_heads * sizes.width_v


def test_recurrence_backward(perf: Perf, device: torch.device, operator: str, impl: str) -> None:
    """Forward and backward, each timed as a phase."""
    function, inputs = operator_and_inputs(operator, impl, device)
    leaves = [x.requires_grad_() for x in inputs]
    with torch.no_grad():
        upstream = torch.ones_like(function(*inputs))

    def backward(out: Tensor) -> None:
        torch.autograd.grad(out, leaves, upstream)

    perf.step(forward=lambda: function(*inputs), backward=backward)
