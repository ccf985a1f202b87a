"""The definition of attention itself, kept: small results in float64 that no change may move unseen."""

from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion

from perflab.correctness.golden import GoldenTensors
from perflab.lab.attention import reference_attention

pytestmark = pytest.mark.correctness

SETTINGS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"is_causal": True},
    "bottom-right": {"is_causal": True, "causal_alignment": "bottom-right"},
    "window": {"window_size": (1, 1)},
    "softcap": {"softcap": 1.5, "scale": 0.7},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_the_definition_of_attention_stands(settings: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    """Five queries over three keys, four heads over two; inputs without a random generator."""
    q, k, v = (
        torch.sin(torch.arange(heads * length * 4, dtype=torch.float64) * step + phase).reshape(1, heads, length, 4)
        for heads, length, step, phase in ((4, 5, 1.1, 0.3), (2, 3, 0.7, 0.9), (2, 3, 1.9, 0.1))
    )
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out, logsumexp = reference_attention(*leaves, **settings)
    dq, dk, dv = torch.autograd.grad(out.square().sum(), leaves)
    results = {"out": out, "logsumexp": logsumexp, "dq": dq, "dk": dk, "dv": dv}
    assert results == snapshot.use_extension(GoldenTensors)
