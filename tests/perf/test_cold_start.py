"""The warm-up study: what the first steps of a process cost, and how many it takes until that is over.

Each case runs in a process of its own, where nothing is warm. After 0, 1, 2 or 5 steps samples are taken of one
step each: the first one, the mean and the standard deviation tell whether the warm-up was enough.
"""

from __future__ import annotations

import pytest

from perflab import Perf

from .published import warmup_quotes
from .setup import Setup

WARMUP_STEPS = (0, 1, 2, 5)

pytestmark = pytest.mark.perf(study="warm-up", columns="first, median, mean, std, quoted")


@pytest.mark.parametrize(
    "warmup_steps",
    [pytest.param(steps, marks=pytest.mark.perf(warmup=steps, fresh_process=True, budget=5)) for steps in WARMUP_STEPS],
)
def test_warmup(perf: Perf, setup: Setup, warmup_steps: int) -> None:
    if perf.predicts:
        pytest.skip("a study of first steps, and a prediction is of a warm one")
    setup.declare(perf, "forward_backward")
    if (setup.batch_size, setup.context_length) == (4, 128):
        for source, seconds in warmup_quotes(setup.model_name, warmup_steps).items():
            perf.quote(source, seconds=seconds)
    step = setup.training_step()
    perf.step(forward=step.forward, backward=step.backward)
