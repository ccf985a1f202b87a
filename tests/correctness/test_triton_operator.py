"""The Triton attention as an operator of PyTorch's: what compiles, counts, fakes and casts sees through it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from perflab.lab.attention import attention, flash_attention
from perflab.lab.attention.triton_operator import (
    flash_attention_backward_op,
    flash_attention_gluon_op,
    flash_attention_one_pass_op,
    flash_attention_op,
    flash_attention_tma_op,
)

pytestmark = pytest.mark.correctness

BATCH, HEADS, KEY_HEADS, LENGTH, HEAD_DIM = 1, 2, 1, 40, 16
IMPLS = ("triton", "triton-tma", "triton-one-pass", "triton-gluon")
RULES: list[tuple[Any, ...]] = [(0.25, None, None, None, 0), (0.25, 3.0, -7, 0, 0)]


@pytest.fixture(autouse=True)
def _runs_here(request: pytest.FixtureRequest, device: torch.device, gluon_anywhere: None) -> None:
    params = getattr(request.node, "callspec", None)
    tma = params is not None and (
        "triton-tma" in params.params.values() or flash_attention_tma_op in params.params.values()
    )
    if tma and device.type == "cuda" and torch.cuda.get_device_capability(device) < (9, 0):
        pytest.skip("no TMA here")


def leaves(device: torch.device, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    return [
        torch.randn(BATCH, heads, LENGTH, HEAD_DIM, device=device, dtype=dtype, requires_grad=True)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    ]


@pytest.mark.parametrize("rules", RULES, ids=["full", "window-and-softcap"])
@pytest.mark.parametrize(
    "op",
    [flash_attention_op, flash_attention_tma_op, flash_attention_one_pass_op, flash_attention_gluon_op],
    ids=IMPLS,
)
def test_the_operators_keep_what_operators_promise(
    op: Callable[..., Any], rules: tuple[Any, ...], device: torch.device
) -> None:
    """Schema, fake implementation, autograd, and static and dynamic shapes under AOT: no alias, nothing changed."""
    torch.library.opcheck(op, (*leaves(device), *rules))


@pytest.mark.parametrize("rules", RULES, ids=["full", "window-and-softcap"])
@pytest.mark.parametrize("of_logsumexp", [False, True])
def test_so_does_the_backward(rules: tuple[Any, ...], of_logsumexp: bool, device: torch.device) -> None:
    q, k, v = (x.detach() for x in leaves(device))
    out, logsumexp = flash_attention_op(q, k, v, *rules)
    d_logsumexp = torch.randn_like(logsumexp) if of_logsumexp else None
    delta = torch.empty_like(logsumexp)
    torch.library.opcheck(
        flash_attention_backward_op, (torch.randn_like(out), d_logsumexp, q, k, v, out, logsumexp, delta, *rules)
    )


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_it_compiles_without_graph_breaks(impl: str, dynamic: bool, device: torch.device) -> None:
    def windowed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, impl=impl, is_causal=True, window_size=(5, 0), causal_alignment="bottom-right")

    compiled = torch.compile(windowed, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    inputs = leaves(device)
    for one, other in zip(
        torch.autograd.grad(windowed(*inputs).sum(), inputs),
        torch.autograd.grad(compiled(*inputs).sum(), inputs),
        strict=True,
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("impl", IMPLS)
def test_fake_tensors_pass_through(impl: str) -> None:
    with FakeTensorMode():
        inputs = leaves(torch.device("cpu"), torch.bfloat16)
        out = attention(*inputs, impl=impl, is_causal=True)
        gradients = torch.autograd.grad(out.sum(), inputs)
    assert (out.shape, out.dtype) == (inputs[0].shape, torch.bfloat16)
    assert [x.shape for x in gradients] == [x.shape for x in inputs]


@pytest.mark.parametrize("impl", IMPLS)
def test_flops_are_those_of_the_pairs_that_are_seen(impl: str, device: torch.device) -> None:
    inputs = leaves(device)
    pairs = LENGTH * (LENGTH + 1) // 2
    with FlopCounterMode(display=False) as counter:
        out = attention(*inputs, impl=impl, is_causal=True)
        forward = counter.get_total_flops()
        out.sum().backward()
    assert forward == 4 * BATCH * HEADS * pairs * HEAD_DIM
    assert counter.get_total_flops() - forward == 10 * BATCH * HEADS * pairs * HEAD_DIM


def test_autocast_casts_as_it_does_for_pytorchs_own(device: torch.device) -> None:
    inputs = leaves(device)
    with torch.autocast(device.type, torch.bfloat16):
        mixed = flash_attention(*inputs, is_causal=True)
        of_two_dtypes = flash_attention(*inputs[:2], inputs[2].bfloat16(), is_causal=True)
        by_hand, _ = flash_attention_op(*inputs, HEAD_DIM**-0.5, None, None, 0, 0)
        # The gradients come back through the casts, in the leaves' dtype.
        gradients = torch.autograd.grad(mixed.sum(), inputs)
    assert mixed.dtype == by_hand.dtype == torch.bfloat16
    assert torch.equal(mixed, by_hand)
    assert torch.equal(mixed, of_two_dtypes)
    assert torch.equal(mixed, flash_attention(*(x.bfloat16() for x in inputs), is_causal=True))
    assert [x.dtype for x in gradients] == [torch.float32] * 3


def test_the_logsumexp_alone_can_be_differentiated(device: torch.device) -> None:
    inputs = leaves(device)
    _, logsumexp = flash_attention(*inputs, return_logsumexp=True)
    _, wanted = attention_reference(inputs)
    got = torch.autograd.grad(logsumexp.sum(), inputs[:2])
    for one, other in zip(got, torch.autograd.grad(wanted.sum(), inputs[:2]), strict=True):
        torch.testing.assert_close(one, other.float())


def attention_reference(inputs: list[Tensor]) -> tuple[Tensor, Tensor]:
    from perflab.lab.attention import reference_attention

    return reference_attention(*inputs)


@pytest.mark.parametrize("impl", IMPLS)
def test_what_tma_cannot_read_in_place_goes_through_a_copy_and_comes_out_the_same(
    impl: str, device: torch.device
) -> None:
    """Odd head dimension, an offset of one element, heads last, one head for all."""
    torch.manual_seed(0)
    q = torch.randn(2, 9, 3, 21, device=device).transpose(1, 2)[..., 1:]
    k = torch.randn(2, 1, 13, 20, device=device).expand(2, 3, 13, 20)
    got = attention(q, k, k, impl=impl)
    torch.testing.assert_close(got, attention(q, k, k, impl="reference"), atol=1e-5, rtol=1e-5)
    assert got.stride() == torch.empty_like(q).stride()


def test_strides_past_the_kernels_32_bits_are_refused(device: torch.device) -> None:
    q = torch.ones(1, device=device).as_strided((1, 1, 1, 16), (1, 1, 2**23, 0))
    with pytest.raises(
        ValueError, match=r"strides of up to 8388607 .*got \(1, 1, 8388608, 0\) for q; call .contiguous"
    ):
        flash_attention(q, q, q)
