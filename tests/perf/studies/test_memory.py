"""The study of memory: where it goes by context length, forward and training step, fp32 and bf16.

B batch, T sequence, d model width, L layers.

Parameters, autocast's copies of them, gradients, optimizer state, activations (what else autograd keeps, each storage
once) and, of a forward pass, the logits that it returns are counted apart, beside the peak of a call and the peak that
was predicted before anything was built.

The residual stream is a tensor of B T d 4 bytes in fp32, made anew by each of its 2 L sums: derived, and found among
the allocations of a forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from perflab import Perf
from perflab.lab.models import TransformerLM
from perflab.lab.models.memory import Mode
from perflab.lab.train import PRECISIONS, TrainingConfig, TrainingStep
from tests.perf.choice import context_lengths, study_model_name
from tests.perf.saved import saved_for_backward
from tests.perf.setup import DEFAULT_BATCH_SIZE, Setup, measure_step

MODES: tuple[Mode, ...] = ("forward", "train_step")
COLUMNS = (
    "parameters_bytes, weight_copies_bytes, gradients_bytes, optimizer_bytes, activations_bytes, logits_bytes, "
    "peak, predicted_bytes"
)
pytestmark = pytest.mark.perf(threshold=0.5)  # the peak is what counts


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every mode, length and precision."""
    if "mode" in metafunc.fixturenames:
        metafunc.parametrize("precision", ("fp32", "bf16"))
        metafunc.parametrize("context_length", context_lengths(metafunc.config))
        metafunc.parametrize("mode", MODES)


@pytest.fixture
def study(request: pytest.FixtureRequest, device: torch.device) -> Setup:
    """The model of the studies in fp32; its length and precision are the case's to change."""
    return Setup(study_model_name(request.config, device.type), DEFAULT_BATCH_SIZE, 128, device)


@pytest.mark.perf(study="memory", columns=COLUMNS)
def test_memory(perf: Perf, study: Setup, mode: Mode, context_length: int, precision: str) -> None:
    setup = Setup(
        study.model_name, DEFAULT_BATCH_SIZE, context_length, study.device, TrainingConfig(precision=precision)
    )
    setup.declare(perf, mode)
    step = setup.training_step()
    if setup.is_ours:
        perf.note(predicted_bytes=setup.cost(mode).memory_bytes)
    parameters = list(step.model.parameters())
    perf.note(parameters_bytes=total_bytes(parameters))
    forward = step.forward if mode == "train_step" else logits_of(setup, step)
    with saved_for_backward(parameters) as saved:
        result = forward()  # and with it everything that it saved
    perf.note(activations_bytes=saved.activations_bytes, weight_copies_bytes=saved.weight_copies_bytes)
    if mode == "forward":
        perf.note(logits_bytes=total_bytes([result]))
        del result
        perf(forward)
        return
    step.backward(result)
    del result
    perf.note(gradients_bytes=total_bytes(p.grad for p in parameters if p.grad is not None))
    step.optimizer()
    perf.note(optimizer_bytes=total_bytes(optimizer_state(step)))
    measure_step(perf, step)


def logits_of(setup: Setup, step: TrainingStep) -> Callable[[], Tensor]:
    """A forward pass alone: logits, with the graph behind them."""
    precision = PRECISIONS[setup.training.precision]
    model, tokens = step.model, step.tokens

    def forward() -> Tensor:
        with precision.applied(setup.device.type):
            logits: Tensor = model(tokens)
        return logits

    return forward


def total_bytes(tensors: Iterable[Tensor]) -> int:
    """Of distinct tensors."""
    return sum(tensor.numel() * tensor.itemsize for tensor in tensors)


def optimizer_state(step: TrainingStep) -> Iterable[Tensor]:
    """AdamW's moments, and its counters of steps."""
    for state in step.adamw.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))


@pytest.mark.perf(study="residual stream", columns="derived_bytes, sums, found")
def test_residual_stream(perf: Perf, study: Setup) -> None:
    if not study.is_ours:
        pytest.skip(f"the residual stream of {study.model_name} is not known")
    if perf.predicts:
        pytest.skip("a profile, for which it has to run")
    study.declare(perf, "forward")
    model, tokens = study.model(), study.tokens()
    assert isinstance(model, TransformerLM)
    derived_bytes = study.batch_size * study.context_length * study.config.d_model * torch.float32.itemsize
    model(tokens)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if study.device.type == "cuda" else [])]
    with profile(activities=activities, profile_memory=True) as profiled:
        logits = model(tokens)
    del logits
    on_device = "self_device_memory_usage" if study.device.type == "cuda" else "self_cpu_memory_usage"
    sums = [event for event in profiled.events() if event.name == "aten::add"]
    # CUDA's allocator may hand out a block that is up to 1 MiB larger, rather than split it.
    slack_bytes = 2**20 if study.device.type == "cuda" else 0
    found = sum(0 <= getattr(event, on_device) - derived_bytes <= slack_bytes for event in sums)
    perf.note(derived_bytes=derived_bytes, sums=len(sums), found=found)
    perf(model, tokens)
    assert found == 2 * study.config.num_layers
