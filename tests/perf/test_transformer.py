"""The end-to-end study: a forward pass, forward and backward, and a full training step with AdamW.

Every size that --model names, by context length and precision, beside what others measured on the same work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from torch import Tensor, nn

from perflab import Perf
from perflab.lab.experts.mixture import usage_facts
from perflab.lab.models.memory import Mode
from perflab.lab.train import PRECISIONS

from .published import transformer_quotes
from .setup import Setup, phases_of

pytestmark = pytest.mark.perf(
    study="end to end",
    columns="mean, std, forward, backward, optimizer, tokens/s, MFU, peak, quoted",
    versus="precision=fp32",
)


class Built(NamedTuple):
    """What is measured on a set-up, a callable or the phases of a step, and its model."""

    work: Any
    model: nn.Module


Build = Callable[[Setup], Built]


def measure(perf: Perf, setup: Setup, mode: Mode, build: Build) -> Tensor:
    """Measure what is built, once it has said what it needs and does, what others measured, and how it is resized."""
    setup.declare(perf, mode)
    shape = (setup.model_name, setup.batch_size, setup.context_length, setup.training.precision)
    for source, seconds in transformer_quotes(*shape, mode).items():
        perf.quote(source, seconds=seconds)
    if mode != "forward_backward":  # what of that fits lies between the other two
        perf.fits(
            lambda **switches: build(setup.resized(**switches)).work,
            sizes={"batch_size": setup.batch_size, "context_length": setup.context_length},
            remedies=setup.remedies(mode),
        )
    work, model = build(setup)
    result: Tensor = perf.step(**work) if isinstance(work, dict) else perf(work)
    if not perf.predicts:  # which has no numbers
        perf.note(**usage_facts(model))
    return result


def forward_of(setup: Setup) -> Built:
    """Logits with the graph behind them, as the first phase of training makes them."""
    model, tokens = setup.model(), setup.tokens()
    precision = PRECISIONS[setup.training.precision]

    def forward() -> Tensor:
        with precision.applied(setup.device.type):
            logits: Tensor = model(tokens)
        return logits

    return Built(forward, model)


def forward_backward_of(setup: Setup) -> Built:
    """Loss and gradients; the gradients are added to those of the call before, as in accumulation."""
    step = setup.training_step()
    return Built({"forward": step.forward, "backward": step.backward}, step.model)


def step_of(setup: Setup) -> Built:
    """Forward, backward, AdamW."""
    step = setup.training_step()
    return Built(phases_of(step), step.model)


@pytest.mark.perf(budget=10)
def test_forward(perf: Perf, setup: Setup) -> None:
    logits = measure(perf, setup, "forward", forward_of)
    assert logits.shape[:2] == (setup.batch_size, setup.context_length)


def test_step(perf: Perf, setup: Setup) -> None:
    loss = measure(perf, setup, "train_step", step_of)
    assert loss.ndim == 0


def test_forward_backward(perf: Perf, setup: Setup) -> None:
    loss = measure(perf, setup, "forward_backward", forward_backward_of)
    assert loss.ndim == 0
