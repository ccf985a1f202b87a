"""Models whose layers are predicted from a few: what comes out is what all of them do, event by event.

The whole is traced too, on fake tensors as on CUDA, and compared. What is not alike enough is run whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from perflab.plugin.exploring import Search
from perflab.predict.account import peak_of
from perflab.predict.prediction import ON_CUDA, Traced, traced
from perflab.predict.resized import Interpolated, Outline, outline_of
from perflab.predict.same import same
from tests.correctness.predicted import on_a_gpu, setup_of, work

pytestmark = pytest.mark.correctness

PLAIN = {"attention": "sdpa"}
GPT = {"norm": "layer", "positions": "learned", "feed_forward": "gelu", "tied_head": True}
SWITCHES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("train_step", {"precision": "fp32"}, PLAIN),
    ("train_step", {"precision": "tf32"}, {"attention": "naive"}),
    ("train_step", {"precision": "bf16"}, {"attention": "tiled"}),
    ("train_step", {"precision": "fp16"}, {"attention": "triton"}),
    ("train_step", {"precision": "pure-bf16"}, PLAIN),
    ("train_step", {"checkpointing": "every-block"}, {"attention": "naive"}),
    ("train_step", {"checkpointing": "selective", "precision": "bf16"}, PLAIN),
    ("train_step", {"optimizer": "foreach"}, PLAIN),
    ("train_step", {"optimizer": "foreach", "max_grad_norm": 1.0, "precision": "fp16"}, PLAIN),
    ("train_step", {"optimizer": "loop"}, PLAIN),
    ("train_step", {"optimizer": "loop", "max_grad_norm": 1.0}, PLAIN),
    ("train_step", {"optimizer": "fused", "max_grad_norm": 1.0, "micro_batches": 2}, PLAIN),
    ("train_step", {"fused_loss": True, "loss_clamp": 8.0}, {"fused_norm": True, "fused_feed_forward": True}),
    ("train_step", {}, GPT),
    ("train_step", {}, {"attention": "naive", "residual_dropout": 0.1, "attention_dropout": 0.1, "window": 16}),
    ("train_step", {}, {"num_kv_heads": 4}),
    ("forward", {"precision": "bf16"}, PLAIN),
    ("forward_backward", {}, {"attention": "naive"}),
]


def both(mode: str, training: dict[str, Any], changes: dict[str, Any]) -> tuple[Traced, Traced]:
    """Unrolled, and whole."""
    with on_a_gpu():
        setup = setup_of("small", device="cuda", training=training, num_layers=7, d_model=48, num_heads=12, d_ff=96, **changes)
        return traced(work(mode, setup), ON_CUDA), traced(work(mode, setup), ON_CUDA, whole=True)


@pytest.mark.parametrize(
    ("mode", "training", "changes"), SWITCHES, ids=["-".join(map(str, [m, *t.values(), *c.values()])) for m, t, c in SWITCHES]
)
def test_unrolled_is_the_whole_whatever_is_switched(mode: str, training: dict[str, Any], changes: dict[str, Any]) -> None:
    unrolled, whole = both(mode, training, changes)
    assert unrolled.layers_run == [3, 4]
    assert whole.layers_run == []
    assert same(unrolled.trace, whole.trace) is None
    assert unrolled.notes == []
