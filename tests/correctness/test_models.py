"""`TransformerLM` held to its equations: each part to its formula in float64, the whole to what must hold."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from perflab.lab.models import MODEL_SIZES, ModelConfig, TransformerLM, build_model
from perflab.lab.models.transformer import RMSNorm, RotaryEmbedding, SwiGLU
from perflab.lab.train import cross_entropy_loss, random_tokens

pytestmark = pytest.mark.correctness

TINY = replace(MODEL_SIZES["tiny"], vocab_size=97, context_length=48)


def make_model(config: ModelConfig, device: torch.device, seed: int = 0) -> TransformerLM:
    torch.manual_seed(seed)
    with device:
        return TransformerLM(config)


def tokens_for(config: ModelConfig, device: torch.device, *, seq_len: int = 40, seed: int = 0) -> Tensor:
    return random_tokens(3, seq_len, vocab_size=config.vocab_size, seed=seed, device=device)


def test_rms_norm_is_its_formula_in_float64(device: torch.device) -> None:
    norm = RMSNorm(12, eps=1e-5).to(device, torch.float64)
    torch.manual_seed(0)
    nn.init.normal_(norm.gain)
    x = torch.randn(5, 7, 12, device=device, dtype=torch.float64)
    root = (x.pow(2).sum(-1) / 12 + 1e-5).sqrt()
    torch.testing.assert_close(norm(x), x / root[..., None] * norm.gain, rtol=1e-14, atol=0)


def test_rms_norm_of_bfloat16_is_the_float32_result_rounded_once(device: torch.device) -> None:
    norm = RMSNorm(64, eps=1e-5).to(device)
    x = torch.randn(9, 64, device=device).bfloat16() * 300  # squares near 1e5, where bfloat16 steps by 512
    assert torch.equal(norm(x), norm(x.float()).bfloat16())


def test_swiglu_is_its_formula_in_float64(device: torch.device) -> None:
    layer = SwiGLU(TINY).to(device, torch.float64)
    x = torch.randn(6, TINY.d_model, device=device, dtype=torch.float64)
    gate = x @ layer.gate.weight.T
    wanted = (gate / (1 + torch.exp(-gate)) * (x @ layer.up.weight.T)) @ layer.down.weight.T
    torch.testing.assert_close(layer(x), wanted, rtol=1e-12, atol=1e-14)


def test_rope_turns_each_pair_like_a_complex_number(device: torch.device) -> None:
    head_dim, length, theta = 8, 300, 10_000.0
    rope = RotaryEmbedding(head_dim, length, theta).to(device)
    x = torch.randn(2, length, 3, head_dim, device=device, dtype=torch.float64)
    position = torch.arange(length, device=device, dtype=torch.float64)
    frequency = theta ** (-2 / head_dim * torch.arange(head_dim // 2, device=device, dtype=torch.float64))
    turn = torch.polar(torch.ones_like(position)[:, None], torch.outer(position, frequency))
    wanted = torch.view_as_complex(x.view(2, length, 3, -1, 2)) * turn[:, None]
    # The tables are float32: each of the two products in a component is off by at most eps / 2 of its factor.
    allowed = torch.finfo(torch.float32).eps * x.abs().max().item()
    assert (rope(x) - torch.view_as_real(wanted).flatten(-2)).abs().max() <= allowed


def test_rope_scores_depend_on_the_distance_alone(device: torch.device) -> None:
    length, head_dim = 64, 16
    rope = RotaryEmbedding(head_dim, length, 10_000.0).to(device)
    q, k = torch.randn(2, 1, 1, 1, head_dim, device=device, dtype=torch.float64)
    turned_q, turned_k = (rope(x.expand(1, length, 1, head_dim))[0, :, 0] for x in (q, k))
    scores = turned_q @ turned_k.T
    allowed = 4 * torch.finfo(torch.float32).eps * q.norm() * k.norm()  # two float32 table entries a factor
    for distance in range(-length + 1, length):
        diagonal = scores.diagonal(distance)
        assert (diagonal - diagonal[0]).abs().max() <= allowed, distance
    assert scores[0, 0] != pytest.approx(scores[0, 1].item())


def test_rope_tables_survive_a_cast_and_a_move_from_meta(device: torch.device) -> None:
    model = make_model(TINY, device)
    cos, sin = model.rope.cos.clone(), model.rope.sin.clone()
    assert model.bfloat16().rope.cos.dtype == torch.float32
    with torch.device("meta"):
        moved = TransformerLM(TINY).to_empty(device=device)
    for rope in (model.rope, moved.rope):
        assert torch.equal(rope.cos, cos)
        assert torch.equal(rope.sin, sin)
    assert not [name for name in model.state_dict() if "rope" in name]


def test_sequences_of_a_batch_do_not_see_each_other(device: torch.device) -> None:
    model, tokens = make_model(TINY, device), tokens_for(TINY, device)
    changed = tokens.clone()
    changed[0] = changed[0].flip(0)
    assert torch.equal(model(tokens)[1:], model(changed)[1:])


def test_a_fresh_model_knows_nothing_and_says_so(device: torch.device) -> None:
    # Logits of variance 1 over V tokens: the expected loss is ln V + 1/2.
    config = replace(TINY, vocab_size=1000)
    tokens = tokens_for(config, device)
    loss = cross_entropy_loss(make_model(config, device)(tokens), tokens)
    assert loss.item() == pytest.approx(math.log(1000) + 0.5, abs=0.3)


def test_the_residual_stream_does_not_grow_with_depth(device: torch.device) -> None:
    def final_scale(num_layers: int) -> float:
        config = replace(TINY, num_layers=num_layers)
        model = make_model(config, device)
        seen: list[Tensor] = []
        model.norm.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
        model(tokens_for(config, device))
        return seen[0].square().mean().sqrt().item()

    assert final_scale(24) == pytest.approx(final_scale(2), rel=0.2)


def test_the_model_compiles_under_a_default_device_too(device: torch.device) -> None:
    torch._dynamo.reset()
    model, tokens = make_model(TINY, device), tokens_for(TINY, device)
    with device:
        logits = torch.compile(model, fullgraph=True, backend="eager")(tokens)
    assert torch.equal(logits, model(tokens))


def test_a_sequence_longer_than_the_context_is_refused(device: torch.device) -> None:
    with pytest.raises(ValueError, match=r"49 tokens is longer than context_length=48; build the model with"):
        make_model(TINY, device)(tokens_for(TINY, device, seq_len=49))


def test_tokens_of_another_shape_are_refused(device: torch.device) -> None:
    with pytest.raises(ValueError, match=r"shape \(40,\): wanted \(batch, sequence\)"):
        make_model(TINY, device)(tokens_for(TINY, device)[0])


def test_cross_entropy_is_its_formula_in_float64(device: torch.device) -> None:
    tokens = tokens_for(TINY, device)
    logits = torch.randn(*tokens.shape, TINY.vocab_size, device=device, dtype=torch.float64)
    log_softmax = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
    wanted = -log_softmax[:, :-1].gather(-1, tokens[:, 1:, None]).mean()
    torch.testing.assert_close(cross_entropy_loss(logits, tokens), wanted, rtol=1e-14, atol=0)
    assert cross_entropy_loss(logits.bfloat16(), tokens).dtype == torch.float32


def test_the_model_runs_on_meta_for_its_shapes() -> None:
    model = build_model("tiny", vocab_size=100, context_length=16, device="meta")
    logits = model(torch.zeros(2, 16, dtype=torch.long, device="meta"))
    assert logits.shape == (2, 16, 100)
    assert logits.device.type == "meta"
