"""The training step: it learns, its phases are the whole step, and it leaves nothing behind."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from perflab.lab.models import build_model
from perflab.lab.train import TrainingStep, cross_entropy_loss, random_tokens

pytestmark = pytest.mark.correctness


def make_step(device: torch.device, autocast_dtype: torch.dtype | None = None) -> TrainingStep:
    torch.manual_seed(0)
    model = build_model("tiny", vocab_size=50, context_length=32, device=device)
    tokens = random_tokens(4, 32, vocab_size=50, device=device)
    return TrainingStep(model, tokens, learning_rate=3e-3, autocast_dtype=autocast_dtype)


@pytest.mark.parametrize("autocast_dtype", [None, torch.bfloat16], ids=["fp32", "bf16-autocast"])
def test_ten_steps_on_one_batch_lower_its_loss(autocast_dtype: torch.dtype | None, device: torch.device) -> None:
    step = make_step(device, autocast_dtype)
    losses = [step().item() for _ in range(10)]
    assert losses[-1] < 0.5 * losses[0]


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


def test_autocast_runs_the_products_in_bfloat16_and_the_loss_in_float32(device: torch.device) -> None:
    step = make_step(device, torch.bfloat16)
    dtypes: list[torch.dtype] = []
    step.model.register_forward_hook(lambda module, inputs, output: dtypes.append(output.dtype))
    assert step.forward().dtype == torch.float32
    assert dtypes == [torch.bfloat16]


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
    with pytest.raises(ValueError, match=r"1 token have no next token to foresee; give 2 tokens or more"):
        cross_entropy_loss(logits[:, :1], random_tokens(2, 1, vocab_size=10))


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Identity has no parameters; wanted a model that can be trained"):
        TrainingStep(nn.Identity(), random_tokens(2, 6, vocab_size=10))


def test_a_batch_on_another_device_is_refused() -> None:
    model = build_model("tiny", device="meta")
    with pytest.raises(ValueError, match=r"tokens on cpu, model on meta; move the batch with tokens.to\('meta'\)"):
        TrainingStep(model, random_tokens(2, 6, vocab_size=10))


def test_float16_autocast_is_refused_for_want_of_loss_scaling(device: torch.device) -> None:
    with pytest.raises(ValueError, match=r"torch.float16: wanted torch.bfloat16 or None; .* loss scaling"):
        make_step(device, torch.float16)
