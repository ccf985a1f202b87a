"""Precisions of a training step: which dtypes there are in it, and that PyTorch's switches are put back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perflab.correctness import compare
from perflab.lab.train import PRECISIONS, TrainingConfig, TrainingStep, cross_entropy_loss, random_tokens

from .training import gradients_of, tiny

pytestmark = pytest.mark.correctness


@pytest.fixture(autouse=True)
def ambient() -> Iterator[tuple[str, bool]]:
    """Switches that are set otherwise than the step sets them: what was there must be there again."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.benchmark = True
    yield "medium", True
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.benchmark = before[1]


def switches() -> tuple[str, bool]:
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark


class Watched(nn.Module):
    """Notes the switches while it runs, forward and backward, and may fail there."""

    def __init__(self, fail: str = "") -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)
        self.fail = fail
        self.seen: dict[str, tuple[str, bool]] = {}
        self.dtype: torch.dtype | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.table(tokens))
        self.dtype = logits.dtype
        logits.register_hook(lambda gradient: self.note("backward"))
        self.note("forward")
        return logits

    def note(self, phase: str) -> None:
        self.seen[phase] = switches()
        if phase == self.fail:
            raise RuntimeError(f"failed in {phase}")


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"precision": "fp32"}, ("highest", False)),
        ({"precision": "tf32"}, ("high", False)),
        ({"precision": "bf16", "cudnn_benchmark": True}, ("highest", True)),
    ],
    ids=str,
)
@pytest.mark.parametrize("fail", ["", "forward", "backward"])
def test_global_switches_hold_during_a_step_and_are_put_back_even_if_it_fails(
    fail: str, settings: dict[str, Any], wanted: tuple[str, bool], ambient: tuple[str, bool]
) -> None:
    step = TrainingStep(Watched(fail), random_tokens(2, 6, vocab_size=50), TrainingConfig(**settings))
    if fail:
        with pytest.raises(RuntimeError, match=f"failed in {fail}"):
            step()
    else:
        step()
    phases = ("forward",) if fail == "forward" else ("forward", "backward")
    assert step.model.seen == dict.fromkeys(phases, wanted)
    assert switches() == ambient


@pytest.mark.parametrize("name", PRECISIONS)
def test_a_precision_is_applied_to_a_forward_pass_alone_too(name: str, ambient: tuple[str, bool]) -> None:
    precision = PRECISIONS[name]
    x, weight = torch.ones(2, 2, dtype=precision.weights), torch.ones(2, 2, dtype=precision.weights)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # somebody else's, around it
        with precision.applied("cpu"):
            assert torch.get_float32_matmul_precision() == ("high" if name == "tf32" else "highest")
            product = (x @ weight).dtype
        assert (x @ weight).dtype == torch.bfloat16
    assert product == (precision.autocast or precision.weights)
    assert switches() == ambient
    with pytest.raises(KeyError), precision.applied("cpu"):
        raise KeyError
    assert switches() == ambient
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


@pytest.mark.parametrize("name", PRECISIONS)
def test_every_dtype_of_a_step_is_the_precisions(name: str) -> None:
    weights = torch.bfloat16 if name == "pure-bf16" else torch.float32
    products = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(name, weights)
    model = Watched()
    step = TrainingStep(model, random_tokens(2, 6, vocab_size=50), TrainingConfig(precision=name))
    loss = step.forward()
    step.backward(loss)
    assert loss.dtype == torch.float32
    assert model.dtype == products
    assert {parameter.dtype for parameter in model.parameters()} == {weights}
    assert {parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None} == {weights}
    step.optimizer()
    states = list(step.adamw.state.values())
    assert len(states) == 3
    assert {state[moment].dtype for state in states for moment in ("exp_avg", "exp_avg_sq")} == {weights}
    assert {parameter.dtype for parameter in model.parameters()} == {weights}


def test_weights_are_cast_where_they_differ_and_only_there() -> None:
    model = Watched()
    model.register_buffer("table_of_angles", torch.ones(3, dtype=torch.float64))
    assert PRECISIONS["bf16"].prepare(model) is model
    assert model.table_of_angles.dtype == torch.float64
    assert PRECISIONS["fp32"].prepare(Watched().bfloat16()).table.weight.dtype == torch.float32


@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_fused_loss_gives_the_gradients_of_pytorchs_within_budget(precision: str, device: torch.device) -> None:
    tokens = random_tokens(2, 16, vocab_size=50, device=device)
    logits = torch.randn(2, 16, 50, device=device).to(PRECISIONS[precision].autocast or torch.float32)

    def loss_and_gradient(logits: Tensor, fused: bool) -> tuple[Tensor, Tensor]:
        leaf = logits.clone().requires_grad_()
        loss = cross_entropy_loss(leaf, tokens, fused=fused)
        return loss.detach(), torch.autograd.grad(loss, leaf)[0]

    names = ("loss", "dlogits")
    reference, plain = loss_and_gradient(logits.double(), fused=False), loss_and_gradient(logits, fused=False)
    for name, got, wanted, usual in zip(names, loss_and_gradient(logits, fused=True), reference, plain, strict=True):
        report = compare(name, got, wanted, usual)
        assert report.ok, str(report)


@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
def test_the_switch_for_the_fused_loss_runs_the_kernel(device: torch.device) -> None:
    tokens = random_tokens(2, 16, vocab_size=50, device=device)
    ran = []
    for fused in (False, True):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            gradients_of(TrainingStep(tiny(device), tokens, TrainingConfig(fused_loss=fused)))
        names = {event.key for event in profiler.key_averages()}
        ran.append({"perflab::cross_entropy", "perflab::cross_entropy_backward"} <= names)
    assert ran == [False, True]
