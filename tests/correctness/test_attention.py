"""What is special about the lab's own variants; all that every variant is held to is in test_attention_suite.py.

Shapes: q, out (B, H, N_q, D); k, v (B, H, N_k, D); logsumexp (B, H, N_q). Budgets are derived, see
perflab.correctness.budget; the candidate runs as perflab.correctness.verify says.
"""

from collections.abc import Callable, Mapping
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from perflab.attention.plain import attention_magnitudes, plain_attention
from perflab.correctness import compare, verify
from perflab.lab.attention import (
    IMPLEMENTATIONS,
    FlashAttentionPyTorch,
    attention,
    attention_with_logsumexp,
    reference_attention,
)
from perflab.lab.attention.tiled import TILE

pytestmark = pytest.mark.correctness

# Those that compile for each shape are in test_attention_variants.py, with fewer shapes.
VARIANTS = tuple(name for name, claims in IMPLEMENTATIONS.items() if name != "reference" and not claims.compiles)
FLASH = ("tiled", "triton")
MASKS = {"causal": True, "full": False}
MakeInputs = Callable[[int], Mapping[str, Tensor]]

every_mask = pytest.mark.parametrize("is_causal", MASKS.values(), ids=MASKS.keys())


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

        return {"q": draw(num_queries, q_factor), "k": draw(num_keys, kv_factor), "v": draw(num_keys, kv_factor)}

    return make


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
