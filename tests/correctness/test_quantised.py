"""Weight-only quantisation: bounds that are derived, bytes that are counted, the kernel, and errors.

Shapes: x (..., d_in), W (d_out, d_in), y (..., d_out).
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from perflab.correctness import verify
from perflab.lab.experts.config import ExpertConfig
from perflab.lab.experts.mixture import expert_layers
from perflab.lab.inference.cost import weight_bytes as bytes_of_model
from perflab.lab.inference.quantised import (
    GROUP_SIZES,
    MOST,
    QuantisedExperts,
    QuantisedLinear,
    layer_bytes,
    quantise,
    unpack,
    weight_bytes,
)
from perflab.lab.inference.triton_quantised_product import quantised_product
from perflab.lab.models import ModelConfig, TransformerLM

pytestmark = pytest.mark.correctness

BOTH = pytest.mark.parametrize("bits", MOST)
PRODUCTS = pytest.mark.parametrize("product", ["torch", "triton"])


def layer(d_in: int = 256, d_out: int = 40, *, dtype: torch.dtype = torch.float32, bias: bool = False) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(d_in, d_out, bias=bias).to(dtype)


def model(**changes: Any) -> TransformerLM:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 50, "context_length": 16, "d_model": 64, "d_ff": 128, "num_layers": 2}
    return TransformerLM(ModelConfig(**sizes | {"num_heads": 2} | changes))


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_each_weight_is_off_by_half_a_step_at_most(bits: int, dtype: torch.dtype) -> None:
    linear = layer(dtype=dtype)
    with torch.no_grad():
        linear.weight[0] *= 1e3  # no other row's scale knows of it
        linear.weight[1] = 0.0
        linear.weight[2] *= 1e-6
    quantised = QuantisedLinear.of(linear, bits=bits, group_size=32)
    steps = quantised.scales.double().repeat_interleave(quantised.group_size, dim=1)
    errors = (linear.weight.double() - quantised.dequantised().double()).abs()
    # Quotient, product and scale are rounded to float32.
    assert (errors <= steps * (0.5 + 2 * MOST[bits] * torch.finfo(torch.float32).eps)).all()
    assert (errors / steps).max() > 0.45, "the bound is sharp"
    assert not quantised.dequantised()[1].any()
    largest = linear.weight.float().abs().unflatten(1, (-1, quantised.group_size)).amax(-1)
    torch.testing.assert_close(quantised.scales[[0, 2]] * MOST[bits], largest[[0, 2]])


def test_two_numbers_lie_in_each_byte_half_a_group_apart() -> None:
    linear = layer(64, 1)
    with torch.no_grad():
        linear.weight[0] = torch.arange(64) % 15 - 7.0
    quantised = QuantisedLinear.of(linear, bits=4, group_size=32)
    assert quantised.weight.dtype == torch.uint8
    assert quantised.weight[0, 1].item() == (3 << 4 | 2), "number 1 is -6 + 8, number 17 is -5 + 8"
    assert torch.equal(quantised.dequantised(), linear.weight)


@BOTH
def test_a_product_is_off_by_what_is_derived_and_no_more(bits: int) -> None:
    """In float64, so that rounding says nothing; and it is not a bound that anything meets."""
    linear, x = layer(), torch.randn(30, 256, generator=torch.Generator().manual_seed(1))
    quantised = QuantisedLinear.of(linear, bits=bits, group_size=64)
    errors = (x.double() @ (quantised.dequantised().double() - linear.weight.double()).mT).abs()
    bound = quantised.error_bound(x)
    assert (errors <= bound * (1 + 2 * MOST[bits] * torch.finfo(torch.float32).eps)).all()
    # Errors of random signs add up as a root: sqrt(d_in) less, times what a uniform error is of its bound.
    typical = bound.mean() / (256**0.5)
    assert 0.3 * typical < errors.mean() < 2 * typical


@pytest.mark.parametrize(
    ("rows", "d_in", "d_out", "dtype", "bits", "group_size"),
    [
        (1, 256, 40, torch.float32, 8, 128),
        (17, 129, 33, torch.bfloat16, 8, 128),
        (5, 64, 70, torch.float32, 4, 32),
        (1, 256, 40, torch.bfloat16, 4, 256),
        (33, 128, 8, torch.float16, 4, 64),
    ],
)  # fmt: skip
def test_the_kernel_reads_packed_weights_as_they_are_unpacked(
    rows: int, d_in: int, d_out: int, dtype: torch.dtype, bits: int, group_size: int, device: torch.device
) -> None:
    """Against float64 of the same numbers; any strides of x, and rows and outputs that fill no tile."""

    def make(seed: int) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        x = torch.randn(d_in, rows).to(dtype).mT
        quantised = QuantisedLinear.of(nn.Linear(d_in, d_out), bits=bits, group_size=group_size)
        return {
            name: t.to(device) for name, t in {"x": x, "weight": quantised.weight, "scales": quantised.scales}.items()
        }

    def plain(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
        return x @ unpack(weight, scales.float(), bits).to(x.dtype).mT

    def magnitudes(x: Tensor, weight: Tensor, scales: Tensor, **upstream: Any) -> dict[str, Tensor]:
        return {"out": x.abs() @ unpack(weight, scales.float(), bits).double().abs().mT}

    verify(
        lambda x, weight, scales: quantised_product(x, weight, scales, bits),
        make,
        reference=lambda x, weight, scales: x @ unpack(weight, scales.float(), bits).double().mT,
        plain=plain,
        magnitudes=magnitudes,
    )


@PRODUCTS
@BOTH
def test_a_layer_has_its_bias_leading_dimensions_and_autocasts_dtype(
    product: str, bits: int, device: torch.device
) -> None:
    linear = layer(64, 5, bias=True).to(device)
    quantised = QuantisedLinear.of(linear, bits=bits, group_size=32, product=product)
    x = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(0)).to(device)
    wanted = nn.functional.linear(x.double(), quantised.dequantised().double(), linear.bias.double()).float()
    torch.testing.assert_close(quantised(x), wanted)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        found = quantised(x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), wanted, rtol=0.05, atol=0.05)


@BOTH
@pytest.mark.parametrize("tied_head", [False, True])
def test_a_model_has_each_linear_layer_replaced_and_its_bytes_counted(bits: int, tied_head: bool) -> None:
    whole = model(tied_head=tied_head)
    linears = {name: m for name, m in whole.named_modules() if isinstance(m, nn.Linear)}
    before = weight_bytes(whole)
    assert before == sum(x.untyped_storage().nbytes() for x in (*whole.parameters(), *whole.buffers()))
    skip = () if tied_head else ("head",)
    small = quantise(whole, bits=bits, group_size=32, skip=skip)
    assert small is whole
    left = [name for name, m in small.named_modules() if isinstance(m, nn.Linear)]
    assert left == list(skip)
    assert len(linears) == 14 + (not tied_head)
    replaced = [m for name, m in linears.items() if name not in skip]
    saved = sum(4 * m.weight.numel() for m in replaced)
    added = sum(layer_bytes(m.in_features, m.out_features, bits=bits, group_size=32) for m in replaced)
    assert weight_bytes(small) == before - saved + added
    assert weight_bytes(small) == sum(x.untyped_storage().nbytes() for x in (*small.parameters(), *small.buffers()))
    assert small.embedding.weight.dtype == torch.float32


def test_a_quantised_model_speaks_like_the_whole_one_and_int4_less_so() -> None:
    tokens = torch.arange(16)[None]
    with torch.no_grad():
        wanted = model()(tokens)
        errors = {
            bits: (quantise(model(), bits=bits, group_size=32)(tokens) - wanted).norm() / wanted.norm() for bits in MOST
        }
    # Of uniform errors, step / sqrt(12): about 1 % of a weight with 8 bits, 15 % with 4.
    assert 0 < errors[8] < 0.03
    assert errors[8] < errors[4] < 0.4


@BOTH
@pytest.mark.parametrize("product", ["loop", "grouped"])
def test_experts_are_quantised_matrix_by_matrix_and_give_what_their_unpacked_ones_give(product: str, bits: int) -> None:
    settings = ExpertConfig(num_experts=3, experts_per_token=2, shared_experts=1, expert_product=product)
    changes = {"feed_forward": "moe", "experts": settings, "d_ff": 192, "tied_head": False}
    tokens = torch.arange(16)[None]
    whole, small = model(**changes).eval(), quantise(model(**changes).eval(), bits=bits, group_size=32)
    held = sum(tensor.nbytes for tensor in small.state_dict().values())
    assert held == bytes_of_model(whole.config, torch.float32, bits=bits, group_size=32)
    kept = {name for name, p in small.named_parameters() if "norm" not in name}
    assert kept == {"embedding.weight"}
    largest = 0.0
    for before, after in zip(expert_layers(whole), expert_layers(small), strict=True):
        assert isinstance(after.experts, QuantisedExperts)
        for name, weight in before.experts.named_parameters():
            packed = after.experts.get_submodule(name)
            assert isinstance(packed, QuantisedLinear)
            unpacked = packed.dequantised().unflatten(0, (3, -1)).mT
            steps = packed.scales.repeat_interleave(packed.group_size, dim=1).unflatten(0, (3, -1)).mT
            assert ((weight - unpacked).abs() <= 0.5001 * steps).all()
            largest = max(largest, ((weight - unpacked).abs() / steps).max().item())
            with torch.no_grad():
                weight.copy_(unpacked)
    assert largest > 0.45
    for name, module in whole.named_modules():
        if isinstance(module, nn.Linear):
            packed = small.get_submodule(name)
            assert isinstance(packed, QuantisedLinear)
            module.weight.data.copy_(packed.dequantised())
    with torch.no_grad():
        torch.testing.assert_close(small(tokens), whole(tokens))
        assert torch.equal(small(tokens), torch.compile(small, backend="eager", fullgraph=product != "loop")(tokens))


def test_the_kernel_of_packed_weights_has_no_experts_and_says_what_to_give() -> None:
    changes = {"feed_forward": "moe", "experts": ExpertConfig(num_experts=2), "d_ff": 128}
    left = ("blocks.0.feed_forward.experts", "blocks.1.feed_forward.experts")
    with pytest.raises(ValueError, match=r"no kernel for experts \(blocks.0.*\); give product='torch', or skip=\('blo"):
        quantise(model(**changes), product="triton")
    small = quantise(model(**changes), product="triton", skip=left)
    assert [m for m in small.modules() if isinstance(m, QuantisedExperts)] == []


def test_moving_a_layer_to_16_bits_leaves_its_scales_as_they_are() -> None:
    quantised = QuantisedLinear.of(layer(), bits=4)
    scales = quantised.scales.clone()
    assert torch.equal(quantised.to(torch.bfloat16).scales, scales)
    assert quantised.to("meta").scales.device.type == "meta"


def test_a_state_dict_carries_a_quantised_layer() -> None:
    one, other = (QuantisedLinear.of(layer(), bits=4) for _ in range(2))
    other.load_state_dict({name: torch.zeros_like(x) for name, x in one.state_dict().items()})
    assert not other.dequantised().any()
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.dequantised(), other.dequantised())


def test_its_products_are_counted_and_compiled_code_sees_through_it() -> None:
    quantised = QuantisedLinear.of(layer(), product="triton").to("meta")
    x = torch.empty(3, 256, device="meta")
    with torch.no_grad():
        assert torch.compile(quantised, backend="eager", fullgraph=True)(x).shape == (3, 40)
        with FlopCounterMode(display=False) as counter:
            quantised(x)
    assert counter.get_total_flops() == 2 * 3 * 256 * 40


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"bits": 3}, "bits=3: wanted one of 8, 4"),
        ({"product": "cuda"}, "product='cuda': wanted one of torch, triton"),
        ({"bits": 4, "group_size": 128}, r"cut the 64 inputs of layer 'blocks.0.* give group_size=32 or 64"),
        ({"bits": 4, "group_size": 48}, "group_size=48 does not cut"),
        ({"skip": ("haed",)}, "skip='haed' is no linear layer of the model; did you mean 'head'?"),
    ],
)  # fmt: skip
def test_what_cannot_be_quantised_is_refused_and_nothing_is_replaced(asked: dict[str, Any], text: str) -> None:
    whole = model()
    with pytest.raises(ValueError, match=text.replace("?", r"\?")):
        quantise(whole, **asked)
    assert not any(isinstance(m, QuantisedLinear) for m in whole.modules())


def test_other_dtypes_shapes_and_a_bare_layer_are_refused_with_the_remedy(device: torch.device) -> None:
    with pytest.raises(TypeError, match=r"weights of torch\.float64: wanted float32, bfloat16 or float16; cast with"):
        quantise(nn.Sequential(layer(dtype=torch.float64)))
    with pytest.raises(ValueError, match=r"one Linear, .* take QuantisedLinear.of\(model\)"):
        quantise(layer())
    (mixture, _) = expert_layers(model(feed_forward="moe", experts=ExpertConfig(num_experts=2)))
    with pytest.raises(ValueError, match=r"one Experts, .* take the layer that holds them"):
        quantise(mixture.experts)
    with pytest.raises(ValueError, match=r"cut the 100 inputs .* bits=8, or skip=\('0',\)"):
        quantise(nn.Sequential(layer(100)), bits=4)
    quantised = QuantisedLinear.of(layer(), product="triton").to(device)
    with pytest.raises(ValueError, match=r"x \(..., d_in\) of the weight's d_in 256; got x \(3, 255\)"):
        quantised(torch.ones(3, 255, device=device))
    with pytest.raises(TypeError, match=r"wants x of float32, bfloat16 or float16, got torch\.float64"):
        quantised(torch.ones(3, 256, dtype=torch.float64, device=device))
    with pytest.raises(RuntimeError, match=r"quantised_product has no derivative; call it under torch.no_grad\(\)"):
        quantised(torch.ones(3, 256, device=device, requires_grad=True)).sum().backward()
    assert GROUP_SIZES[0] == 32, "half a group is 16, the least that tl.dot takes"
