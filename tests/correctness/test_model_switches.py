"""Every switch of the architecture: the whole model against its formula in float64, and what must hold of any of them.

B batch, T sequence, d width, H heads, K heads of keys and values, D head dimension.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from torch import Tensor

from perflab.correctness import compare
from perflab.lab.models import MODEL_SIZES, ModelConfig, TransformerLM, parameter_count
from perflab.lab.models.config import DROPOUTS
from perflab.lab.models.rope_scaling import RopeScaling
from perflab.lab.train import cross_entropy_loss, random_tokens
from tests.correctness.refusals import refusals_of

pytestmark = pytest.mark.correctness

TINY = replace(MODEL_SIZES["tiny"], vocab_size=53, context_length=32, num_layers=2, attention="naive")
SWITCHES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "gqa": {"num_kv_heads": 2},
    "mqa": {"num_kv_heads": 1},
    "window": {"window": 5},
    "layer-norm": {"norm": "layer"},
    "learned": {"positions": "learned"},
    "stretched": {"rope_scaling": RopeScaling(kind="linear", factor=4.0)},
    "gelu": {"feed_forward": "gelu"},
    "tied": {"tied_head": True},
    "all": {
        "num_kv_heads": 2,
        "window": 5,
        "norm": "layer",
        "positions": "learned",
        "feed_forward": "gelu",
        "tied_head": True,
    },
}
STRETCHED = SWITCHES["stretched"]["rope_scaling"]
DROPPING = {name: {name: 0.25} for name in DROPOUTS}
T = 24


def make(config: ModelConfig, device: torch.device, seed: int = 0) -> TransformerLM:
    """A model whose norms are not what they are at first, so that gains and biases matter."""
    torch.manual_seed(seed)
    with device:
        model = TransformerLM(config)
        for name, parameter in model.named_parameters():
            if "norm" in name:
                torch.nn.init.normal_(parameter, mean=1.0 if "gain" in name else 0.0, std=0.3)
    return model


def tokens_for(device: torch.device) -> Tensor:
    return random_tokens(2, T, vocab_size=TINY.vocab_size, device=device)


def written_out(config: ModelConfig, weights: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """The logits by the formulas, in the weights' dtype, token by token and head by head."""

    def norm(name: str, x: Tensor) -> Tensor:
        if config.norm == "layer":
            x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + config.norm_eps).sqrt() * weights[f"{name}.gain"]
        return x + weights[f"{name}.bias"] if config.norm == "layer" else x

    def turned(x: Tensor, position: int) -> Tensor:
        if config.positions == "learned":
            return x
        pairs = torch.arange(0, config.head_dim, 2, device=x.device, dtype=torch.float64)
        angle = position * config.rope_theta ** (-pairs / config.head_dim)
        if config.rope_scaling.kind == "linear":
            angle = angle / config.rope_scaling.factor
        turn = torch.complex(angle.cos().float().double(), angle.sin().float().double())  # the tables are float32
        return torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * turn).flatten(-2)

    def attention(name: str, x: Tensor) -> Tensor:
        q, k, v = (x @ weights[f"{name}.{letter}.weight"].T for letter in "qkv")
        heads = []
        for head in range(config.num_heads):
            kv_head = head * config.kv_heads // config.num_heads
            own, kept = (slice(h * config.head_dim, (h + 1) * config.head_dim) for h in (head, kv_head))
            rows = []
            for i in range(T):
                seen = range(0 if config.window is None else max(0, i - config.window + 1), i + 1)
                query = turned(q[:, i, own], i)
                scores = [(query * turned(k[:, j, kept], j)).sum(-1) / math.sqrt(config.head_dim) for j in seen]
                shares = torch.softmax(torch.stack(scores, -1), -1)
                rows.append(sum(shares[:, n, None] * v[:, j, kept] for n, j in enumerate(seen)))
            heads.append(torch.stack(rows, 1))
        return torch.cat(heads, -1) @ weights[f"{name}.out.weight"].T

    def feed_forward(name: str, x: Tensor) -> Tensor:
        up = x @ weights[f"{name}.up.weight"].T
        if config.feed_forward == "gelu":
            inner = up * (1 + torch.erf(up / math.sqrt(2))) / 2
        else:
            gate = x @ weights[f"{name}.gate.weight"].T
            inner = gate / (1 + torch.exp(-gate)) * up
        return inner @ weights[f"{name}.down.weight"].T

    x = weights["embedding.weight"][tokens]
    if config.positions == "learned":
        x = x + weights["positions.weight"][:T]
    for layer in range(config.num_layers):
        block = f"blocks.{layer}"
        x = x + attention(f"{block}.attention", norm(f"{block}.attention_norm", x))
        x = x + feed_forward(f"{block}.feed_forward", norm(f"{block}.feed_forward_norm", x))
    return norm("norm", x) @ weights["embedding.weight" if config.tied_head else "head.weight"].T


@pytest.mark.parametrize("name", SWITCHES)
def test_the_model_is_its_formula_in_float64(name: str, device: torch.device) -> None:
    config = replace(TINY, **SWITCHES[name])
    model = make(config, device).double()
    logits = model(tokens_for(device))
    wanted = written_out(config, dict(model.state_dict()), tokens_for(device))
    torch.testing.assert_close(logits, wanted, rtol=1e-10, atol=1e-10)
    if name == "window":  # no tensor tells it: without it the formula is another
        whole = written_out(replace(config, window=None), dict(model.state_dict()), tokens_for(device))
        assert not torch.allclose(whole, wanted)


@pytest.mark.parametrize("name", SWITCHES)
def test_its_parameters_are_those_of_the_closed_form(name: str) -> None:
    """The defaults at every size; a switch is the same in each layer of any."""
    sizes = MODEL_SIZES.values() if name == "defaults" else [replace(MODEL_SIZES["2.7B"], num_layers=2), TINY]
    for size in sizes:
        config = replace(size, attention="naive", **SWITCHES[name])
        with torch.device("meta"):
            model = TransformerLM(config)
        assert sum(parameter.numel() for parameter in model.parameters()) == parameter_count(config)


@pytest.mark.parametrize("name", SWITCHES)
def test_a_token_reaches_what_may_see_it_and_nothing_else(name: str, device: torch.device) -> None:
    config = replace(TINY, **SWITCHES[name])
    model, tokens = make(config, device), tokens_for(device)
    changed = tokens.clone()
    changed[:, 7] = (changed[:, 7] + 1) % config.vocab_size
    before, after = model(tokens), model(changed)
    differs = (before != after).any(-1).all(0)
    # Each layer hands it on by a window less one.
    last = T if config.window is None else 7 + config.num_layers * (config.window - 1) + 1
    assert differs.tolist() == [7 <= position < last for position in range(T)]


@pytest.mark.parametrize("name", SWITCHES)
def test_gradients_reach_every_parameter(name: str, device: torch.device) -> None:
    model, tokens = make(replace(TINY, **SWITCHES[name]), device), tokens_for(device)
    cross_entropy_loss(model(tokens), tokens).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name
        assert parameter.grad.abs().max() > 0, parameter_name


@pytest.mark.parametrize("name", [*SWITCHES, *DROPPING])
def test_it_compiles_without_a_graph_break(name: str, device: torch.device) -> None:
    torch._dynamo.reset()
    config = replace(TINY, num_layers=1, **(SWITCHES | DROPPING)[name])
    model, tokens = make(config, device).train(), tokens_for(device)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.manual_seed(1)
    wanted = model(tokens)
    torch.manual_seed(1)
    assert torch.equal(compiled(tokens), wanted)


@pytest.mark.parametrize("d_model", [64, 768])
@pytest.mark.parametrize("positions", ["rope", "learned"])
def test_a_fresh_tied_model_knows_as_little_as_an_untied_one(
    positions: Any, d_model: int, device: torch.device
) -> None:
    """Logits of variance about 1, the token's own not above them all: a loss near ln V + 1/2."""
    config = replace(
        TINY, tied_head=True, positions=positions, d_model=d_model, num_heads=d_model // 16, vocab_size=1000
    )
    torch.manual_seed(0)
    with device:
        model = TransformerLM(config)
    tokens = random_tokens(16, T, vocab_size=1000, device=device)
    logits = model(tokens)
    assert logits.var().item() == pytest.approx(1, abs=0.15)
    assert cross_entropy_loss(logits, tokens).item() == pytest.approx(math.log(1000) + 0.5, abs=0.3)
    assert logits.gather(-1, tokens[..., None]).mean().item() < 4


@pytest.mark.parametrize("name", [*SWITCHES, *DROPPING])
def test_one_seed_gives_one_model_another_seed_another_and_the_defaults_weights_where_no_tensor_differs(
    name: str, device: torch.device
) -> None:
    config = replace(TINY, **(SWITCHES | DROPPING)[name])
    first, again, other = (make(config, device, seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])
    if name in DROPPING or name == "window":  # no tensor of these: the very weights of the default
        default = make(TINY, device).state_dict()
        assert list(first) == list(default)
        assert all(torch.equal(first[key], default[key]) for key in first)


# --- dropout -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DROPPING)
def test_dropout_acts_in_training_alone_and_by_the_seed(name: str, device: torch.device) -> None:
    model, tokens = make(replace(TINY, **DROPPING[name]), device), tokens_for(device)

    def logits(seed: int) -> Tensor:
        torch.manual_seed(seed)
        found: Tensor = model(tokens)
        return found

    model.train()
    assert torch.equal(logits(1), logits(1))
    assert not torch.equal(logits(1), logits(2))
    model.eval()
    assert torch.equal(logits(1), make(TINY, device)(tokens))


def test_what_a_layer_adds_is_dropped_number_by_number(device: torch.device) -> None:
    """Of the stream before and after: the layer's output over 1 - p, or nothing; likewise of the embedded tokens."""
    p = 0.25
    config = replace(TINY, residual_dropout=p, embedding_dropout=p)
    model, tokens = make(config, device).double().train(), tokens_for(device)
    stream: list[Tensor] = []
    added: list[Tensor] = []
    for block in model.blocks:
        for norm, layer in ((block.attention_norm, block.attention), (block.feed_forward_norm, block.feed_forward)):
            norm.register_forward_pre_hook(lambda module, inputs: stream.append(inputs[0]))
            layer.register_forward_hook(lambda module, inputs, output: added.append(output))
    model.norm.register_forward_pre_hook(lambda module, inputs: stream.append(inputs[0]))
    torch.manual_seed(0)
    model(tokens)
    differences = [stream[0], *(after - before for before, after in pairwise(stream))]
    wholes = [model.embedding(tokens), *added]
    assert len(differences) == len(wholes) == 5
    for difference, whole in zip(differences, wholes, strict=True):
        kept = difference.abs() > 1e-12
        torch.testing.assert_close(difference, torch.where(kept, whole / (1 - p), 0.0), rtol=1e-9, atol=1e-12)
        share, deviation = (~kept).double().mean().item(), (p * (1 - p) / kept.numel()) ** 0.5
        assert abs(share - p) < 4 * deviation


def test_dropped_weights_of_attention_are_those_of_the_attention_that_it_calls(device: torch.device) -> None:
    from perflab.lab.attention import attention

    config = replace(TINY, attention_dropout=0.25, positions="learned")
    layer = make(config, device).train().blocks[0].attention
    x = torch.randn(2, T, config.d_model, device=device)
    torch.manual_seed(3)
    found = layer(x, None)
    torch.manual_seed(3)
    q, k, v = (part(x).view(2, T, 4, -1).transpose(1, 2) for part in (layer.q, layer.k, layer.v))
    mixed = attention(q, k, v, impl="naive", is_causal=True, dropout_p=0.25)
    assert torch.equal(found, layer.out(mixed.transpose(1, 2).flatten(-2)))


# --- how, not what -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", ["fused_norm", "fused_feed_forward"])
def test_fused_kernels_agree_within_the_error_of_plain_ones(fused: str, device: torch.device) -> None:
    pytest.importorskip("triton")
    config = replace(TINY, num_layers=1)
    weights, tokens = make(config, device).state_dict(), tokens_for(device)

    def logits_and_gradients(dtype: torch.dtype, **how: Any) -> dict[str, Tensor]:
        model = TransformerLM(replace(config, **how)).to(device)
        model.load_state_dict(weights)
        logits = model.to(dtype)(tokens)
        cross_entropy_loss(logits, tokens).backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        return {"logits": logits, **{name: grad for name, grad in gradients.items() if grad is not None}}

    reference = logits_and_gradients(torch.float64)
    plain, candidate = logits_and_gradients(torch.float32), logits_and_gradients(torch.float32, **{fused: True})
    assert candidate.keys() == reference.keys()
    assert len(candidate) == 1 + len(weights)
    for name, found in candidate.items():
        report = compare(name, found, reference[name], plain[name])
        assert report.ok, str(report)
    assert not torch.equal(candidate["logits"], plain["logits"])  # another kernel ran


@pytest.mark.parametrize("autocast", [False, True], ids=["bf16", "bf16-autocast"])
def test_fused_kernels_run_in_bfloat16_and_give_back_its_dtypes(autocast: bool, device: torch.device) -> None:
    pytest.importorskip("triton")
    config = replace(TINY, num_layers=1)
    plain, fused = make(config, device), make(replace(config, fused_norm=True, fused_feed_forward=True), device)
    if not autocast:
        plain, fused = plain.bfloat16(), fused.bfloat16()
    tokens = tokens_for(device)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=autocast), torch.no_grad():
        wanted, found = plain(tokens), fused(tokens)
    assert found.dtype == wanted.dtype == torch.bfloat16
    torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.05)


def test_a_missing_triton_is_told_when_the_model_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from perflab.lab import kernels

    for name in ("rms_norm", "swiglu"):
        monkeypatch.delitem(vars(kernels), name, raising=False)
        monkeypatch.delitem(sys.modules, f"perflab.lab.kernels.triton_{name}", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    for switch, kernel in (("fused_norm", "rms_norm"), ("fused_feed_forward", "swiglu")):
        with pytest.raises(ImportError, match=f"the fused kernel '{kernel}' needs Triton, which is not installed"):
            TransformerLM(replace(TINY, **{switch: True}))  # type: ignore[arg-type]


def test_a_configuration_that_cannot_be_built_is_refused_with_a_remedy(snapshot: SnapshotAssertion) -> None:
    asked = [
        {"num_layers": 0},
        {"d_model": 64.0},
        {"num_heads": True},
        {"num_heads": 5},
        {"d_model": 60},
        {"rope_theta": -1.0},
        {"rope_scaling": "yarn"},
        {"rope_scaling": STRETCHED, "positions": "learned"},
        {"norm_eps": math.nan},
        {"attention": "flesh"},
        {"num_kv_heads": 3},
        {"num_kv_heads": 8},
        {"num_kv_heads": 0},
        {"num_kv_heads": 2.0},
        {"norm": "batch"},
        {"positions": "sinus"},
        {"feed_forward": "relu"},
        {"tied_head": 1},
        {"window": 0},
        {"attention_dropout": 1.0},
        {"residual_dropout": -0.1},
        {"embedding_dropout": math.nan},
        {"embedding_dropout": "0.1"},
        {"d_model": 60},
        {"attention": "sdpa", "window": 8},
        {"attention": "tiled", "attention_dropout": 0.1},
        {"attention": "sdpa-efficient", "num_kv_heads": 2},
        {"attention": "sdpa", "attention_dropout": 0.1, "window": 4},
        {"fused_norm": True, "norm": "layer"},
        {"fused_feed_forward": True, "feed_forward": "gelu"},
    ]
    assert refusals_of(lambda change: replace(TINY, **change), of=asked) == snapshot


def test_an_odd_head_dimension_is_fine_where_nothing_is_turned(device: torch.device) -> None:
    config = replace(TINY, d_model=60, positions="learned")
    assert make(config, device)(tokens_for(device)).shape == (2, T, config.vocab_size)
