"""End to end: a forward pass, forward and backward, and a full training step with AdamW."""

from __future__ import annotations

import pytest
from torch import Tensor

from perflab.lab.train import PRECISIONS
from perflab.plugin.case import Perf
from tests.perf.conftest import Setup


@pytest.mark.perf(budget=10)
def test_forward(perf: Perf, setup: Setup) -> None:
    """Logits with the graph behind them, as the first phase of training makes them."""
    setup.declare(perf, "forward")
    precision, tokens = PRECISIONS[setup.precision], setup.tokens()
    model = precision.prepare(setup.model())

    def forward() -> Tensor:
        with precision.applied(setup.device.type):
            logits: Tensor = model(tokens)
        return logits

    logits = perf(forward)
    assert logits.shape[:2] == tokens.shape


def test_step(perf: Perf, setup: Setup) -> None:
    """Forward, backward, AdamW."""
    setup.declare(perf, "train_step")
    step = setup.training_step()
    loss = perf.step(forward=step.forward, backward=step.backward, optimizer=step.optimizer)
    assert loss.ndim == 0


def test_forward_backward(perf: Perf, setup: Setup) -> None:
    """Loss and gradients; the gradients are added to those of the call before, as in accumulation."""
    setup.declare(perf, "forward_backward")
    step = setup.training_step()
    loss = perf.step(forward=step.forward, backward=step.backward)
    assert loss.ndim == 0
