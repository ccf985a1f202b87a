"""What is special about PyTorch's own attention variants: pinned backends, FlexAttention, compiled attention.

Shapes: q, out (B, H, N_q, D); k, v (B, H_kv, N_k, D); logsumexp (B, H, N_q).
"""

import types
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.profiler import profile
from torch.nn.attention import SDPBackend, sdpa_kernel

from perflab.attention.plain import attention_magnitudes, plain_attention
from perflab.correctness import verify
from perflab.lab.attention import (
    IMPLEMENTATIONS,
    BackendRefusedError,
    attention,
    attention_with_logsumexp,
    reference_attention,
)
from perflab.lab.attention.compiling import compiled_apart, require_compiler
from perflab.lab.attention.flex import _compiled as compiled_flex
from perflab.lab.attention.flex import band_block_mask
from perflab.lab.attention.scoring import make_scoring
from perflab.lab.attention.sdpa import BACKENDS
from perflab.lab.models import ModelConfig, TransformerLM

pytestmark = pytest.mark.correctness

COMPILING = tuple(name for name, claims in IMPLEMENTATIONS.items() if claims.compiles)
EVERYTHING = {"is_causal": True, "causal_alignment": "bottom-right", "window_size": (30, 0), "softcap": 2.0}
# What runs, by device and variant: the operator below `scaled_dot_product_attention`.
OPERATORS = {
    ("cpu", "sdpa-math"): "aten::_scaled_dot_product_attention_math",
    ("cpu", "sdpa-flash"): "aten::_scaled_dot_product_flash_attention_for_cpu",
    ("cuda", "sdpa-math"): "aten::_scaled_dot_product_attention_math",
    ("cuda", "sdpa-flash"): "aten::_scaled_dot_product_flash_attention",
    ("cuda", "sdpa-efficient"): "aten::_scaled_dot_product_efficient_attention",
    ("cuda", "sdpa-cudnn"): "aten::_scaled_dot_product_cudnn_attention",
}


@pytest.fixture(autouse=True)
def there(request: pytest.FixtureRequest, device: torch.device) -> None:
    """Skips a variant that does not exist on the device."""
    impl = getattr(request.node, "callspec", None) and request.node.callspec.params.get("impl")
    if impl and not IMPLEMENTATIONS[impl].runs_on(device.type):
        pytest.skip(f"{impl} does not exist on {device.type}")


@pytest.fixture
def on_a_cpu(device: torch.device) -> None:
    if device.type != "cpu":
        pytest.skip("told on a CPU")


def drawn(
    seed: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    *,
    heads: tuple[int, int] = (4, 2),
    lengths: tuple[int, int] = (150, 97),
) -> dict[str, Tensor]:
    generator = torch.Generator(device).manual_seed(seed)

    def draw(heads: int, length: int) -> Tensor:
        return torch.randn(1, heads, length, 32, generator=generator, device=device).to(dtype)

    return {"q": draw(heads[0], lengths[0]), "k": draw(heads[1], lengths[1]), "v": draw(heads[1], lengths[1])}


def hold(impl: str, settings: Mapping[str, Any], device: torch.device) -> None:
    claims = IMPLEMENTATIONS[impl].on(device.type)
    verify(
        partial(attention_with_logsumexp, impl=impl),
        lambda seed: drawn(seed, device),
        reference=reference_attention,
        plain=plain_attention,
        magnitudes=attention_magnitudes,
        outputs=("out", "logsumexp"),
        gradient_of=("out", "logsumexp") if claims.gradients else (),
        settings=settings,
    )


# --- pinned backends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("impl", BACKENDS)
def test_a_pinned_backend_and_no_other_runs(impl: str, device: torch.device) -> None:
    inputs = drawn(0, device, torch.bfloat16, heads=(2, 2), lengths=(64, 64)).values()
    with profile(use_cpu=True, use_kineto=True) as profiler:
        attention(*inputs, is_causal=True, impl=impl)
    ran = {event.name for event in profiler.function_events if event.name.startswith("aten::_scaled_dot_product")}
    assert ran == {OPERATORS[device.type, impl]}


def test_pinning_leaves_the_callers_choice_as_it_was(device: torch.device) -> None:
    inputs = drawn(0, device, torch.bfloat16).values()
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION]):
        attention(*inputs, impl="sdpa-flash")
        assert not torch.backends.cuda.flash_sdp_enabled()
        assert torch.backends.cuda.math_sdp_enabled()
    assert torch.backends.cuda.flash_sdp_enabled()


def test_a_pinned_backend_that_does_not_take_the_inputs_says_why_and_runs_nothing(device: torch.device) -> None:
    columns_outermost = [x.mT.contiguous().mT for x in drawn(0, device, torch.bfloat16).values()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own telling of the same
        with pytest.raises(BackendRefusedError) as raised:
            attention(*columns_outermost, impl="sdpa-flash")
    text = str(raised.value)
    assert text.startswith(
        "attention impl 'sdpa-flash': PyTorch's FLASH_ATTENTION does not take q (1, 4, 150, 32), k (1, 2, 97, 32), "
        f"bfloat16 on {columns_outermost[0].device}. PyTorch says: "
    )
    assert "require the last dimension of the input to have stride 1" in text
    assert text.endswith(
        ". Choose impl='sdpa', where PyTorch chooses the backend, or 'sdpa-math', which takes everything"
    )


@pytest.mark.usefixtures("on_a_cpu")
@pytest.mark.parametrize("impl", ["sdpa-efficient", "sdpa-cudnn"])
def test_a_backend_that_does_not_exist_on_the_device_says_so(impl: str) -> None:
    inputs = drawn(0, torch.device("cpu"), torch.bfloat16, heads=(2, 2)).values()
    with pytest.raises(
        RuntimeError, match=rf"{impl}' exists on cuda alone, got tensors on cpu; .*one of: reference, n"
    ):
        attention(*inputs, impl=impl)


def test_a_pinned_backend_does_not_fall_back_on_tensors_without_data() -> None:
    """On `meta` PyTorch would run its unfused mathematics, whatever is pinned."""
    inputs = drawn(0, torch.device("cpu"), torch.bfloat16, heads=(2, 2)).values()
    with pytest.raises(RuntimeError, match="sdpa-flash' exists on cpu and cuda alone, got tensors on meta"):
        attention(*(x.to("meta") for x in inputs), impl="sdpa-flash")


@pytest.mark.parametrize("impl", BACKENDS)
def test_what_a_pinned_backend_does_not_claim_is_refused_by_name(impl: str, device: torch.device) -> None:
    inputs = drawn(0, device, torch.bfloat16, heads=(2, 2)).values()
    with pytest.raises(NotImplementedError, match=rf"'{impl}' has no window; choose one of: reference, naive, tiled"):
        attention(*inputs, impl=impl, window_size=(3, 0))


# --- FlexAttention -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(1, 1), (300, 513), (640, 384)], ids=str)
# A bound that equals where a block begins or ends (127 before a multiple of 128, or 0 at one token) tells < from <=.
@pytest.mark.parametrize("lower", [None, -700, -130, -127, 0])
@pytest.mark.parametrize("upper", [None, -300, -127, -1, 700])
def test_a_bands_blocks_are_those_that_pytorch_finds_by_looking_at_every_score(
    lower: int | None, upper: int | None, lengths: tuple[int, int]
) -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    mask = band_block_mask(lower, upper, *lengths, torch.device("cpu"))
    if lower is None and upper is None:
        assert mask is None
        return
    wanted = create_block_mask(mask.mask_mod, None, None, *lengths, device="cpu")
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(mask, name), getattr(wanted, name)), name
    assert torch.equal(mask.to_dense(), wanted.to_dense())
    assert mask.shape == wanted.shape


def test_a_block_mask_is_made_once_for_a_band_and_its_lengths() -> None:
    cpu = torch.device("cpu")
    assert band_block_mask(None, 0, 300, 300, cpu) is band_block_mask(None, 0, 300, 300, cpu)


def test_a_query_that_sees_no_key_gets_zero_and_minus_infinity_from_flex(device: torch.device) -> None:
    out, logsumexp = attention_with_logsumexp(*drawn(0, device).values(), impl="flex", **EVERYTHING)
    assert bool((out[:, :, :53] == 0).all())
    assert bool((logsumexp[:, :, :53] == -torch.inf).all())
    assert bool(logsumexp[:, :, 53:].isfinite().all())


@pytest.mark.usefixtures("on_a_cpu")
def test_flex_has_no_backward_on_a_cpu_and_says_who_has() -> None:
    q, k, v = drawn(0, torch.device("cpu")).values()
    q.requires_grad_()
    with pytest.raises(
        NotImplementedError,
        match=r"'flex' has no backward on cpu; call it under torch.no_grad\(\), or choose one of: .*tiled.*compiled",
    ):
        attention(q, k, v, impl="flex")
    with torch.no_grad():
        assert not attention(q, k, v, impl="flex").requires_grad


@pytest.mark.usefixtures("on_a_cpu")
def test_flex_warns_of_nothing() -> None:
    """It runs unfused on a CPU, which is documented, and by the way of asking for the log-sum-exp that is current."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("error", FutureWarning)
        attention_with_logsumexp(*drawn(0, torch.device("cpu"), lengths=(31, 33)).values(), impl="flex")


def test_flex_asks_for_the_logsumexp_as_older_versions_of_pytorch_want_it(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.nn.attention import flex_attention as flex

    inputs = drawn(0, device).values()
    wanted = attention_with_logsumexp(*inputs, impl="flex", is_causal=True)
    monkeypatch.delattr(flex, "AuxRequest")
    compiled_flex.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        found = attention_with_logsumexp(*inputs, impl="flex", is_causal=True)
    compiled_flex.cache_clear()
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


# --- compiled ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("impl", COMPILING)
def test_what_is_compiled_is_right_with_all_settings_at_once(impl: str, device: torch.device) -> None:
    hold(impl, EVERYTHING, device)


@pytest.mark.parametrize("impl", COMPILING)
def test_a_shape_that_was_seen_before_compiles_nothing(impl: str, device: torch.device) -> None:
    from torch._dynamo.utils import counters

    def graphs() -> int:
        return int(counters["stats"]["unique_graphs"])

    inputs, others = (drawn(0, device, lengths=(n, 40)).values() for n in (33, 34))
    attention(*inputs, impl=impl, is_causal=True)
    before = graphs()
    attention(*inputs, impl=impl, is_causal=True)
    assert graphs() == before
    if impl == "flex":  # another shape does; told by the one that takes no seconds for it
        attention(*others, impl=impl, is_causal=True)
        assert graphs() == before + 1


def doubled(x: Tensor) -> Tensor:
    return x * 2 + 1


@pytest.fixture
def dynamo() -> Iterator[Any]:
    import torch._dynamo as dynamo

    yield dynamo
    dynamo.reset()


def test_more_shapes_than_dynamo_keeps_are_all_compiled(dynamo: Any) -> None:
    from torch._dynamo.utils import counters

    before = counters["stats"]["unique_graphs"]
    assert isinstance(doubled, types.FunctionType)
    for length in range(2, dynamo.config.recompile_limit + 5):
        compiled_apart(doubled, backend="eager")(torch.ones(length))
    assert counters["stats"]["unique_graphs"] - before == dynamo.config.recompile_limit + 3


def test_one_compiled_function_past_that_limit_raises_and_does_not_run_uncompiled(dynamo: Any) -> None:
    assert isinstance(doubled, types.FunctionType)
    compiled = compiled_apart(doubled, backend="eager")
    for length in range(2, dynamo.config.recompile_limit + 2):
        compiled(torch.ones(length))
    with pytest.raises(dynamo.exc.FailOnRecompileLimitHit):
        compiled(torch.ones(1000))


def test_a_missing_cpp_compiler_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(
        RuntimeError, match=r"'compiled' compiles C\+\+ for tensors on a CPU, and there is no no-such-compiler: install"
    ):
        attention(*drawn(0, torch.device("cpu")).values(), impl="compiled")
    require_compiler(torch.device("cuda"), name="any", instead="none")  # compiles with Triton there


# --- all of them -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("impl", [name for name in IMPLEMENTATIONS if not name.startswith("triton")])
def test_autocast_casts_the_inputs_and_the_variant_runs_in_that_dtype(impl: str, device: torch.device) -> None:
    inputs = list(drawn(0, device, heads=(2, 2), lengths=(64, 64)).values())
    mixed = [inputs[0], inputs[1].bfloat16(), inputs[2]]
    with torch.autocast(device.type, dtype=torch.bfloat16):
        out = attention(*mixed, is_causal=True, impl=impl)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, attention(*(x.bfloat16() for x in inputs), is_causal=True, impl=impl))


@pytest.mark.parametrize("impl", [name for name in IMPLEMENTATIONS if name not in ("reference", "triton")])
def test_a_model_gives_the_same_logits_with_every_variant(impl: str, device: torch.device) -> None:
    def logits(attention: str) -> Tensor:
        torch.manual_seed(0)
        config = ModelConfig(
            vocab_size=50, context_length=16, d_model=32, d_ff=64, num_layers=1, num_heads=2, attention=attention
        )
        model = TransformerLM(config).to(device, torch.bfloat16)
        found: Tensor = model(torch.arange(16, device=device)[None])
        return found

    with torch.no_grad():
        found, wanted = logits(impl), logits("reference")
    # Two roundings to bfloat16 apart, in logits of the order of one.
    assert (found - wanted).abs().max().item() <= 4 * torch.finfo(torch.bfloat16).eps * wanted.abs().max().item()


def test_scoring_settings_of_compiled_variants_may_be_lists(device: torch.device) -> None:
    """A window read from a configuration file is a list, and no key of a cache."""
    inputs = drawn(0, device).values()
    window: Any = [20, 3]
    assert make_scoring(*list(inputs)[:2], window_size=window).lower == -20
    wanted = attention(*inputs, impl="naive", window_size=(20, 3))
    torch.testing.assert_close(attention(*inputs, impl="flex", window_size=window), wanted)


@pytest.mark.parametrize("scale", [-0.5, 0.0])
@pytest.mark.parametrize("impl", ["triton", "triton-tma"])
def test_a_scale_may_be_negative_or_zero(impl: str, scale: float, device: torch.device) -> None:
    """The forward kernels take the maximum before they scale, which turns round where the scale is negative."""
    q, k, v = (torch.randn(1, 2, 70, 32, device=device, requires_grad=True) for _ in range(3))
    try:
        out = attention(q, k, v, is_causal=True, scale=scale, impl=impl)
    except BackendRefusedError as refusal:  # a GPU without TMA
        pytest.skip(str(refusal))
    wanted = attention(q.double(), k.double(), v.double(), is_causal=True, scale=scale, impl="naive")
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-5)
    upstream = torch.randn_like(out)
    found = torch.autograd.grad(out, (q, k, v), upstream)
    expected = torch.autograd.grad(wanted, (q, k, v), upstream.double())
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-4)
