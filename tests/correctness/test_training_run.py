"""A training run on real text: it learns what unigrams cannot know, and comes out the same from the same seed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import pytest
import torch
from torch import Tensor, nn

from perflab.lab.models import build_model
from perflab.lab.train import (
    TextDataset,
    TextLoader,
    TrainingConfig,
    TrainingRun,
    TrainingStep,
    cross_entropy_loss,
    evaluate,
    standard_library_text,
    train,
    unigram_entropy,
)
from perflab.lab.train.text import VOCAB_SIZE

pytestmark = pytest.mark.correctness


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextDataset:
    return standard_library_text(tmp_path_factory.mktemp("text"))


def byte_model(seq_len: int) -> nn.Module:
    return build_model("tiny", vocab_size=VOCAB_SIZE, context_length=seq_len)


def step_on(model: nn.Module, batch: Tensor) -> TrainingStep:
    """A training step that takes its batch."""
    return TrainingStep(model, batch, TrainingConfig(learning_rate=3e-3))


@dataclass(frozen=True)
class Trained:
    model: nn.Module
    run: TrainingRun


def trained(text: TextDataset, *, seed: int, num_steps: int, batch_size: int = 4, seq_len: int = 128) -> Trained:
    torch.manual_seed(seed)
    model = byte_model(seq_len)
    batches = TextLoader(text.train, batch_size=batch_size, seq_len=seq_len, seed=seed)
    step = step_on(model, torch.zeros(batch_size, seq_len, dtype=torch.int64))
    return Trained(model, train(step, batches, num_steps))


def test_a_few_hundred_steps_foresee_text_never_seen_far_better_than_its_unigrams_do(text: TextDataset) -> None:
    found = trained(text, seed=0, num_steps=300)
    unseen = evaluate(found.model, islice(TextLoader(text.held_out, batch_size=8, seq_len=128), 16))
    # Begins worse than even odds, ln 256 = 5.5; ends at 2.0 to 2.3, where unigrams know 3.1 and bigrams 2.4.
    assert found.run.losses[0] > 5
    assert unseen < unigram_entropy(text.held_out) - 0.6
    assert found.run.final_loss(50) < unigram_entropy(text.train) - 0.6
    assert found.run.tokens == 300 * 4 * 128


def test_a_run_is_the_same_to_the_last_bit_from_one_seed_and_another_from_another(text: TextDataset) -> None:
    one, again, other = (trained(text, seed=seed, num_steps=5, seq_len=32) for seed in (0, 0, 1))
    assert one.run == again.run
    assert one.run.losses != other.run.losses
    for name, parameter in one.model.named_parameters():
        assert torch.equal(parameter, again.model.get_parameter(name)), name


def test_each_step_takes_the_next_batch_and_no_batch_is_taken_beyond_them() -> None:
    seen = []
    batches = iter([torch.full((1, 4), value) for value in range(5)])

    def step(tokens: Tensor) -> Tensor:
        seen.append(tokens[0, 0].item())
        return tokens.double().mean()

    run = train(step, batches, 3)
    assert seen == [0, 1, 2]
    assert run == TrainingRun(losses=(0.0, 1.0, 2.0), tokens=12)
    assert next(batches)[0, 0].item() == 3
    assert run.final_loss(2) == 1.5
    assert run.final_loss(99) == 1.0


def test_a_step_may_hand_out_its_loss_in_the_same_memory_every_time() -> None:
    loss = torch.zeros(())
    assert train(lambda tokens: loss.add_(1), [torch.zeros(1, 4)] * 3, 3).losses == (1.0, 2.0, 3.0)


def test_a_run_that_cannot_be_is_refused() -> None:
    batch = torch.zeros(1, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"num_steps=0: give num_steps=1 or more"):
        train(lambda tokens: torch.zeros(()), [batch], 0)
    with pytest.raises(ValueError, match=r"the batches ended after 1 of 3 steps; give an endless iterator"):
        train(lambda tokens: torch.zeros(()), [batch], 3)
    with pytest.raises(ValueError, match=r"returned a loss that holds its graph.*return loss\.detach\(\)"):
        train(lambda tokens: torch.zeros((), requires_grad=True), [batch], 1)
    with pytest.raises(ValueError, match=r"steps=0: wanted a mean of 1 step or more"):
        TrainingRun((1.0,), 4).final_loss(0)


def test_evaluation_is_the_mean_loss_over_foreseen_tokens_without_dropout_or_gradients() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 11), nn.Dropout(0.5))
    batches = [torch.randint(0, 11, (2, 9)), torch.randint(0, 11, (3, 5))]
    foreseen = [2 * 8, 3 * 4]
    losses = [cross_entropy_loss(model[0](batch), batch).item() for batch in batches]
    wanted = sum(loss * count for loss, count in zip(losses, foreseen, strict=True)) / sum(foreseen)
    assert evaluate(model, batches) == pytest.approx(wanted, rel=1e-6)
    assert model.training
    assert model[0].weight.grad is None
    model.eval()
    evaluate(model, batches)
    assert not model.training


def test_evaluation_on_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no batches to evaluate on; give one or more"):
        evaluate(nn.Embedding(4, 4), [])
