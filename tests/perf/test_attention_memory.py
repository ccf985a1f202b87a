"""Attention's memory against length: the peak of a step, and what the forward saves for the backward.

Shapes: q, k, v (B, H, N, D), causal. ``growth`` fits bytes = a N² + b N + c to what they note, below the table.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from perflab import Perf
from perflab.lab.attention import IMPLEMENTATIONS, attention

from .attention_cases import Shape, device_type, skip_unpredictable
from .growth import STUDY
from .saved import saved_for_backward

VARIANTS = ("naive", "tiled", "triton", "sdpa")

# Its peak is what counts. That of the record has the inputs in it too.
pytestmark = pytest.mark.perf(budget="300ms", threshold=0.5, study=STUDY, columns="step_peak_bytes, saved_bytes")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Lengths that double, to where the square no longer fits on a GPU."""
    where = device_type(metafunc.config)
    lengths = [2**power for power in (range(10, 17) if where == "cuda" else range(7, 11))]
    metafunc.parametrize(("impl", "seq_len"), [(impl, length) for impl in VARIANTS for length in lengths])


def test_attention_memory(
    perf: Perf, device: torch.device, impl: str, seq_len: int, memory_snapshot: Callable[..., object]
) -> None:
    skip_unpredictable(perf, impl, seq_len)
    if IMPLEMENTATIONS[impl].needs_triton and device.type == "cpu":
        pytest.skip("interpreted here, with NumPy's memory")
    heads, precision = (8, "bf16") if device.type == "cuda" else (2, "fp32")
    inputs = Shape(1, heads, seq_len, 64, precision).inputs(device, requires_grad=True)
    upstream = torch.ones_like(inputs[0])

    def forward() -> Tensor:
        return attention(*inputs, is_causal=True, impl=impl)

    def backward(out: Tensor) -> None:
        torch.autograd.grad(out, inputs, upstream)

    backward(forward())  # libraries set themselves up in the first call
    with saved_for_backward() as saved:
        out = forward()
    del out
    with memory_snapshot(f"attention-{impl}-{seq_len}") as snapshot:  # type: ignore[attr-defined]
        backward(forward())
    perf.note(step_peak_bytes=snapshot.peak_bytes, saved_bytes=saved.total_bytes)
    perf.step(forward=forward, backward=backward)
