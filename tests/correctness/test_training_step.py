"""The training step: it learns, its phases are the whole step, micro-batches are the batch, nothing stays behind."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from perflab.correctness import compare
from perflab.lab.models import build_model
from perflab.lab.train import TrainingConfig, TrainingStep, cross_entropy_loss, random_tokens

from .training import gradients_of, reference_gradients, tiny

pytestmark = pytest.mark.correctness


def make_step(device: torch.device, config: TrainingConfig | None = None) -> TrainingStep:
    torch.manual_seed(0)
    model = build_model("tiny", vocab_size=50, context_length=32, device=device)
    tokens = random_tokens(4, 32, vocab_size=50, device=device)
    return TrainingStep(model, tokens, config or TrainingConfig(learning_rate=3e-3))


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "pure-bf16"])
def test_ten_steps_on_one_batch_lower_its_loss(precision: str, device: torch.device) -> None:
    step = make_step(device, TrainingConfig(precision=precision, learning_rate=3e-3))
    losses = [step().item() for _ in range(10)]
    assert losses[-1] < 0.5 * losses[0]
    assert (step.steps_done, step.skipped_steps, step.loss_scale) == (10, 0, 1.0)


def test_the_three_phases_are_the_whole_step(device: torch.device) -> None:
    whole, phased = make_step(device), make_step(device)
    for _ in range(2):
        wanted = whole()
        loss = phased.forward()
        phased.backward(loss)
        phased.optimizer()
        torch.testing.assert_close(loss.detach(), wanted)
    for name, parameter in phased.model.named_parameters():
        torch.testing.assert_close(parameter, whole.model.get_parameter(name), msg=name)


def test_a_step_leaves_neither_gradients_nor_its_graph_behind(device: torch.device) -> None:
    step = make_step(device)
    outputs: list[weakref.ref[Tensor]] = []
    step.model.register_forward_hook(lambda module, inputs, output: outputs.append(weakref.ref(output)))
    loss = step()
    gc.collect()
    assert not loss.requires_grad
    assert all(parameter.grad is None for parameter in step.model.parameters())
    assert [output() for output in outputs] == [None]


@pytest.mark.parametrize("parts", [2, 4])
def test_the_gradients_of_micro_batches_add_up_to_that_of_the_batch(parts: int, device: torch.device) -> None:
    tokens = random_tokens(4, 16, vocab_size=50, device=device)
    plain = gradients_of(TrainingStep(tiny(device), tokens))
    got = gradients_of(TrainingStep(tiny(device), tokens, TrainingConfig(micro_batches=parts)))
    for name, wanted in reference_gradients(tiny(device), tokens).items():
        report = compare(name, got[name], wanted, plain[name])
        assert report.ok, str(report)


def test_the_loss_of_a_step_in_micro_batches_is_their_mean(device: torch.device) -> None:
    tokens = random_tokens(4, 16, vocab_size=50, device=device)
    step = TrainingStep(tiny(device), tokens, TrainingConfig(micro_batches=4))
    each = torch.stack([step.forward().detach() for _ in range(4)])
    assert each.unique().numel() == 4  # four different micro-batches
    torch.testing.assert_close(step(), each.mean())


def test_another_batch_begins_with_its_first_micro_batch(device: torch.device) -> None:
    first, second = (random_tokens(4, 16, vocab_size=50, seed=seed, device=device) for seed in (1, 2))
    seen: list[Tensor] = []
    step = TrainingStep(tiny(device), first, TrainingConfig(micro_batches=2))
    step.model.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    step.forward()
    step.tokens = second
    step()
    step(first)
    assert all(map(torch.equal, seen, [first[:2], second[:2], second[2:], first[:2], first[2:]]))


def test_an_update_in_the_middle_of_a_batch_is_refused(device: torch.device) -> None:
    step = TrainingStep(
        tiny(device), random_tokens(4, 16, vocab_size=50, device=device), TrainingConfig(micro_batches=4)
    )
    for _ in range(3):
        step.backward(step.forward())
    with pytest.raises(RuntimeError, match=r"after 3 of 4 micro-batches: call backward\(forward\(\)\) 1 more times"):
        step.optimizer()
    step.backward(step.forward())
    step.optimizer()
    with pytest.raises(RuntimeError, match=r"after 0 of 4 micro-batches: .* 4 more times, or the step itself"):
        step.optimizer()


class Listening(nn.Module):
    """A model of the user's own that heeds checkpointing, in that it remembers what it was told."""

    def __init__(self, checkpointing: str = "none") -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.table = nn.Embedding(50, 50)
        self.seen: list[str] = []

    def forward(self, tokens: Tensor) -> Tensor:
        self.seen.append(self.checkpointing)
        logits: Tensor = self.table(tokens)
        return logits


def test_a_model_hears_what_to_checkpoint() -> None:
    model, tokens = Listening(), random_tokens(2, 6, vocab_size=50)
    for checkpointing in ("selective", "every-block", "none"):
        TrainingStep(model, tokens, TrainingConfig(checkpointing=checkpointing))()
    assert model.seen == ["selective", "every-block", "none"]


def test_checkpointing_without_a_model_that_can_is_refused() -> None:
    model = nn.Embedding(50, 50)
    with pytest.raises(ValueError, match=r"'selective' wants a model with an attribute `checkpointing`.* Embedding"):
        TrainingStep(model, random_tokens(2, 6, vocab_size=50), TrainingConfig(checkpointing="selective"))


def test_a_model_of_ones_own_trains_with_every_switch_that_asks_nothing_of_it() -> None:
    config = TrainingConfig(
        precision="bf16", optimizer="foreach", micro_batches=2, max_grad_norm=1.0, warmup_steps=2, total_steps=5,
        loss_clamp=100.0, cudnn_benchmark=True, learning_rate=0.1,
    )  # fmt: skip
    step = TrainingStep(nn.Embedding(50, 50), random_tokens(4, 6, vocab_size=50), config)
    losses = [step().item() for _ in range(5)]
    assert losses == sorted(losses, reverse=True)


def test_tokens_come_from_the_seed_alone(device: torch.device) -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    tokens = random_tokens(8, 64, vocab_size=10, seed=1, device=device)
    assert (tokens.shape, tokens.dtype, tokens.device) == ((8, 64), torch.int64, device)
    assert tokens.unique().tolist() == list(range(10))
    assert torch.equal(tokens.cpu(), random_tokens(8, 64, vocab_size=10, seed=1))
    assert not torch.equal(tokens.cpu(), random_tokens(8, 64, vocab_size=10, seed=2))
    assert torch.equal(state, torch.get_rng_state())


def test_a_batch_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match=r"seq_len=0: wanted a positive integer; give seq_len=1 or more"):
        random_tokens(4, 0, vocab_size=10)


def test_a_loss_whose_shapes_do_not_belong_together_is_refused() -> None:
    logits = torch.randn(2, 5, 10)
    wanted = r"logits of shape \(2, 5, 10\) for tokens of shape \(2, 6\): wanted logits \(batch, sequence, voc"
    with pytest.raises(ValueError, match=wanted):
        cross_entropy_loss(logits, random_tokens(2, 6, vocab_size=10))
    with pytest.raises(ValueError, match=r"1 token have no next token to predict; give 2 tokens or more"):
        cross_entropy_loss(logits[:, :1], random_tokens(2, 1, vocab_size=10))


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Identity has no parameters; wanted a model that can be trained"):
        TrainingStep(nn.Identity(), random_tokens(2, 6, vocab_size=10))


def test_a_batch_on_another_device_is_refused() -> None:
    model = build_model("tiny", device="meta")
    with pytest.raises(ValueError, match=r"tokens on cpu, model on meta; move the batch with tokens.to\('meta'\)"):
        TrainingStep(model, random_tokens(2, 6, vocab_size=10))


def test_a_batch_of_another_shape_is_refused() -> None:
    model = nn.Embedding(50, 50)
    with pytest.raises(ValueError, match=r"tokens of shape \(6,\): wanted \(batch, sequence\)"):
        TrainingStep(model, random_tokens(1, 6, vocab_size=50)[0])
    wanted = r"6 sequences does not divide into micro_batches=4; give a multiple such as 8 sequences, or another micro"
    with pytest.raises(ValueError, match=wanted):
        TrainingStep(model, random_tokens(6, 6, vocab_size=50), TrainingConfig(micro_batches=4))
