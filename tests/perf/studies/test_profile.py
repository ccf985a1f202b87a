"""The study of where the time goes: profiles of a forward pass and of a training step, as the model is computed.

The model is written out in fp32 first; then with bf16, with PyTorch's fused attention, with both, and compiled. Each
case is profiled after it has been measured, so what the profile adds up to stands beside the timer's own reading.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from perflab import Perf
from perflab.lab.models.memory import Mode
from perflab.lab.train import PRECISIONS
from tests.perf.attention_cases import device_type
from tests.perf.choice import study_model_name
from tests.perf.setup import COMPILE_SECONDS, DEFAULT_BATCH_SIZE, Setup, measure_step

CONTEXT_LENGTH = 128
MODES: tuple[Mode, ...] = ("inference", "train_step")


@dataclass(frozen=True)
class How:
    """One way to compute the same model."""

    name: str
    training: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


WAYS = (
    How("written out", changes={"attention": "naive"}),
    How("written out, bf16", {"precision": "bf16"}, {"attention": "naive"}),
    How("SDPA", changes={"attention": "sdpa"}),
    How("SDPA, bf16", {"precision": "bf16"}, {"attention": "sdpa"}),
    How("compiled", {"compile": "default"}, {"attention": "sdpa"}),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every mode, each way."""
    if "how" in metafunc.fixturenames:
        ours = ":" not in study_model_name(metafunc.config, device_type(metafunc.config))
        metafunc.parametrize("how", WAYS if ours else WAYS[-1:], ids=str)
        metafunc.parametrize("mode", MODES)


@pytest.mark.perf(study="where the time goes", columns="median, forward, backward, optimizer", profile=True, budget=4)
def test_profile(perf: Perf, request: pytest.FixtureRequest, device: torch.device, mode: Mode, how: How) -> None:
    setup = Setup(study_model_name(request.config, device.type), DEFAULT_BATCH_SIZE, CONTEXT_LENGTH, device)
    compiled = "compile" in how.training
    setup = setup.switched(training=how.training if mode == "train_step" or not compiled else {}, changes=how.changes)
    seconds = COMPILE_SECONDS[device.type] if compiled else 0.0
    setup.declare(perf, mode, setup_calls=1 if compiled else 0, setup_seconds=seconds)
    if mode == "train_step":
        step = setup.training_step()
        if compiled:
            step()
        measure_step(perf, step)
        return
    model, tokens = setup.model().eval(), setup.tokens()
    run = torch.compile(model) if compiled else model
    precision = PRECISIONS[setup.training.precision]

    def forward() -> Any:
        with torch.inference_mode(), precision.applied(device.type):
            return run(tokens)

    if compiled:
        forward()
    perf(forward)
