"""`verify` on functions small enough to see through: y = x * w, or a row sum, done rightly and wrongly."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from perflab.correctness import expanded_ones, random_upstream, same_bits, verify


def make_inputs(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(6, 8, generator=generator), "w": torch.randn(8, generator=generator)}


def product(x: Tensor, w: Tensor) -> Tensor:
    return x * w


def check(candidate: Callable[..., Any], make: Callable[[int], Mapping[str, Tensor]] = make_inputs, **how: Any) -> None:
    verify(candidate, make, reference=product, plain=product, **how)


def test_a_right_candidate_passes_and_both_runs_are_reported() -> None:
    reports = verify(product, make_inputs, reference=product, plain=product, gradient_of=("out",))
    assert len(reports) == 2
    assert all([tensor.name for tensor in report.tensors] == ["out", "dx", "dw"] for report in reports)


def without_the_last_row(x: Tensor, w: Tensor) -> Tensor:
    out = torch.empty_like(x)
    out[:-1] = (x * w)[:-1]
    return out


class ScalesItsGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        dw = (gradient * x).sum(0)
        return gradient.mul_(w), dw


BUFFER = torch.zeros(6, 8)
GRADIENT = {"gradient_of": ("out",)}


@pytest.mark.parametrize(
    ("wrong", "how", "said"),
    [
        (lambda x, w: x * w + 0.1, {}, r"run 1, seed 0:\nout is wrong: shape \(6, 8\), float32"),
        (lambda x, w: (x * w).detach(), GRADIENT, "out does not require a gradient though the inputs do"),
        (lambda x, w: x * w.detach(), GRADIENT, "dw is wrong: missing"),
        (without_the_last_row, {}, "8 of 48 elements are not finite where the reference is"),
        (lambda x, w: x.mul_(w).clone(), {}, "run 1: the candidate changed x, or memory between the elements"),
        (ScalesItsGradient.apply, GRADIENT, "changed the gradient of out"),
        (lambda x, w: BUFFER.copy_(x * w), {}, r"run 2 overwrote what run 1 had returned \(out\)"),
        (product, {"outputs": ("out", "total")}, "got 1 outputs, wanted 2: out, total"),
    ],
    ids=["report", "no backward", "no gradient", "unwritten", "in place", "upstream", "buffer", "too few outputs"],
)
def test_a_wrong_candidate_fails_with_what_is_wrong(wrong: Callable[..., Any], how: Any, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check(wrong, **how)


def test_a_wrong_gradient_fails_by_its_name_though_the_output_is_right() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
            x, w = ctx.saved_tensors
            return gradient * w, 2 * (gradient * x).sum(0)

    check(Doubled.apply)
    with pytest.raises(AssertionError, match="dw is wrong") as caught:
        check(Doubled.apply, gradient_of=("out",))
    assert "dx is right" in str(caught.value)


def test_memory_between_an_inputs_elements_is_watched() -> None:
    def with_gaps(seed: int) -> dict[str, Tensor]:
        x = torch.zeros(6, 12)
        x[:, :8] = make_inputs(seed)["x"]
        return {"x": x[:, :8], "w": make_inputs(seed)["w"]}

    def writes_past_the_row(x: Tensor, w: Tensor) -> Tensor:
        out = x * w
        x.as_strided((6, 12), (12, 1))[:, 8:] = 1.0
        return out

    check(product, with_gaps)
    with pytest.raises(AssertionError, match="changed x, or memory between the elements"):
        check(writes_past_the_row, with_gaps)


def test_bits_of_tensors_that_skip_elements_are_compared() -> None:
    x = torch.randn(6, 12)
    assert same_bits(x[:, ::2], x[:, ::2].clone())
    assert not same_bits(x[:, ::2], x[:, 1::2])


def test_an_output_kept_from_the_first_run_is_called_cached() -> None:
    kept: list[Tensor] = []

    def cached(x: Tensor, w: Tensor) -> Tensor:
        kept.append(x * w)
        return kept[0].clone()

    with pytest.raises(AssertionError, match="run 2, seed 1:\nout is wrong") as caught:
        check(cached)
    assert "run 2 returned run 1's out bit by bit, for other inputs: is it cached?" in str(caught.value)


def test_a_cache_keyed_on_the_inputs_addresses_is_caught() -> None:
    kept: dict[int, Tensor] = {}

    def cached(x: Tensor, w: Tensor) -> Tensor:
        return kept.setdefault(x.data_ptr(), x * w).clone()

    with pytest.raises(AssertionError, match="is it cached"):
        check(cached)


def test_a_view_of_an_input_is_no_kept_buffer() -> None:
    def identity(x: Tensor, w: Tensor) -> Tensor:
        return x.view(x.shape)

    verify(identity, make_inputs, reference=identity, plain=identity)


def test_the_candidate_runs_first_the_reference_in_float64_and_plain_in_the_inputs_own_dtype() -> None:
    calls: list[tuple[str, torch.dtype, torch.dtype]] = []

    def recording(name: str) -> Callable[..., Tensor]:
        def run(x: Tensor, w: Tensor) -> Tensor:
            calls.append((name, x.dtype, w.dtype))
            return x * w

        return run

    def halves(seed: int) -> dict[str, Tensor]:
        return {name: x.bfloat16() for name, x in make_inputs(seed).items()}

    functions = {name: recording(name) for name in ("reference", "plain")}
    verify(recording("candidate"), halves, **functions, gradient_of=("out",))
    half, double = torch.bfloat16, torch.float64
    assert calls[:2] == [("candidate", half, half)] * 2
    assert {*calls[2:]} == {("reference", double, double), ("plain", half, half)}


def test_few_rows_are_judged_by_more_than_one_draw_of_plain() -> None:
    """Plain happens to be exact on the two runs' data; on other data it rounds like everybody."""
    calls = []

    def few(seed: int) -> dict[str, Tensor]:
        return {"x": torch.randn(1, 8, generator=torch.Generator().manual_seed(seed))}

    def plain(x: Tensor) -> Tensor:
        calls.append(x)
        exact = x.double().square().sum(-1, keepdim=True)
        return exact.float() if len(calls) <= 2 else (exact * (1 + 1e-5)).float()

    def candidate(x: Tensor) -> Tensor:
        return (x.double().square().sum(-1, keepdim=True) * (1 + 1e-6)).float()

    verify(candidate, few, reference=lambda x: x.square().sum(-1, keepdim=True), plain=plain)
    assert len(calls) > 2


def test_several_outputs_settings_and_an_expanded_upstream_gradient_reach_everybody() -> None:
    def both(x: Tensor, w: Tensor, *, factor: float) -> tuple[Tensor, Tensor]:
        return x * w * factor, (x * factor).sum(-1)

    strides = []

    def upstream(output: Tensor, seed: int) -> Tensor:
        gradient = expanded_ones(output, seed)
        strides.append(gradient.stride())
        return gradient

    reports = verify(
        both,
        make_inputs,
        reference=both,
        plain=both,
        outputs=("out", "total"),
        gradient_of=("out", "total"),
        upstream=upstream,
        settings={"factor": 3.0},
    )
    assert [tensor.name for tensor in reports[0].tensors] == ["out", "total", "dx", "dw"]
    assert set(strides) == {(0, 0), (0,)}


def test_a_gradient_of_something_that_is_no_output_is_refused() -> None:
    with pytest.raises(ValueError, match=r"gradient_of names \['lse'\], which are not among the outputs \['out'\]"):
        check(product, gradient_of=("lse",))


def test_what_the_candidate_raises_passes_through_with_a_note() -> None:
    def raises(x: Tensor, w: Tensor) -> Tensor:
        raise NotImplementedError("no head dimension 8")

    with pytest.raises(NotImplementedError, match="no head dimension 8") as caught:
        check(raises)
    assert caught.value.__notes__ == ["in run 1 of the candidate, seed 0"]


def test_random_upstream_gradients_are_reproducible_and_of_the_outputs_kind() -> None:
    output = torch.zeros(3, 4, dtype=torch.bfloat16)
    one, same, other = random_upstream(output, 1), random_upstream(output, 1), random_upstream(output, 2)
    assert (one.shape, one.dtype) == (output.shape, output.dtype)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
