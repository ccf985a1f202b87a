"""Dropout of attention's weights, held by what must be so whatever is drawn: no grid can hold it to a reference.

Shapes: q, k, v (B, H, N, D). With v the identity (N = D) the output is the weights themselves, after dropout.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from perflab.lab.attention import IMPLEMENTATIONS, BackendRefusedError, attention, attention_with_logsumexp
from perflab.lab.attention.registry import DROPOUT

pytestmark = pytest.mark.correctness

P = 0.3
N = 32


def inputs(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """q and k drawn, v the identity."""
    q, k = torch.randn(2, 2, 3, N, N, generator=torch.Generator().manual_seed(5)).to(device, dtype)
    return q, k, torch.eye(N, device=device, dtype=dtype).expand_as(q).contiguous()


def dtype_of(impl: str, device: torch.device) -> torch.dtype:
    """The first that it takes there; skipped where it has no dropout there."""
    claims = IMPLEMENTATIONS[impl]
    if not claims.runs_on(device.type) or DROPOUT not in claims.on(device.type).features:
        pytest.skip(f"{impl} claims no dropout on {device.type}")
    return torch.float32 if torch.float32 in claims.on(device.type).dtypes else torch.bfloat16


def run(impl: str, q: Tensor, k: Tensor, v: Tensor, *, seed: int = 0, dropout_p: float = P) -> Tensor:
    torch.manual_seed(seed)
    try:
        return attention(q, k, v, impl=impl, is_causal=True, dropout_p=dropout_p)
    except BackendRefusedError as refusal:
        pytest.skip(str(refusal))


CLAIMING = [name for name, claims in IMPLEMENTATIONS.items() if claims.has(frozenset((DROPOUT,)))]


def test_the_textbook_and_pytorchs_own_claim_it() -> None:
    assert CLAIMING == ["naive", "sdpa", "sdpa-math", "sdpa-flash", "sdpa-efficient", "sdpa-cudnn"]


@pytest.mark.parametrize("impl", CLAIMING)
def test_each_weight_is_dropped_or_scaled_and_the_share_is_p(impl: str, device: torch.device) -> None:
    dtype = dtype_of(impl, device)
    q, k, v = inputs(device, dtype)
    weights, out = run(impl, q, k, v, dropout_p=0.0).double(), run(impl, q, k, v).double()
    kept = out != 0
    steps = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(out, torch.where(kept, weights / (1 - P), 0.0), rtol=steps, atol=steps)
    seen = weights > 0
    assert seen.sum() == 6 * N * (N + 1) // 2
    share, deviation = (seen & ~kept).sum() / seen.sum(), (P * (1 - P) / seen.sum()) ** 0.5
    assert abs(share - P) < 4 * deviation  # of a fixed seed: no chance is left


@pytest.mark.parametrize("impl", CLAIMING)
def test_one_seed_drops_the_same_and_another_seed_others(impl: str, device: torch.device) -> None:
    q, k, v = inputs(device, dtype_of(impl, device))
    assert torch.equal(run(impl, q, k, v), run(impl, q, k, v))
    assert not torch.equal(run(impl, q, k, v), run(impl, q, k, v, seed=1))


@pytest.mark.parametrize("impl", CLAIMING)
def test_a_probability_of_zero_changes_nothing_and_draws_nothing(impl: str, device: torch.device) -> None:
    q, k, v = inputs(device, dtype_of(impl, device))
    generator = torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state(device)
    assert torch.equal(attention(q, k, v, impl=impl, dropout_p=0.0), attention(q, k, v, impl=impl))
    after = torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state(device)
    assert torch.equal(generator, after)


@pytest.mark.parametrize("impl", CLAIMING)
def test_the_gradient_flows_through_the_kept_weights_alone(impl: str, device: torch.device) -> None:
    """Of a sum with upstream g: dv_j = sum_i out_ij g_i, where out is what was kept; and a dropped row's q has none."""
    dtype = dtype_of(impl, device)
    q, k, v = (x.requires_grad_() for x in inputs(device, dtype))
    out = run(impl, q, k, v)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(7)).to(device, dtype)
    dq, dv = torch.autograd.grad(out, (q, v), upstream)
    scale = torch.finfo(dtype).eps * N
    torch.testing.assert_close(dv.double(), out.detach().double().mT @ upstream.double(), rtol=8 * scale, atol=scale)
    # The kept weights as a function of q, written out in float64 with what was seen to be kept.
    wide_q = q.detach().double().requires_grad_()
    scores = (wide_q @ k.detach().double().mT) * N**-0.5
    future = torch.ones(N, N, dtype=torch.bool, device=device).triu(1)
    weights = torch.softmax(scores.masked_fill(future, -torch.inf), dim=-1)
    wanted = torch.autograd.grad(torch.where(out != 0, weights / (1 - P), 0.0), wide_q, upstream.double())[0]
    torch.testing.assert_close(dq.double(), wanted, rtol=8 * scale, atol=scale)


def test_the_logsumexp_is_of_all_scores_whatever_is_dropped(device: torch.device) -> None:
    q, k, v = inputs(device, torch.float32)
    torch.manual_seed(0)
    out, logsumexp = attention_with_logsumexp(q, k, v, impl="naive", dropout_p=P)
    assert torch.equal(logsumexp, attention_with_logsumexp(q, k, v, impl="naive")[1])
    assert (out == 0).any()


@pytest.mark.parametrize("impl", [name for name in IMPLEMENTATIONS if name not in CLAIMING])
def test_a_variant_without_dropout_refuses_it_and_names_those_that_have_it(impl: str, device: torch.device) -> None:
    if not IMPLEMENTATIONS[impl].runs_on(device.type):
        pytest.skip(f"{impl} does not exist on {device.type}")
    q, k, v = inputs(device, torch.float32)
    with pytest.raises(
        NotImplementedError, match=rf"{impl}' has no dropout; choose one of: naive, sdpa, sdpa-math, sdpa-flash, "
    ):
        attention(q, k, v, impl=impl, dropout_p=0.1)


def test_on_a_cpu_the_flash_kernel_refuses_it() -> None:
    q, k, v = inputs(torch.device("cpu"), torch.float32)
    with pytest.raises(NotImplementedError, match="'sdpa-flash' has no dropout; choose one of: naive, sdpa, "):
        attention(q, k, v, impl="sdpa-flash", dropout_p=0.1)


@pytest.mark.parametrize("dropout_p", [1.0, -0.1, float("nan")])
def test_what_is_no_probability_is_refused(dropout_p: float, device: torch.device) -> None:
    q, k, v = inputs(device, torch.float32)
    with pytest.raises(ValueError, match=rf"dropout_p={dropout_p}: wanted a probability of at least 0 and below 1"):
        attention(q, k, v, impl="naive", dropout_p=dropout_p)
