"""Attention variants side by side: forward; and forward and backward, each a phase, end to end.

Which shapes says ``--attention-grid``; what a case costs and who is measured stands in ``attention_cases``.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from perflab import Perf
from perflab.attention.candidate import Candidate

from .attention_cases import Shape, attention_variants, declare, device_type, function_of, grid, skipped_where_refused

pytestmark = pytest.mark.perf(budget=1, side_by_side="impl")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every variant on every shape, the variants of a shape one after the other."""
    if "impl" not in metafunc.fixturenames:
        return
    config = metafunc.config
    where = device_type(config)
    shapes = grid(config.getoption("--attention-grid"), where)
    cases = [(impl, shape) for shape in shapes for impl in attention_variants(config)]
    metafunc.parametrize(
        ("impl", "batch_size", "num_heads", "seq_len", "head_dim", "precision", "is_causal"),
        [
            (impl, at.batch_size, at.num_heads, at.seq_len, at.head_dim, at.precision, at.is_causal)
            for impl, at in cases
        ],
        ids=[f"{impl}-{shape.id}" for impl, shape in cases],
    )


@pytest.fixture
def shape(batch_size: int, num_heads: int, seq_len: int, head_dim: int, precision: str, is_causal: bool) -> Shape:
    """The case's problem, from its parameters."""
    return Shape(batch_size, num_heads, seq_len, head_dim, precision, is_causal)


@pytest.fixture
def measured(request: pytest.FixtureRequest, impl: str) -> Candidate:
    """The case's variant."""
    return attention_variants(request.config)[impl]


def test_attention(perf: Perf, device: torch.device, measured: Candidate, shape: Shape) -> None:
    declare(perf, measured, shape, backward=False)
    q, k, v = shape.inputs(device, requires_grad=False)
    with skipped_where_refused(measured):
        out = perf(function_of(measured), q, k, v, is_causal=shape.is_causal)
    assert out.shape == q.shape


def test_attention_backward(perf: Perf, device: torch.device, measured: Candidate, shape: Shape) -> None:
    """Forward and backward, each timed as a phase; the whole is end to end."""
    declare(perf, measured, shape, backward=True)
    q, k, v = shape.inputs(device, requires_grad=True)
    function = function_of(measured)
    upstream = torch.randn(q.shape, generator=torch.Generator(device).manual_seed(1), device=device).to(q)

    def backward(out: Tensor) -> None:
        torch.autograd.grad(out, (q, k, v), upstream)

    with skipped_where_refused(measured):
        perf.step(forward=lambda: function(q, k, v, is_causal=shape.is_causal), backward=backward)
