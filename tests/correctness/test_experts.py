"""Mixtures of experts: against their definition and other people's, on poisoned memory; what they cost; how they train.

n tokens, d width, E experts, k a token, F width of an expert, R rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from perflab.correctness import PoisonedMemory, verify
from perflab.correctness.budget import derive_budget, measure_errors, short_dtype
from perflab.lab.experts import products
from perflab.lab.experts.config import ExpertConfig
from perflab.lab.experts.mixture import MixtureOfExperts, collecting, expert_layers, usage_facts
from perflab.lab.experts.products import grouped_product
from perflab.lab.experts.router import Router, RouterLosses, weighted_loss
from perflab.lab.inference.cost import decode_cost, weight_bytes
from perflab.lab.models import (
    ModelConfig,
    TransformerLM,
    architecture,
    load_checkpoint,
    parameter_count,
    save_checkpoint,
    size_config,
)
from perflab.lab.models.cost import forward_flops
from perflab.lab.train import TrainingConfig, TrainingStep, cross_entropy_loss, random_tokens
from tests.correctness.refusals import refusal_of

from .mixtures import (
    EXPERTS,
    INNER,
    NEVER_CHOSEN,
    WIDTH,
    Case,
    config_of,
    definition,
    hold,
    make_inputs,
    uninitialised_grouped_mm,
    with_settings,
)

pytestmark = pytest.mark.correctness

PRODUCTS = ("loop", "grouped", "triton")
SETTINGS: dict[str, dict[str, Any]] = {
    "chosen, then softmax": {},
    "softmax, then chosen": {"router": "softmax"},
    "sigmoid": {"router": "sigmoid"},
    "capacity": {"capacity_factor": 1.0},
    "sigmoid, capacity": {"router": "sigmoid", "capacity_factor": 0.7, "experts_per_token": 3},
    "switch": {"router": "softmax", "experts_per_token": 1, "capacity_factor": 0.5},
}


@pytest.fixture(autouse=True)
def what_pytorch_need_not_write_holds_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "grouped_mm", uninitialised_grouped_mm)


# The layer.


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("settings", "product"),
    # How rows are multiplied knows nothing of how they were chosen: with and without dropped rows is all.
    [*((one, "loop") for one in SETTINGS), *product(("softmax, then chosen", "sigmoid, capacity"), PRODUCTS[1:])],
)
def test_the_layer_is_its_definition_forward_and_backward(settings: str, product: str, dtype: torch.dtype) -> None:
    hold(Case(with_settings(expert_product=product, **SETTINGS[settings]), 19, dtype))


@pytest.mark.parametrize("num_tokens", [1, 2, 70])
def test_few_tokens_and_many_are_right(num_tokens: int) -> None:
    """One token leaves all but two experts without rows; 70 are more than a tile of rows."""
    hold(Case(with_settings(expert_product="triton", capacity_factor=1.0), num_tokens, torch.float32))


def test_in_float64_the_layer_and_its_definition_differ_by_rounding() -> None:
    for settings in SETTINGS.values():
        experts = with_settings(expert_product="loop", **settings)
        inputs = make_inputs(33, torch.float64, 0)
        layer = MixtureOfExperts(config_of(experts)).double().train()
        if layer.router.bias is not None:
            from .mixtures import BIAS

            layer.router.bias.copy_(BIAS)
        names = ("router.project.weight", "experts.gate", "experts.up", "experts.down")
        x, *weights = inputs.values()
        out = functional_call(layer, dict(zip(names, weights, strict=True)), (x,))
        torch.testing.assert_close(out, definition(*inputs.values(), experts=experts)[0], atol=1e-7, rtol=0)


def test_a_capacity_is_for_training_and_answers_do_not_depend_on_who_asks_beside() -> None:
    layer = MixtureOfExperts(config_of(with_settings(capacity_factor=0.5)))
    x = make_inputs(24, torch.float32, 0)["x"].view(4, 6, WIDTH)
    together = layer.eval()(x)
    assert layer.usage is not None
    assert int(layer.usage.dropped) == 0
    for row, alone in zip(together, x, strict=True):
        torch.testing.assert_close(layer(alone[None])[0], row)
    layer.train()(x)
    assert int(layer.usage.dropped) > 0


def test_shared_experts_see_every_token_with_weight_one() -> None:
    config = config_of(with_settings(shared_experts=2))
    layer = MixtureOfExperts(config)
    assert layer.shared is not None
    x = make_inputs(9, torch.float32, 0)["x"]
    with torch.no_grad():
        both = layer(x)
        shared = layer.shared(x)
        layer.shared.down.weight.zero_()
        torch.testing.assert_close(both - layer(x), shared)
    assert layer.shared.gate.out_features == 2 * INNER


# Against other people's.


def copied(block: nn.Module, layer: MixtureOfExperts) -> nn.Module:
    """A block of transformers with the layer's weights."""
    experts = layer.experts
    with torch.no_grad():
        block.gate.weight.copy_(layer.router.project.weight)
        block.experts.gate_up_proj.copy_(torch.cat([experts.gate, experts.up], 2).mT)
        block.experts.down_proj.copy_(experts.down.mT)
    return block.eval()


def transformers_block(kind: str, layer: MixtureOfExperts) -> nn.Module:
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
    from transformers.models.mixtral import modeling_mixtral as mixtral
    from transformers.models.qwen2_moe import modeling_qwen2_moe as qwen

    k, sizes = layer.settings.experts_per_token, {"hidden_size": WIDTH, "hidden_act": "silu"}
    if kind == "Mixtral":
        config = mixtral.MixtralConfig(
            **sizes, intermediate_size=INNER, num_local_experts=EXPERTS, num_experts_per_tok=k
        )
        return copied(mixtral.MixtralSparseMoeBlock(config), layer)
    if kind == "Qwen2Moe":
        config = qwen.Qwen2MoeConfig(
            **sizes, moe_intermediate_size=INNER, num_experts=EXPERTS, num_experts_per_tok=k, norm_topk_prob=False,
            shared_expert_intermediate_size=INNER,
        )  # fmt: skip
        block = copied(qwen.Qwen2MoeSparseMoeBlock(config), layer)
        nn.init.zeros_(block.shared_expert.down_proj.weight)  # a gated shared expert, which ours has not
        return block
    config = deepseek.DeepseekV3Config(
        **sizes, moe_intermediate_size=INNER, n_routed_experts=EXPERTS, num_local_experts=EXPERTS, n_group=1,
        num_experts_per_tok=k, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.0, n_shared_experts=2,
    )  # fmt: skip
    block = copied(deepseek.DeepseekV3MoE(config), layer)
    assert layer.router.bias is not None
    assert layer.shared is not None
    with torch.no_grad():
        block.gate.e_score_correction_bias.copy_(layer.router.bias)
        for ours, theirs in (("gate", "gate_proj"), ("up", "up_proj"), ("down", "down_proj")):
            getattr(block.shared_experts, theirs).weight.copy_(getattr(layer.shared, ours).weight)
    return block


THEIRS = {
    "Mixtral": {"router": "top-k-softmax"},
    "Qwen2Moe": {"router": "softmax", "experts_per_token": 3},
    "DeepseekV3": {"router": "sigmoid", "shared_experts": 2},
}


@pytest.mark.parametrize(("kind", "product"), [("Mixtral", "triton"), ("Qwen2Moe", "loop"), ("DeepseekV3", "grouped")])
def test_with_the_same_weights_ours_is_the_public_one(kind: str, product: str) -> None:
    """Beside the same block in float64: our float32 is as near to that as theirs is, within the derived budget."""
    torch.manual_seed(0)
    layer = MixtureOfExperts(config_of(with_settings(expert_product=product, **THEIRS[kind]))).eval()
    if layer.router.bias is not None:  # so large that it changes choices
        layer.router.bias.copy_(0.3 * torch.randn(EXPERTS))
    block = transformers_block(kind, layer)
    x = torch.randn(3, 11, WIDTH)
    with torch.no_grad():
        theirs, ours = block(x), layer(x)
        # Choices of the float32 router stand in both: two of 33 tokens would have to be at a tie to a ten-millionth.
        reference = transformers_block(kind, layer).double()(x.double())
    budget = derive_budget(theirs, reference, torch.float32, magnitude=reference.abs().max().expand_as(reference))
    assert budget.exceeded_by(measure_errors(ours, reference)) == ()
    if layer.router.bias is not None:
        layer.router.bias.zero_()
        assert not torch.allclose(layer(x), ours)  # the bias did change them


def test_the_balance_loss_is_transformers_over_k() -> None:
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    torch.manual_seed(0)
    for k in (1, 2, 3):
        layer = MixtureOfExperts(config_of(with_settings(experts_per_token=k)))
        x = torch.randn(50, WIDTH)
        with collecting([layer]) as losses:
            layer(x)
        logits = layer.router.project(x)
        theirs = load_balancing_loss_func((logits,), EXPERTS, k)
        torch.testing.assert_close(losses[0].balance, theirs / k)
        torch.testing.assert_close(losses[0].z, torch.logsumexp(logits, -1).square().mean())


# Products.


def rows_of(dtype: torch.dtype, seed: int, *, shape: tuple[int, int, int] = (5, 24, 40)) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(100 + seed)
    num_experts, depth, width = shape
    x = torch.randn(90, depth, generator=generator)
    weight = torch.randn(num_experts, depth, width, generator=generator)
    return {"x": x.to(dtype), "weight": weight.to(dtype)}


ENDS = {
    "even": [18, 36, 54, 72, 90],
    "empty ones": [0, 40, 40, 40, 90],
    "rows behind": [3, 3, 50, 51, 77],
    "no row at all": [0, 0, 0, 0, 0],
    "one has all": [90, 90, 90, 90, 90],
}


@pytest.mark.parametrize(
    ("ends", "dtype"),
    [*product(ENDS, (torch.float32, torch.bfloat16)), ("rows behind", torch.float16)],
    ids=lambda value: value if isinstance(value, str) else short_dtype(value),
)
@pytest.mark.parametrize("how", ["grouped", "triton"])
def test_a_product_and_its_gradients_are_right_and_those_of_an_empty_expert_zero(
    how: str, ends: str, dtype: torch.dtype
) -> None:
    bounds = torch.tensor(ENDS[ends], dtype=torch.int32)
    inside = (torch.arange(90) < bounds[-1])[:, None]

    def masked(x: Tensor, weight: Tensor, way: str) -> Tensor:
        y = grouped_product(torch.where(inside, x, 0.0), weight, bounds, way)
        return torch.where(inside, y, 0.0)

    verify(
        lambda x, weight: masked(x, weight, how),
        lambda seed: rows_of(dtype, seed),
        reference=lambda x, weight: masked(x, weight, "loop"),
        plain=lambda x, weight: masked(x, weight, "loop"),
        magnitudes=lambda x, weight, upstream: magnitudes(masked, x, weight, upstream),
        gradient_of=("out",),
    )


def magnitudes(masked: Any, x: Tensor, weight: Tensor, upstream: Any) -> dict[str, Tensor]:
    """The sums of absolute terms, which these sums are: of the products, of absolute values."""
    leaves = [x.abs().requires_grad_(), weight.abs().requires_grad_()]
    out = masked(*leaves, "loop")
    dx, dweight = torch.autograd.grad(out, leaves, upstream["out"].abs())
    return {"out": out.detach(), "dx": dx, "dweight": dweight}


@pytest.mark.parametrize("how", ["grouped", "triton"])
def test_rows_behind_the_last_offset_are_undefined_in_the_gradient_too(how: str) -> None:
    """Which is why the layer replaces them: poisoned memory shows that nothing writes there."""
    inputs = {name: tensor.requires_grad_() for name, tensor in rows_of(torch.float32, 0).items()}
    ends = torch.tensor(ENDS["rows behind"], dtype=torch.int32)
    with PoisonedMemory():
        y = grouped_product(*inputs.values(), ends, how)
        dx, dweight = torch.autograd.grad(y, [*inputs.values()], torch.ones_like(y))
    assert y[77:].isnan().all()
    assert dx[77:].isnan().all()
    assert y[:77].isfinite().all()
    assert dx[:77].isfinite().all()
    assert dweight.isfinite().all()
    assert not dweight[1].any()


@pytest.mark.parametrize("layout", ["transposed", "a slice"])
def test_a_kernel_takes_any_strides(layout: str) -> None:
    x, weight = rows_of(torch.float32, 0).values()
    ends = torch.tensor(ENDS["rows behind"], dtype=torch.int32)
    if layout == "transposed":
        strided = x.T.contiguous().T, weight.mT.contiguous().mT
    else:
        strided = torch.cat([x, x], 1)[:, : x.shape[1]], torch.cat([weight, weight], 2)[..., : weight.shape[2]]
    assert not any(one.is_contiguous() for one in strided)

    def results(how: str, *inputs: Tensor) -> list[Tensor]:
        leaves = [one.detach().requires_grad_() for one in inputs]
        out = grouped_product(*leaves, ends, how)[: ends[-1]]
        dx, dweight = torch.autograd.grad(out.sum(), leaves)  # an upstream gradient of stride 0
        return [out, dx[: ends[-1]], dweight]

    for got, wanted in zip(results("triton", *strided), results("loop", x, weight), strict=True):
        torch.testing.assert_close(got, wanted)


def far_apart(weight: Tensor, room_in_front: int = 0) -> tuple[Tensor, Tensor]:
    """Experts 2**30 + 8 elements apart, in memory that is never touched between; and the room in front of them."""
    stride = 2**30 + 8
    try:
        memory = torch.empty(room_in_front + (len(weight) - 1) * stride + weight[0].numel(), dtype=weight.dtype)
    except RuntimeError:
        pytest.skip("needs 4 GiB of addresses, and as many in front")
    spread = memory.as_strided(weight.shape, (stride, *weight.stride()[1:]), room_in_front)
    return spread.copy_(weight), memory[:room_in_front]


def test_an_expert_more_than_two_to_the_31_elements_away_is_reached() -> None:
    x, weight = rows_of(torch.float16, 0, shape=(3, 24, 40)).values()
    ends = torch.tensor([30, 31, 90], dtype=torch.int32)
    wanted = grouped_product(x, weight, ends, "triton")
    assert torch.equal(grouped_product(x, far_apart(weight)[0], ends, "triton"), wanted)


@pytest.mark.parametrize("product", ["grouped", "triton"])
def test_under_autocast_experts_compute_in_its_dtype(product: str) -> None:
    layer = MixtureOfExperts(config_of(with_settings(expert_product=product)))
    x = make_inputs(9, torch.float32, 0)["x"]
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert layer.experts.gate.grad is not None
    assert layer.experts.gate.grad.dtype == torch.float32


REFUSED: dict[str, Callable[..., object]] = {
    "no experts": lambda: with_settings(num_experts=0),
    "a share of an expert": lambda: with_settings(experts_per_token=1.5),
    "more than there are": lambda: with_settings(experts_per_token=7),
    "an unknown router": lambda: with_settings(router="hash"),
    "an unknown product": lambda: with_settings(expert_product="fast"),
    "no capacity": lambda: with_settings(capacity_factor=0.0),
    "a capacity that is none": lambda: with_settings(capacity_factor="1"),
    "a width that does not divide": lambda: size_config(
        "tiny", feed_forward="moe", experts=ExpertConfig(shared_experts=1)
    ),
    "experts without a mixture": lambda: size_config("tiny", experts=ExpertConfig(num_experts=4)),
    "experts that are none": lambda: size_config("tiny", experts=8),
    "grouped in float64": lambda: grouped_product(*rows_of(torch.float64, 0).values(), torch.ones(5).int(), "grouped"),
    "triton in float64": lambda: grouped_product(*rows_of(torch.float64, 0).values(), torch.ones(5).int(), "triton"),
    "ends that are too many": lambda: grouped_product(
        *rows_of(torch.float32, 0).values(), torch.ones(6).int(), "triton"
    ),
    "long ends": lambda: grouped_product(*rows_of(torch.float32, 0).values(), torch.ones(5).long(), "triton"),
    "a negative weight of a loss": lambda: TrainingConfig(balance_weight=-1),
}


def test_what_cannot_be_is_refused_with_a_remedy(snapshot: SnapshotAssertion) -> None:
    assert {name: refusal_of(call) for name, call in REFUSED.items()} == snapshot


def test_without_a_grouped_product_in_pytorch_the_error_names_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "grouped_mm", None)
    with pytest.raises(RuntimeError, match=r"which PyTorch .* has not; .* or give expert_product='loop' or 'triton'"):
        grouped_product(*rows_of(torch.float32, 0).values(), torch.ones(5).int(), "grouped")


# The router.


def test_the_bias_chooses_and_moves_towards_experts_that_got_less() -> None:
    router = Router(WIDTH, with_settings(router="sigmoid")).bfloat16()
    assert router.bias is not None
    assert router.bias.dtype == torch.float32  # steps of 0.001 are lost in 16 bits
    router.move_bias(torch.tensor([0, 10, 20, 20, 30, 40]), 0.001)
    assert [round(x, 6) for x in router.bias.tolist()] == [0.001, 0.001, 0.0, 0.0, -0.001, -0.001]
    router.bias[5] = 5.0
    tokens = torch.randn(7, WIDTH).bfloat16()
    routing = router(tokens)
    assert (routing.chosen == 5).any(1).all()
    assert routing.weights.sum(1).allclose(torch.ones(7))


def test_what_weighs_a_token_is_never_its_neighbours() -> None:
    """Weights of each kind by hand, for logits 1, 2, 3 of three experts and k = 2."""
    hand = {
        "softmax": [0.665241, 0.244728],  # e^3, e^2 over e + e^2 + e^3
        "top-k-softmax": [0.731059, 0.268941],  # 1 / (1 + e^-1)
        "sigmoid": [0.519575, 0.480425],  # 0.952574, 0.880797 over their sum
    }
    for kind, wanted in hand.items():
        router = Router(3, ExpertConfig(num_experts=3, router=kind))  # type: ignore[arg-type]
        with torch.no_grad():
            router.project.weight.copy_(torch.eye(3))
        routing = router(torch.tensor([[1.0, 2.0, 3.0], [3.0, 1.0, 2.0]]))
        assert routing.chosen.tolist() == [[2, 1], [0, 2]]
        torch.testing.assert_close(routing.weights, torch.tensor([wanted, wanted]), atol=1e-6, rtol=0)


def test_the_losses_are_means_over_the_layers() -> None:
    layers = [RouterLosses(torch.tensor(1.0), torch.tensor(4.0)), RouterLosses(torch.tensor(2.0), torch.tensor(10.0))]
    assert weighted_loss(layers, 0.1, 0.01).item() == pytest.approx(0.1 * 1.5 + 0.01 * 7.0)


# In a model.


def model_config(**settings: Any) -> ModelConfig:
    experts = {name: value for name, value in settings.items() if name in ExpertConfig.__dataclass_fields__}
    others = {name: value for name, value in settings.items() if name not in experts}
    return size_config(
        "tiny", vocab_size=61, context_length=64, feed_forward="moe", experts=ExpertConfig(**experts), **others
    )


@pytest.mark.parametrize("checkpointing", ["none", "every-block", "selective"])
def test_a_step_adds_both_losses_once_and_keeps_none(checkpointing: str) -> None:
    torch.manual_seed(0)
    model, tokens = TransformerLM(model_config()), random_tokens(2, 16, vocab_size=61)
    with collecting(expert_layers(model)) as losses:
        plain = cross_entropy_loss(model(tokens), tokens)
    wanted = plain + weighted_loss(losses, 0.5, 0.25)
    config = TrainingConfig(balance_weight=0.5, router_z_weight=0.25, checkpointing=checkpointing)
    step = TrainingStep(model, tokens, config)
    loss = step.forward()
    torch.testing.assert_close(loss, wanted)
    gradients = torch.autograd.grad(wanted, [*model.parameters()])
    step.backward(loss)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    assert [layer.losses for layer in expert_layers(model)] == [None, None]
    assert len(losses) == 2


def test_without_experts_a_step_has_the_loss_that_it_had() -> None:
    torch.manual_seed(0)
    model, tokens = TransformerLM(size_config("tiny", vocab_size=61)), random_tokens(2, 16, vocab_size=61)
    assert torch.equal(TrainingStep(model, tokens).forward(), cross_entropy_loss(model(tokens), tokens))


def test_a_step_moves_the_bias_and_busy_experts_lose_tokens() -> None:
    torch.manual_seed(0)
    model, tokens = TransformerLM(model_config(router="sigmoid")), random_tokens(4, 32, vocab_size=61)
    step = TrainingStep(model, tokens, TrainingConfig(router_bias_rate=0.01, balance_weight=0.0, learning_rate=1e-9))
    step()
    before = usage_facts(model)
    for _ in range(20):
        step()
    after = usage_facts(model)
    assert after["busiest_ratio"] < before["busiest_ratio"]
    assert all(int(layer.load.sum()) == 0 for layer in expert_layers(model))


@pytest.mark.parametrize(("num_layers", "capacity"), [(1, None), (2, 0.6)], ids=["dropless", "capacity"])
def test_a_compiled_model_is_one_graph_with_the_same_gradients_losses_and_facts(
    num_layers: int, capacity: float | None
) -> None:
    experts = ExpertConfig(num_experts=4, experts_per_token=2, router="sigmoid", capacity_factor=capacity)
    sizes = {
        "vocab_size": 61,
        "context_length": 16,
        "d_model": 32,
        "d_ff": 64,
        "num_layers": num_layers,
        "num_heads": 2,
    }
    tokens = random_tokens(2, 16, vocab_size=61)

    def run(*, is_compiled: bool) -> tuple[dict[str, float | int | str], list[Tensor]]:
        torch.manual_seed(0)
        model = TransformerLM(ModelConfig(**sizes, feed_forward="moe", experts=experts))
        called = torch.compile(model, backend="aot_eager", fullgraph=True) if is_compiled else model
        with collecting(expert_layers(model)) as losses:
            loss = called(tokens).square().mean() + sum(one.balance + one.z for one in losses)
        loss.backward()
        loads = [layer.load for layer in expert_layers(model)]
        assert len(losses) == num_layers
        assert int(loads[0].sum()) == 2 * 16 * 2
        return usage_facts(model), [loss, *loads, *(p.grad for p in model.parameters() if p.grad is not None)]

    (facts, values), (compiled_facts, compiled_values) = run(is_compiled=False), run(is_compiled=True)
    assert compiled_facts == facts
    assert (facts["dropped_share"] != 0) == (capacity is not None)
    torch.testing.assert_close(compiled_values, values)


def test_the_facts_of_a_case_count_choices_and_drops() -> None:
    torch.manual_seed(0)
    model = TransformerLM(model_config(capacity_factor=0.5, num_experts=4)).train()
    assert usage_facts(model) == {}
    model(random_tokens(2, 16, vocab_size=61))
    facts = usage_facts(model)
    counts = [int(one) for one in str(facts["expert_counts"]).split()]
    assert len(counts) == 4
    assert sum(counts) == 2 * 32 * 2  # layers, tokens, k
    assert 0.5 <= facts["dropped_share"] < 1  # half of the rows fit, if each expert is full
    assert usage_facts(TransformerLM(size_config("tiny"))) == {}


def test_a_model_with_ten_times_the_parameters_has_the_same_operations_a_token() -> None:
    """But for the router's, which are 2 E d; counted where they run, and by the equation."""
    few, many = model_config(num_experts=2), model_config(num_experts=22)
    dense = size_config("tiny", vocab_size=61, context_length=64)
    tokens = random_tokens(2, 16, vocab_size=61)

    def counted(config: ModelConfig) -> int:
        model = TransformerLM(replace(config, attention="naive")).eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(tokens)
        return int(counter.get_total_flops())

    def experts_of(config: ModelConfig) -> int:
        return sum(p.numel() for layer in expert_layers(TransformerLM(config)) for p in layer.experts.parameters())

    assert experts_of(many) == 11 * experts_of(few)
    assert experts_of(few) == 2 * 3 * 64 * 256  # two experts of half the width: the dense layer's weights
    router = 2 * 2 * 32 * 64  # layers, operations, tokens, d
    for config, experts in ((few, 2), (many, 22)):
        config = replace(config, experts=replace(config.experts, expert_product="loop"))
        wanted = forward_flops(config, batch_size=2, seq_len=16)
        assert wanted == counted(config) == forward_flops(dense, batch_size=2, seq_len=16) + experts * router
        assert parameter_count(config) == sum(p.numel() for p in TransformerLM(config).parameters())
        cost = decode_cost(config, batch_size=3, context=20, dtype=torch.float32)
        decode = decode_cost(dense, batch_size=3, context=20, dtype=torch.float32)
        assert cost.flops == decode.flops + experts * router * 3 // 32
    # One token reads two experts, however many there are: the difference is the router's rows.
    read = [decode_cost(c, batch_size=1, context=20, dtype=torch.float32).weight_bytes for c in (few, many)]
    assert read[1] - read[0] == 2 * 20 * 64 * 4
    assert weight_bytes(many, torch.float32) > 3 * weight_bytes(few, torch.float32)


def test_a_checkpoints_signature_has_the_settings_that_make_another_function() -> None:
    signature = architecture(model_config(num_experts=4, expert_product="loop"))
    assert signature["experts.num_experts"] == 4
    assert "experts.expert_product" not in signature
    assert not any(name.startswith("experts") for name in architecture(size_config("tiny")))


def test_a_checkpoint_names_the_settings_that_differ_and_another_capacity_can_be_accepted(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "moe.pt", TransformerLM(model_config(capacity_factor=1.25)))
    load_checkpoint(tmp_path / "moe.pt", TransformerLM(model_config(capacity_factor=1.25, expert_product="loop")))
    with pytest.raises(ValueError, match=r"experts.capacity_factor: saved 1.25, wanted None\n.*accept=\('experts.cap"):
        load_checkpoint(tmp_path / "moe.pt", TransformerLM(model_config()))
    load_checkpoint(tmp_path / "moe.pt", TransformerLM(model_config()), accept=("experts.capacity_factor",))
    with pytest.raises(ValueError, match=r"experts.num_experts: saved 8, wanted 4\n"):
        load_checkpoint(tmp_path / "moe.pt", TransformerLM(model_config(num_experts=4, capacity_factor=1.25)))
    with pytest.raises(ValueError, match="feed_forward: saved 'moe', wanted 'swiglu'\nbuild the model with feed_forw"):
        load_checkpoint(tmp_path / "moe.pt", TransformerLM(size_config("tiny", vocab_size=61, context_length=64)))


def test_pytorch_finds_the_operators_schemas_fakes_and_gradients_in_order() -> None:
    x, weight = (tensor.requires_grad_() for tensor in rows_of(torch.float32, 0).values())
    ends = torch.tensor(ENDS["even"], dtype=torch.int32)
    for name in ("grouped_mm", "grouped_product"):
        grouped_product(x, weight, ends, "triton")  # defines its operators
        torch.library.opcheck(getattr(torch.ops.perflab, name).default, (x, weight, ends))
    for name in ("grouped_mm_gradient_backward", "grouped_gradient_backward"):
        rows = x.detach(), torch.randn(90, 40), ends
        torch.library.opcheck(getattr(torch.ops.perflab, name).default, rows)


def test_a_gradient_of_an_expert_without_tokens_is_zero_in_the_layer() -> None:
    experts = with_settings(expert_product="grouped")
    layer = MixtureOfExperts(config_of(experts))
    inputs = make_inputs(12, torch.float32, 0)
    with torch.no_grad():
        layer.router.project.weight.copy_(inputs["router"])
    layer(inputs["x"]).sum().backward()
    for weight in layer.experts.parameters():
        assert weight.grad is not None
        assert not weight.grad[NEVER_CHOSEN].any()
        assert weight.grad[0].any()
