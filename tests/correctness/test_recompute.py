"""Activation checkpointing: the same gradients to the bit, out of less that is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from perflab.lab.models import CHECKPOINTING, MODEL_SIZES, ModelConfig, TransformerLM
from perflab.lab.train import cross_entropy_loss, random_tokens

pytestmark = pytest.mark.correctness

TINY = replace(MODEL_SIZES["tiny"], vocab_size=97, context_length=64)
DROPOUT = {"attention_dropout": 0.2, "residual_dropout": 0.1, "embedding_dropout": 0.1}
POLICIES = CHECKPOINTING[1:]


def make_model(config: ModelConfig, device: torch.device, checkpointing: str) -> TransformerLM:
    torch.manual_seed(0)
    with device:
        model = TransformerLM(config).train()
    model.checkpointing = checkpointing
    return model


def tokens_for(device: torch.device) -> Tensor:
    return random_tokens(2, 40, vocab_size=97, device=device)


def gradients(config: ModelConfig, device: torch.device, checkpointing: str, **compiled: Any) -> dict[str, Tensor]:
    """Of every parameter; forward and backward from one seed."""
    model, tokens = make_model(config, device, checkpointing), tokens_for(device)
    call = torch.compile(model, **compiled) if compiled else model
    torch.manual_seed(1)
    cross_entropy_loss(call(tokens), tokens).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("dropout", [{}, DROPOUT], ids=["", "dropout"])
@pytest.mark.parametrize("impl", ["sdpa", "naive"])
@pytest.mark.parametrize("policy", POLICIES)
def test_gradients_are_bitwise_those_without_it(
    policy: str, impl: str, dropout: dict[str, float], device: torch.device
) -> None:
    if device.type != "cpu":
        pytest.skip("promised where sums have one order: CUDA kernels may add up with atomics")
    config = replace(TINY, attention=impl, **dropout)  # type: ignore[arg-type]
    wanted, found = gradients(config, device, "none"), gradients(config, device, policy)
    assert found.keys() == wanted.keys() == dict(make_model(config, device, policy).named_parameters()).keys()
    for name in wanted:
        assert torch.equal(found[name], wanted[name]), name


@pytest.mark.parametrize("impl", ["sdpa", "naive", "tiled"])
def test_every_block_keeps_less_than_selective_and_that_less_than_none(impl: str) -> None:
    held = [bytes_held(replace(TINY, attention=impl), policy) for policy in ("none", "selective", "every-block")]
    assert held[0] > 1.2 * held[1]
    assert held[1] > 1.2 * held[2]


def test_a_block_that_runs_again_keeps_its_input_alone() -> None:
    """Two layers more keep two tensors (B, T, d) of float32 more, and two states of the generator."""
    more = bytes_held(replace(TINY, num_layers=4), "every-block") - bytes_held(TINY, "every-block")
    assert more == 2 * (2 * 40 * 64 * 4 + torch.get_rng_state().nbytes)


def test_selective_keeps_nothing_of_the_square_of_the_sequence() -> None:
    def held(seq_len: int) -> int:
        return bytes_held(replace(TINY, attention="naive"), "selective", seq_len)

    # Linear in T, up to a few bytes: a number for each pair would make 2 layers x 2 x 4 heads x 4 B x 2 x 16^2 more.
    assert abs((held(64) - held(48)) - (held(48) - held(32))) < 1000


@pytest.mark.parametrize("policy", CHECKPOINTING)
def test_the_checkpoint_of_the_weights_knows_nothing_of_it(policy: str, device: torch.device) -> None:
    wanted, found = (make_model(TINY, device, chosen).state_dict() for chosen in ("none", policy))
    assert list(found) == list(wanted)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("policy", POLICIES)
def test_it_is_heeded_in_training_with_gradients_alone(policy: str, device: torch.device) -> None:
    model, tokens = make_model(TINY, device, policy), tokens_for(device)
    runs: list[int] = []
    model.blocks[0].register_forward_pre_hook(lambda module, inputs: runs.append(1))

    def blocks_run(training: bool, gradients: bool) -> int:
        runs.clear()
        model.train(training)
        with torch.set_grad_enabled(gradients):
            loss = cross_entropy_loss(model(tokens), tokens)
        if gradients:
            loss.backward()
        return len(runs)

    assert blocks_run(training=True, gradients=True) == 2
    assert blocks_run(training=False, gradients=True) == 1
    assert blocks_run(training=True, gradients=False) == 1


@pytest.mark.parametrize("policy", CHECKPOINTING)
def test_it_compiles_without_a_graph_break_to_the_same_gradients(policy: str, device: torch.device) -> None:
    torch._dynamo.reset()
    config = replace(TINY, num_layers=1)
    wanted = gradients(config, device, "none")
    found = gradients(config, device, policy, fullgraph=True, backend="aot_eager")
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], msg=name)


def test_blocks_that_are_compiled_apart_can_be_checkpointed(device: torch.device) -> None:
    torch._dynamo.reset()
    wanted = gradients(TINY, device, "none")
    model, tokens = make_model(TINY, device, "every-block"), tokens_for(device)
    for position, block in enumerate(model.blocks):
        model.blocks[position] = torch.compile(block, backend="aot_eager")  # type: ignore[assignment]
    cross_entropy_loss(model(tokens), tokens).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name.replace("_orig_mod.", "")], msg=name)


def test_attention_that_draws_is_computed_again(device: torch.device) -> None:
    """Kept, it would not draw the second time, and what is dropped after it would be other numbers."""
    from perflab.lab.models.recompute import _policy

    q = torch.empty(1, 1, 4, 8)
    for operator, before in (
        (torch.ops.aten._scaled_dot_product_flash_attention.default, (q, q, q)),
        (torch.ops.aten._scaled_dot_product_efficient_attention.default, (q, q, q, None, True)),
        (torch.ops.aten._scaled_dot_product_cudnn_attention.default, (q, q, q, None, True)),
    ):
        assert _policy(None, operator, *before, 0.1).name == "PREFER_RECOMPUTE"
        assert _policy(None, operator, *before, dropout_p=0.1).name == "PREFER_RECOMPUTE"
        assert _policy(None, operator, *before, 0.0).name == "MUST_SAVE"
        assert _policy(None, operator, *before).name == "MUST_SAVE"


def test_a_product_into_memory_that_it_was_given_is_computed_again() -> None:
    """Kept, it would not be written the second time; nor does what is kept stay, where that memory is used again."""
    from perflab.lab.models.recompute import _policy

    x = torch.empty(4, 4)
    assert _policy(None, torch.ops.aten.mm.default, x, x).name == "MUST_SAVE"
    assert _policy(None, torch.ops.aten.mm.out, x, x, out=x).name == "PREFER_RECOMPUTE"
    assert _policy(None, torch.ops.aten.addmm.out, x, x, x, out=x).name == "PREFER_RECOMPUTE"


def test_an_unknown_policy_is_refused_with_the_choices(device: torch.device) -> None:
    model = make_model(TINY, device, "selective")
    with pytest.raises(ValueError, match="checkpointing='all': wanted one of none, every-block, selective"):
        model.checkpointing = "all"
    assert model.checkpointing == "selective"


def bytes_held(config: ModelConfig, policy: str, seq_len: int = 40) -> int:
    """What a forward pass in training leaves allocated on a CPU while its loss is alive.

    Counted by the allocator: what the selective policy keeps, autograd's hooks for saved tensors do not see.
    """
    model = make_model(config, torch.device("cpu"), policy)
    tokens = random_tokens(2, seq_len, vocab_size=97)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        logits = model(tokens)
    assert logits.requires_grad
    assert profiler.profiler is not None
    assert profiler.profiler.kineto_results is not None
    return sum(event.nbytes() for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]")
