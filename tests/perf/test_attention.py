"""Attention variants side by side, over sequence length and head dimension.

Shapes: q, k, v (B, H, N, D). FLOPs: 4 B H N² D forward, half of it when causal; backward 2.5 times that
(FlashAttention-2, section 4.1).
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from perflab.lab.attention import IMPLEMENTATIONS, attention
from perflab.plugin.case import Perf

BATCH, HEADS = 1, 8
ON_CUDA = torch.cuda.is_available()
ON_A_GPU = [(1024, 64), (4096, 64), (16384, 64), (1024, 128), (4096, 128), (16384, 128)]
ON_A_CPU = [(256, 64), (1024, 64), (256, 128)]
DTYPE = torch.bfloat16 if ON_CUDA else torch.float32
# float64 is the definition, and nobody's choice for speed.
VARIANTS = [name for name in IMPLEMENTATIONS if name != "reference"]

pytestmark = [
    pytest.mark.perf(budget=1),
    pytest.mark.parametrize("impl", VARIANTS),
    pytest.mark.parametrize(("seq_len", "head_dim"), ON_A_GPU if ON_CUDA else ON_A_CPU),
]


def _inputs(seq_len: int, head_dim: int, device: torch.device, *, requires_grad: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (BATCH, HEADS, seq_len, head_dim)
    drawn = [torch.randn(shape, generator=generator).to(device, DTYPE) for _ in range(3)]
    return [tensor.requires_grad_(requires_grad) for tensor in drawn]


def _declare(perf: Perf, impl: str, seq_len: int, head_dim: int, factor: float) -> None:
    if IMPLEMENTATIONS[impl].needs_triton and perf.device.type == "cpu":
        pytest.skip("interpreted here, so its time says nothing")
    flops = factor * 0.5 * 4 * BATCH * HEADS * seq_len**2 * head_dim
    scores_bytes = BATCH * HEADS * seq_len**2 * DTYPE.itemsize if impl == "naive" else 0
    perf.requires(flops=flops, memory_bytes=4 * factor * scores_bytes, precision=DTYPE)
    perf.work(flops=flops)


def test_attention(perf: Perf, device: torch.device, impl: str, seq_len: int, head_dim: int) -> None:
    _declare(perf, impl, seq_len, head_dim, factor=1.0)
    q, k, v = _inputs(seq_len, head_dim, device, requires_grad=False)
    out = perf(attention, q, k, v, is_causal=True, impl=impl)
    assert out.shape == q.shape


def test_attention_backward(perf: Perf, device: torch.device, impl: str, seq_len: int, head_dim: int) -> None:
    """Forward and backward, each timed as a phase."""
    _declare(perf, impl, seq_len, head_dim, factor=3.5)
    q, k, v = _inputs(seq_len, head_dim, device, requires_grad=True)
    upstream = torch.randn(q.shape, generator=torch.Generator().manual_seed(1)).to(q)

    def backward(out: Tensor) -> None:
        torch.autograd.grad(out, (q, k, v), upstream)

    perf.step(forward=lambda: attention(q, k, v, is_causal=True, impl=impl), backward=backward)
