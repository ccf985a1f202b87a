"""From gradients to new weights: AdamW written out, the schedule, clipping, and steps that are not taken."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from perflab.correctness import compare
from perflab.lab.train import TrainingConfig, TrainingStep, cross_entropy_loss, learning_rate_at, random_tokens
from perflab.lab.train import step as step_module
from perflab.lab.train.loss import clamp_loss
from perflab.lab.train.skipping import WatchOnDevice, WatchOnHost
from perflab.predicted.cuda.fake import fake_tensors

from .training import gradients_of, reference_gradients, tiny

pytestmark = pytest.mark.correctness

OPTIMIZERS = ("loop", "foreach", "fused")
Weights = dict[str, Tensor]


class Bigram(nn.Module):
    """The smallest language model: logits = W E[token] + offset, with a switch that spoils them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(10, 8)
        self.head = nn.Linear(8, 10)
        self.factor = 1.0
        self.offset: Tensor | float = 0.0

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.table(tokens)) * self.factor + self.offset
        return logits


def bigram_step(device: torch.device, **switches: Any) -> TrainingStep:
    tokens = random_tokens(4, 6, vocab_size=10, device=device)
    return TrainingStep(Bigram().to(device), tokens, TrainingConfig(**switches))


def weights_of(step: TrainingStep) -> Weights:
    return {name: parameter.detach().clone() for name, parameter in step.model.named_parameters()}


def state_of(step: TrainingStep) -> dict[str, Tensor]:
    """Weights, moments and step counts; AdamW's state begins as zeros."""
    found = weights_of(step)
    for name, parameter in step.model.named_parameters():
        state = step.adamw.state[parameter]
        for key in ("exp_avg", "exp_avg_sq"):
            found[f"{name}.{key}"] = state[key].clone() if key in state else torch.zeros_like(parameter)
        found[f"{name}.step"] = state["step"].clone() if "step" in state else torch.zeros(())
    return found


# AdamW


def adamw(
    weights: Weights, gradients: list[Mapping[str, Tensor]], *, rate: float, decay: float, dtype: torch.dtype
) -> Weights:
    """Weights and moments after a step with each of these gradients, all in `dtype`.

    Loshchilov & Hutter 2019, algorithm 2.
    """
    beta1, beta2, eps = 0.9, 0.999, 1e-8
    found: Weights = {}
    for name, start in weights.items():
        w = start.to(dtype)
        m, v = torch.zeros_like(w), torch.zeros_like(w)
        for t, gradient in enumerate(gradients, start=1):
            g = gradient[name].to(dtype)
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g * g
            w = w - rate * ((m / (1 - beta1**t)) / (torch.sqrt(v / (1 - beta2**t)) + eps) + decay * w)
        found |= {name: w, f"{name}.exp_avg": m, f"{name}.exp_avg_sq": v}
    return found


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_five_steps_are_those_of_adamw_written_out(optimizer: str, device: torch.device) -> None:
    step = bigram_step(device, optimizer=optimizer, learning_rate=0.01, weight_decay=0.2)
    before, seen = weights_of(step), []
    for _ in range(5):
        seen.append({name: gradient.clone() for name, gradient in gradients_of(step).items()})
        step.optimizer()
    reference = adamw(before, seen, rate=0.01, decay=0.2, dtype=torch.float64)
    plain = adamw(before, seen, rate=0.01, decay=0.2, dtype=torch.float32)
    got = state_of(step)
    for name, wanted in reference.items():
        report = compare(name, got[name], wanted, plain[name])
        assert report.ok, str(report)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_optimizer_that_was_asked_for_is_the_one_that_runs(optimizer: str, device: torch.device) -> None:
    step = bigram_step(device, optimizer=optimizer)
    step.backward(step.forward())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step.optimizer()
    names = {event.key for event in profiler.key_averages()}
    seen = ("aten::_foreach_addcdiv_" in names, "aten::_fused_adamw_" in names)
    assert seen == (optimizer == "foreach", optimizer == "fused")


# The schedule


def test_the_learning_rate_rises_in_a_line_and_falls_along_half_a_cosine() -> None:
    rates = [learning_rate_at(t, peak=8.0, warmup_steps=4, total_steps=8, final_share=0.25) for t in range(10)]
    lower, upper = (2 + 6 * (1 - math.sqrt(0.5)) / 2, 2 + 6 * (1 + math.sqrt(0.5)) / 2)
    assert rates == pytest.approx([2, 4, 6, 8, 8, upper, 5, lower, 2, 2])


@settings(max_examples=50)
@given(st.integers(0, 20), st.integers(1, 40), st.floats(0, 1), st.floats(1e-6, 1))
def test_the_schedule_is_pytorchs(warmup: int, cosine: int, share: float, peak: float) -> None:
    adamw = torch.optim.AdamW([torch.zeros(1)], lr=peak)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(adamw, T_max=cosine, eta_min=share * peak)
    for t in range(warmup):
        assert learning_rate_at(t, peak=peak, warmup_steps=warmup) == pytest.approx(peak * (t + 1) / warmup)
    for t in range(warmup, warmup + cosine + 1):
        rate = learning_rate_at(t, peak=peak, warmup_steps=warmup, total_steps=warmup + cosine, final_share=share)
        assert rate == pytest.approx(falling.get_last_lr()[0], rel=1e-6, abs=1e-12)
        adamw.step()
        falling.step()


def test_without_a_total_the_rate_stays_at_its_peak() -> None:
    assert [learning_rate_at(t, peak=1.0, warmup_steps=2) for t in (0, 1, 2, 10**9)] == [0.5, 1.0, 1.0, 1.0]


def test_a_schedule_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r"step=-1: wanted 0 or more; the first step of a training run is 0"):
        learning_rate_at(-1, peak=1.0)
    with pytest.raises(ValueError, match=r"total_steps=3 with warmup_steps=3 leaves no step .* give total_steps=4"):
        learning_rate_at(0, peak=1.0, warmup_steps=3, total_steps=3)


def test_every_step_is_taken_with_its_rate_in_the_schedule(device: torch.device) -> None:
    schedule = {"warmup_steps": 2, "total_steps": 5}
    # The clamp leaves no gradient, so weights only decay: each step multiplies them by 1 - rate * decay.
    step = bigram_step(
        device, learning_rate=0.1, weight_decay=0.5, loss_clamp=1e-3, final_learning_rate_share=0.5, **schedule
    )
    wanted = step.model.head.weight.detach().double()
    for t in range(7):
        step()
        rate = learning_rate_at(t, peak=0.1, final_share=0.5, **schedule)
        assert step.adamw.param_groups[0]["lr"] == rate
        wanted = wanted * (1 - rate * 0.5)
        torch.testing.assert_close(step.model.head.weight.double(), wanted, rtol=1e-5, atol=0.0)
    assert (step.steps_done, step.skipped_steps) == (7, 0)


# Clipping


def clipped(gradients: Mapping[str, Tensor], most: float, dtype: torch.dtype) -> Weights:
    """g min(1, most / (|g| + 1e-6)), |g| over all gradients together (Pascanu et al. 2013, section 3.2)."""
    norm = torch.cat([gradient.to(dtype).flatten() for gradient in gradients.values()]).square().sum().sqrt()
    scale = torch.clamp(most / (norm + 1e-6), max=1.0)
    return {name: gradient.to(dtype) * scale for name, gradient in gradients.items()}


@pytest.mark.parametrize("switches", [{}, {"micro_batches": 2}, {"optimizer": "loop"}], ids=str)
@pytest.mark.parametrize("share", [0.3, 3.0], ids=["longer", "shorter"])
def test_the_whole_gradient_is_scaled_down_to_the_norm(
    share: float, switches: dict[str, Any], device: torch.device
) -> None:
    tokens = random_tokens(4, 16, vocab_size=50, device=device)
    gradients = gradients_of(TrainingStep(tiny(device), tokens, TrainingConfig(**switches)))
    most = share * torch.cat([gradient.flatten() for gradient in gradients.values()]).norm().item()
    step = TrainingStep(tiny(device), tokens, TrainingConfig(max_grad_norm=most, **switches))
    step()
    reference = clipped(gradients, most, torch.float64)
    plain = clipped(gradients, most, torch.float32)
    for name, parameter in step.model.named_parameters():
        # AdamW's first moment was nothing, so now it is a tenth of the gradient that it was given.
        got = step.adamw.state[parameter]["exp_avg"]
        report = compare(name, got, (1 - 0.9) * reference[name], (1 - 0.9) * plain[name])
        assert report.ok, str(report)


# Steps that are not taken


@pytest.fixture(params=["loop", "foreach", "fused", "fused-on-device"])
def optimizer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """AdamW's ways, and the fused one with the answer kept where the values are, as it is on a GPU."""
    name: str = request.param
    if name == "fused-on-device":
        monkeypatch.setattr(step_module, "watch_for", lambda optimizer, parameter: WatchOnDevice(parameter.device))
    return name.removesuffix("-on-device")


@pytest.mark.parametrize("spoilt", [float("inf"), float("nan")])
@pytest.mark.parametrize("parts", [1, 2])
def test_a_step_with_a_loss_that_is_not_finite_is_skipped_and_counted(
    optimizer: str, spoilt: float, parts: int, device: torch.device
) -> None:
    step = bigram_step(device, optimizer=optimizer, micro_batches=parts, learning_rate=0.1)
    assert isinstance(step.model, Bigram)
    untouched = state_of(step)
    step.model.factor = spoilt
    assert not math.isfinite(step().item())  # the very first
    assert_same(state_of(step), untouched)
    step.model.factor = 1.0
    losses = [step().item() for _ in range(3)]
    before = state_of(step)
    for part in range(parts):  # one of the micro-batches is enough
        step.model.factor = spoilt if part == 0 else 1.0
        step.backward(step.forward())
    step.optimizer()
    assert_same(state_of(step), before)
    assert all(parameter.grad is None for parameter in step.model.parameters())
    assert (step.skipped_steps, step.steps_done) == (2, 5)
    step.model.factor = 1.0
    losses += [step().item() for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    assert step.skipped_steps == 2
    assert {state["step"].item() for state in step.adamw.state.values()} == {6.0}


def test_an_infinite_loss_with_finite_gradients_is_skipped_too(optimizer: str, device: torch.device) -> None:
    for precision in ("fp32", "fp16"):
        step = bigram_step(device, optimizer=optimizer, precision=precision)
        assert isinstance(step.model, Bigram)
        step.model.offset = torch.zeros(10, device=device).index_fill(0, step.tokens[0, 1], float("-inf"))
        before = state_of(step)
        loss = step.forward()
        assert loss.item() == float("inf")
        step.backward(loss)
        assert all(parameter.grad.isfinite().all() for parameter in step.model.parameters())
        step.optimizer()
        assert_same(state_of(step), before)
        assert step.skipped_steps == 1


def test_a_norm_that_is_not_finite_cannot_be_clipped_to_and_skips_the_step(
    optimizer: str, device: torch.device
) -> None:
    step = bigram_step(device, optimizer=optimizer, max_grad_norm=1.0)
    before = state_of(step)
    step.backward(step.forward())
    next(step.model.parameters()).grad[0, 0] = float("inf")
    step.optimizer()
    assert_same(state_of(step), before)
    assert step.skipped_steps == 1


class Rooted(Bigram):
    """Logits sqrt(0) higher: they are finite, and the gradient of what is under the root is not."""

    def __init__(self) -> None:
        super().__init__()
        self.square = nn.Parameter(torch.zeros(10))

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = super().forward(tokens) + self.square.sqrt()
        return logits


@pytest.mark.parametrize("switches", [{"max_grad_norm": 1e30}, {"precision": "fp16"}], ids=str)
def test_a_gradient_that_is_not_finite_skips_the_step_where_it_is_clipped_or_its_loss_scaled(
    switches: dict[str, Any], optimizer: str, device: torch.device
) -> None:
    tokens = random_tokens(4, 6, vocab_size=10, device=device)
    step = TrainingStep(Rooted().to(device), tokens, TrainingConfig(optimizer=optimizer, **switches))
    before = state_of(step)
    assert math.isfinite(step().item())
    assert_same(state_of(step), before)
    assert step.skipped_steps == 1


def test_without_either_the_loss_alone_is_watched_and_later_steps_are_skipped(
    optimizer: str, device: torch.device
) -> None:
    tokens = random_tokens(4, 6, vocab_size=10, device=device)
    step = TrainingStep(Rooted().to(device), tokens, TrainingConfig(optimizer=optimizer))
    assert math.isfinite(step().item())
    assert step.skipped_steps == 0
    assert not step.model.square.isfinite().any()
    assert not math.isfinite(step().item())
    assert step.skipped_steps == 1


def test_a_norm_that_is_far_above_one_is_not_clipped_by_1e30(device: torch.device) -> None:
    watched, plain = bigram_step(device, max_grad_norm=1e30), bigram_step(device)
    for step in (watched, plain):
        step.model.factor = 1e3  # type: ignore[assignment]
        step()
    assert_same(state_of(watched), state_of(plain))


def test_an_update_that_fails_leaves_no_skipping_behind(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    step, watch = bigram_step(device), WatchOnDevice(device)
    monkeypatch.setattr(step.adamw, "step", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        watch.update(step.adamw)
    assert not hasattr(step.adamw, "found_inf")


@pytest.mark.parametrize("optimizer", ["loop", "foreach", "fused"])
@pytest.mark.parametrize("max_grad_norm", [None, 1.0])
def test_a_step_that_skips_nothing_reads_no_value_and_counts_what_plain_pytorch_does(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, optimizer: str, max_grad_norm: float | None
) -> None:
    step = bigram_step(device, optimizer=optimizer, max_grad_norm=max_grad_norm, skip_non_finite=False)
    step()
    read: list[Tensor] = []
    item = Tensor.item
    monkeypatch.setattr(Tensor, "item", lambda value: (read.append(value), item(value))[1])
    step.backward(step.forward())
    assert read == []
    step.optimizer()
    steps = [state["step"] for state in step.adamw.state.values()]
    assert all(any(value is one for one in steps) for value in read), "AdamW's own count of steps, which is the host's"
    step.model.factor = math.inf  # type: ignore[assignment]
    step()
    assert step.skipped_steps == 0


@pytest.mark.parametrize("optimizer", ["loop", "fused"])
def test_loss_scaling_skips_a_step_that_overflows_whatever_else_is_skipped(
    device: torch.device, optimizer: str
) -> None:
    step = bigram_step(device, precision="fp16", optimizer=optimizer, skip_non_finite=False)
    step.model.factor = math.inf  # type: ignore[assignment]
    step()
    assert step.skipped_steps == 1


def test_only_a_fused_optimizer_on_a_gpu_keeps_the_answer_there() -> None:
    elsewhere = torch.empty(1, device="meta")
    assert isinstance(step_module.watch_for("fused", torch.empty(1)), WatchOnHost)
    assert isinstance(step_module.watch_for("foreach", elsewhere), WatchOnHost)
    assert isinstance(step_module.watch_for("fused", elsewhere), WatchOnDevice)


@pytest.mark.parametrize("optimizer", ["fused", "foreach", "loop"])
def test_a_step_on_fake_tensors_asks_for_no_number(optimizer: str) -> None:
    with fake_tensors():
        step = bigram_step(torch.device("cpu"), optimizer=optimizer, max_grad_norm=1.0)
        loss = step()
    assert loss.shape == ()
    assert step.steps_done == 1


# Loss scaling


@pytest.mark.parametrize("max_grad_norm", [None, 100.0])
def test_steps_whose_scaled_gradients_overflow_are_skipped_until_the_scale_is_small_enough(
    optimizer: str, max_grad_norm: float | None, device: torch.device
) -> None:
    step = bigram_step(device, precision="fp16", optimizer=optimizer, learning_rate=0.01, max_grad_norm=max_grad_norm)
    with torch.no_grad():
        step.model.table.weight.mul_(1000.0)  # float16 ends at 65,504
    before, scale = state_of(step), step.loss_scale
    first = step().item()
    assert_same(state_of(step), before)
    assert (step.skipped_steps, step.loss_scale) == (1, scale / 2)
    for _ in range(15):
        step()
    skipped = step.skipped_steps
    assert 1 < skipped < 16
    assert step.loss_scale == scale / 2**skipped
    assert step().item() < first


def test_gradients_are_scaled_back_before_they_are_used(device: torch.device) -> None:
    tokens = random_tokens(4, 16, vocab_size=50, device=device)
    reference = reference_gradients(tiny(device), tokens)
    model = tiny(device)
    with torch.autocast(device.type, dtype=torch.float16):
        loss = cross_entropy_loss(model(tokens), tokens)
    plain = dict(zip(reference, torch.autograd.grad(loss, list(model.parameters())), strict=True))
    # A clip that would take hold of the gradient only if that were still scaled, by 65,536.
    norm = torch.cat([gradient.flatten() for gradient in reference.values()]).norm().item()
    step = TrainingStep(tiny(device), tokens, TrainingConfig(precision="fp16", max_grad_norm=2 * norm))
    step()
    assert step.skipped_steps == 0
    for name, parameter in step.model.named_parameters():  # AdamW's first moment: a tenth of what it was given
        report = compare(name, step.adamw.state[parameter]["exp_avg"] * 10, reference[name], plain[name])
        assert report.ok, str(report)


# The clamp


def test_a_loss_above_the_clamp_teaches_nothing(device: torch.device) -> None:
    step = bigram_step(device, loss_clamp=0.5)
    loss = step.forward()
    assert loss.item() == 0.5
    step.backward(loss)
    assert all(not parameter.grad.any() for parameter in step.model.parameters())


def test_a_loss_below_the_clamp_is_as_it_is_without(device: torch.device) -> None:
    with_clamp, without = bigram_step(device, loss_clamp=100.0), bigram_step(device)
    assert torch.equal(with_clamp.forward(), without.forward())
    assert_same(gradients_of(with_clamp), gradients_of(without))


@pytest.mark.parametrize("spoilt", [float("inf"), float("nan")])
def test_a_clamp_does_not_hide_what_is_not_finite(spoilt: float, device: torch.device) -> None:
    step = bigram_step(device, loss_clamp=0.5)
    assert isinstance(step.model, Bigram)
    before = state_of(step)
    step.model.factor = spoilt
    step()
    assert_same(state_of(step), before)
    assert step.skipped_steps == 1
    assert torch.equal(clamp_loss(torch.tensor(float("inf")), 0.5), torch.tensor(float("inf")))


def assert_same(got: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    assert got.keys() == wanted.keys()
    assert [name for name in wanted if not torch.equal(got[name], wanted[name])] == []
