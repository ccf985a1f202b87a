"""The end-to-end study: a forward pass, forward and backward, and a full training step with AdamW.

Every size that --model names, by context length and precision, beside what others measured on the same work.
"""

from __future__ import annotations

import pytest
from torch import Tensor

from perflab.lab.models.memory import Mode
from perflab.lab.train import PRECISIONS
from perflab.plugin.case import Perf

from .published import transformer_quotes
from .setup import Setup, measure_step

pytestmark = pytest.mark.perf(
    study="end to end", columns="mean, std, forward, backward, optimizer, tokens/s, MFU, peak, quoted"
)


def declare(perf: Perf, setup: Setup, mode: Mode) -> None:
    """What the case needs and does, and what others measured on it."""
    setup.declare(perf, mode)
    shape = (setup.model_name, setup.batch_size, setup.context_length, setup.training.precision)
    for source, seconds in transformer_quotes(*shape, mode).items():
        perf.quote(source, seconds=seconds)


@pytest.mark.perf(budget=10)
def test_forward(perf: Perf, setup: Setup) -> None:
    """Logits with the graph behind them, as the first phase of training makes them."""
    declare(perf, setup, "forward")
    model, tokens = setup.model(), setup.tokens()
    precision = PRECISIONS[setup.training.precision]

    def forward() -> Tensor:
        with precision.applied(setup.device.type):
            logits: Tensor = model(tokens)
        return logits

    logits = perf(forward)
    assert logits.shape[:2] == tokens.shape


def test_step(perf: Perf, setup: Setup) -> None:
    """Forward, backward, AdamW."""
    declare(perf, setup, "train_step")
    loss = measure_step(perf, setup.training_step())
    assert loss.ndim == 0


def test_forward_backward(perf: Perf, setup: Setup) -> None:
    """Loss and gradients; the gradients are added to those of the call before, as in accumulation."""
    declare(perf, setup, "forward_backward")
    step = setup.training_step()
    loss = perf.step(forward=step.forward, backward=step.backward)
    assert loss.ndim == 0
