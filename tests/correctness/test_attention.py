"""Every attention variant against the float64 definition, in what it claims: output, log-sum-exp, gradients.

Shapes: q, out (B, H, N_q, D); k, v (B, H, N_k, D); logsumexp (B, H, N_q). Budgets are derived, see
perflab.correctness.budget; the candidate runs as perflab.correctness.verify says.
"""

from collections.abc import Callable, Mapping
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from perflab.correctness import compare, expanded_ones, random_upstream, verify
from perflab.lab.attention import (
    IMPLEMENTATIONS,
    BackendRefusedError,
    FlashAttentionPyTorch,
    attention,
    attention_with_logsumexp,
    reference_attention,
)
from perflab.lab.attention.tiled import TILE

from .plain_attention import attention_magnitudes, plain_attention

pytestmark = pytest.mark.correctness

# Those that compile for each shape are in test_attention_variants.py, with fewer shapes.
VARIANTS = tuple(name for name, claims in IMPLEMENTATIONS.items() if name != "reference" and not claims.compiles)
FLASH = ("tiled", "triton")
MASKS = {"causal": True, "full": False}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SHAPES = {  # batch, heads, queries, keys, head dimension
    "1x1x128x128x64": (1, 1, 128, 128, 64),  # whole tiles
    "2x3x203x113x40": (2, 3, 203, 113, 40),
    "1x2x113x203x59": (1, 2, 113, 203, 59),  # no dimension divides by anything
    "2x1x97x1x16": (2, 1, 97, 1, 16),  # a single key
    "1x2x1x239x128": (1, 2, 1, 239, 128),  # a single query
    "1x1x17x3x256": (1, 1, 17, 3, 256),
}
MakeInputs = Callable[[int], Mapping[str, Tensor]]

every_variant = pytest.mark.parametrize("impl", VARIANTS)
every_mask = pytest.mark.parametrize("is_causal", MASKS.values(), ids=MASKS.keys())
every_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES.keys())


@pytest.fixture(autouse=True)
def there(request: pytest.FixtureRequest, device: torch.device) -> None:
    """Skips a variant that does not exist on the device."""
    impl = getattr(request.node, "callspec", None) and request.node.callspec.params.get("impl")
    if impl and not IMPLEMENTATIONS[impl].runs_on(device.type):
        pytest.skip(f"{impl} does not exist on {device.type}")


def normal_inputs(
    shape: tuple[int, int, int, int, int],
    dtype: torch.dtype,
    device: torch.device,
    q_factor: float = 1.0,
    kv_factor: float = 1.0,
) -> MakeInputs:
    """Normal q, k and v, q times its factor, k and v times theirs."""
    batch, heads, num_queries, num_keys, head_dim = shape

    def make(seed: int) -> dict[str, Tensor]:
        generator = torch.Generator(device).manual_seed(seed)

        def draw(length: int, factor: float) -> Tensor:
            size = (batch, heads, length, head_dim)
            return (torch.randn(size, generator=generator, device=device) * factor).to(dtype)

        return {
            "q": draw(num_queries, q_factor),
            "k": draw(num_keys, kv_factor),
            "v": draw(num_keys, kv_factor),
        }

    return make


def hold(
    impl: str,
    make_inputs: MakeInputs,
    *,
    is_causal: bool,
    scale: float | None = None,
    gradient_of: tuple[str, ...] = ("out",),
    upstream: Callable[[Tensor, int], Tensor] = random_upstream,
) -> None:
    """Verify one variant in all that it claims where the inputs are."""
    inputs = make_inputs(0)
    claims = IMPLEMENTATIONS[impl].on(inputs["q"].device.type)
    if inputs["q"].dtype not in claims.dtypes:
        pytest.skip(f"{impl} does not take {inputs['q'].dtype} there")
    try:
        verify(
            partial(attention_with_logsumexp if claims.logsumexp else attention, impl=impl),
            make_inputs,
            reference=reference_attention,
            plain=plain_attention,
            magnitudes=attention_magnitudes,
            outputs=("out", "logsumexp") if claims.logsumexp else ("out",),
            gradient_of=gradient_of if claims.gradients else (),
            upstream=upstream,
            settings={"is_causal": is_causal, "scale": scale},
        )
    except BackendRefusedError as refusal:  # a pinned backend may be choosy; it says so and computes nothing
        pytest.skip(str(refusal))


@every_variant
@every_dtype
@every_mask
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_a_variant_is_right(
    impl: str,
    dtype: torch.dtype,
    is_causal: bool,
    shape: tuple[int, int, int, int, int],
    device: torch.device,
) -> None:
    hold(impl, normal_inputs(shape, dtype, device), is_causal=is_causal)


@every_variant
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@every_mask
def test_large_magnitudes_and_so_peaked_scores_are_right(
    impl: str, dtype: torch.dtype, is_causal: bool, device: torch.device
) -> None:
    """Scores with a standard deviation of 15: one key takes nearly all of each row."""
    hold(impl, normal_inputs((1, 2, 113, 150, 64), dtype, device, q_factor=5, kv_factor=3), is_causal=is_causal)


@every_variant
@every_mask
def test_constant_scores_average_the_values(impl: str, is_causal: bool, device: torch.device) -> None:
    hold(impl, normal_inputs((1, 1, 70, 141, 32), torch.float32, device, q_factor=0.0), is_causal=is_causal)


@every_variant
@pytest.mark.parametrize("scale", [0.3, 1.0, -0.2])
def test_any_scale_is_right(impl: str, scale: float, device: torch.device) -> None:
    if impl in ("sdpa", "sdpa-flash") and scale < 0:
        pytest.skip("PyTorch's CPU kernel (2.13) gives NaN for a negative scale under a causal mask")
    hold(impl, normal_inputs((1, 2, 65, 90, 32), torch.float32, device), is_causal=True, scale=scale)


def as_heads_last(x: Tensor) -> Tensor:
    """The layout that a projection leaves: (B, N, H, D), seen as (B, H, N, D)."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def inside_a_larger_tensor(x: Tensor) -> Tensor:
    """With an offset, and gaps after each row and head."""
    larger = torch.zeros(*x.shape[:2], x.shape[2] + 3, x.shape[3] + 5, dtype=x.dtype, device=x.device)
    view = larger[:, :, 2:-1, 4:-1]
    view.copy_(x)
    return view


def one_head_for_all(x: Tensor) -> Tensor:
    return x[:, :1].expand(x.shape)


def columns_outermost(x: Tensor) -> Tensor:
    return x.mT.contiguous().mT


LAYOUTS = (as_heads_last, inside_a_larger_tensor, one_head_for_all, columns_outermost)


@every_variant
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_any_strides_are_right(impl: str, layout: Callable[[Tensor], Tensor], device: torch.device) -> None:
    make = normal_inputs((2, 3, 70, 113, 40), torch.float32, device)
    hold(impl, lambda seed: {name: layout(x) for name, x in make(seed).items()}, is_causal=True)


@every_variant
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_the_expanded_gradient_of_a_sum_is_right(impl: str, dtype: torch.dtype, device: torch.device) -> None:
    make = normal_inputs((2, 2, 113, 113, 40), dtype, device)
    hold(impl, make, is_causal=True, upstream=expanded_ones)


@pytest.mark.parametrize("impl", [name for name in VARIANTS if IMPLEMENTATIONS[name].logsumexp])
@every_mask
def test_the_logsumexp_is_differentiable(impl: str, is_causal: bool, device: torch.device) -> None:
    make = normal_inputs((1, 2, 113, 150, 40), torch.float32, device)
    hold(impl, make, is_causal=is_causal, gradient_of=("out", "logsumexp"))
    hold(impl, make, is_causal=is_causal, gradient_of=("logsumexp",))


@pytest.mark.parametrize("impl", [name for name in VARIANTS if torch.float64 in IMPLEMENTATIONS[name].dtypes])
def test_float64_is_computed_in_float64(impl: str, device: torch.device) -> None:
    inputs = normal_inputs((1, 2, 150, 140, 24), torch.float64, device)(0).values()
    out = attention(*inputs, is_causal=True, impl=impl)
    wanted, _ = reference_attention(*inputs, is_causal=True)
    plain, _ = plain_attention(*inputs, is_causal=True)
    magnitude = attention_magnitudes(*inputs, upstream={}, is_causal=True)["out"]
    report = compare("out", out, wanted, plain, magnitude=magnitude)
    assert report.ok, report


def test_the_tiled_gradients_are_those_of_its_forward(device: torch.device) -> None:
    """Numerically, in float64, over more than one tile; output and log-sum-exp at once."""
    inputs = normal_inputs((1, 1, TILE + 5, TILE + 9, 3), torch.float64, device)(0).values()
    leaves = [x.requires_grad_() for x in inputs]
    for is_causal in MASKS.values():
        function = partial(attention_with_logsumexp, is_causal=is_causal, impl="tiled")
        assert torch.autograd.gradcheck(function, leaves, fast_mode=True)


@pytest.mark.parametrize("impl", FLASH)
def test_activation_checkpointing_changes_no_gradient(impl: str, device: torch.device) -> None:
    leaves = [x.requires_grad_() for x in normal_inputs((1, 2, 40, 40, 16), torch.float32, device)(0).values()]
    function = partial(attention, is_causal=True, impl=impl)
    wanted = torch.autograd.grad(function(*leaves).sum(), leaves)
    again = checkpoint(function, *leaves, use_reentrant=False)
    for one, other in zip(torch.autograd.grad(again.sum(), leaves), wanted, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("impl", FLASH)
def test_a_second_derivative_is_refused_and_not_wrong(impl: str, device: torch.device) -> None:
    q = torch.randn(1, 1, 4, 8, device=device, requires_grad=True)
    out = attention(q, q, q, impl=impl)
    with pytest.raises(RuntimeError, match=r"no second derivative.*impl='naive' or drop create_graph"):
        torch.autograd.grad(out.sum(), q, create_graph=True)


@pytest.mark.parametrize("impl", FLASH)
@every_mask
def test_the_autograd_functions_take_one_head_and_save_its_logsumexp(
    impl: str, is_causal: bool, device: torch.device
) -> None:
    from perflab.lab.attention import FlashAttentionTriton

    function = {"tiled": FlashAttentionPyTorch, "triton": FlashAttentionTriton}[impl]
    shape = batch, length, head_dim = 3, 130, 40
    make = normal_inputs((batch, 1, length, length, head_dim), torch.float32, device)
    q, k, v = (x.squeeze(1).requires_grad_() for x in make(0).values())
    out = function.apply(q, k, v, is_causal)
    saved = out.grad_fn.saved_tensors
    (logsumexp,) = [x for x in saved if x.shape == (batch, length)]
    assert [x.shape for x in saved if x is not logsumexp] == [shape] * 4
    assert torch.equal(out, attention(*(x.unsqueeze(1) for x in (q, k, v)), is_causal=is_causal, impl=impl).squeeze(1))

    def three_dimensional(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> tuple[Tensor, Tensor]:
        out = function.apply(q, k, v, is_causal)
        return out, next(x for x in out.grad_fn.saved_tensors if x.shape == q.shape[:-1])

    verify(
        three_dimensional,
        lambda seed: {name: x.squeeze(1) for name, x in make(seed).items()},
        reference=reference_attention,
        plain=plain_attention,
        magnitudes=attention_magnitudes,
        outputs=("out", "logsumexp"),
        gradient_of=("out",),
        settings={"is_causal": is_causal},
    )


@pytest.mark.parametrize("impl", [name for name in VARIANTS if IMPLEMENTATIONS[name].deterministic])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_variant_that_promises_it_repeats_bit_by_bit(impl: str, dtype: torch.dtype, device: torch.device) -> None:
    def run() -> tuple[Tensor, ...]:
        leaves = [x.requires_grad_() for x in normal_inputs((2, 2, 150, 203, 40), dtype, device)(0).values()]
        function = attention_with_logsumexp if IMPLEMENTATIONS[impl].logsumexp else attention
        found = function(*leaves, is_causal=True, impl=impl)
        results = found if isinstance(found, tuple) else (found,)
        return *results, *torch.autograd.grad(results[0].sum(), leaves)

    for one, other in zip(run(), run(), strict=True):
        assert torch.equal(one, other)
