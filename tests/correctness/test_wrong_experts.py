"""Mixtures of experts that are wrong on purpose, one fault each: the suite finds them, and names the likely cause.

Faults of the layer are put in place of the real code; those of a kernel are edits of its source, which runs in Triton's
interpreter.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from perflab.correctness import PoisonedMemory
from perflab.lab.experts import mixture, products, router, triton_grouped
from perflab.lab.experts.config import ExpertConfig
from perflab.lab.experts.router import Router, RouterLosses, Routing

from .mixtures import CAUSES, Case, hold, uninitialised_grouped_mm, with_settings
from .test_experts import ENDS, far_apart, rows_of

pytestmark = pytest.mark.correctness

Patch = Callable[[pytest.MonkeyPatch], None]


def weights_of_another_token(patch: pytest.MonkeyPatch) -> None:
    right = Router.forward

    def forward(self: Router, tokens: Tensor) -> Routing:
        routing = right(self, tokens)
        return routing._replace(weights=routing.weights.roll(1, 0))

    patch.setattr(Router, "forward", forward)


def capacity_off_by_one(patch: pytest.MonkeyPatch) -> None:
    right = ExpertConfig.capacity
    patch.setattr(ExpertConfig, "capacity", lambda self, n: None if (c := right(self, n)) is None else c + 1)


def softmax_over_all(patch: pytest.MonkeyPatch) -> None:
    right = Router.forward

    def forward(self: Router, tokens: Tensor) -> Routing:
        routing = right(self, tokens)
        return routing._replace(weights=routing.probabilities.gather(-1, routing.chosen))

    patch.setattr(Router, "forward", forward)


def bias_in_the_weights(patch: pytest.MonkeyPatch) -> None:
    right = Router.forward

    def forward(self: Router, tokens: Tensor) -> Routing:
        routing = right(self, tokens)
        weights = (torch.sigmoid(routing.logits) + self.bias).gather(-1, routing.chosen)
        return routing._replace(weights=weights / weights.sum(-1, keepdim=True))

    patch.setattr(Router, "forward", forward)


def loss_over_the_wrong_axis(patch: pytest.MonkeyPatch) -> None:
    right = router.router_losses

    def losses(routing: Routing, counts: Tensor) -> RouterLosses:
        return right(routing._replace(probabilities=torch.softmax(routing.logits, 0)), counts)

    patch.setattr(mixture, "router_losses", losses)


def empty_experts_left_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(products, "empty_groups", lambda ends: torch.zeros(len(ends), dtype=torch.bool))
    # The same function tells the stand-in for PyTorch's product which groups to poison: that one keeps the right one.
    right = torch.nn.functional.grouped_mm

    def poisoned(a: Tensor, b: Tensor, *, offs: Tensor) -> Tensor:
        out: Tensor = right(a, b, offs=offs)
        if a.ndim == b.ndim == 2:
            out[torch.diff(offs, prepend=offs.new_zeros(1)) == 0] = torch.nan
        return out

    patch.setattr(products, "grouped_mm", poisoned)


def rows_behind_the_end_left_alone(patch: pytest.MonkeyPatch) -> None:
    right = mixture.planned
    patch.setattr(mixture, "planned", lambda *arguments: right(*arguments)._replace(is_kept=None))


@dataclass(frozen=True)
class WrongMixture:
    """A fault by name, how it is put in place, the case that it shows in, and the cause that the suite must name."""

    name: str
    put: Patch
    experts: ExpertConfig
    cause: str
    result: str = "out"


EMPTY = "the gradient of an expert without tokens holds what was in memory, and not zero"
WRONG = (
    WrongMixture("another-token", weights_of_another_token, with_settings(), CAUSES["another token"]),
    WrongMixture("capacity", capacity_off_by_one, with_settings(capacity_factor=1.0), CAUSES["capacity"]),
    WrongMixture("softmax-over-all", softmax_over_all, with_settings(), CAUSES["before"]),
    WrongMixture("bias-in-weights", bias_in_the_weights, with_settings(router="sigmoid"), CAUSES["bias"]),
    WrongMixture("loss-axis", loss_over_the_wrong_axis, with_settings(), CAUSES["axis"], "balance"),
    WrongMixture("empty-expert", empty_experts_left_alone, with_settings(), EMPTY, "dgate"),
    WrongMixture(
        "rows-behind",
        rows_behind_the_end_left_alone,
        with_settings(capacity_factor=1.0),
        CAUSES["rows past the end"],
    ),
)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_a_wrong_mixture_is_caught_and_its_cause_named(wrong: WrongMixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "grouped_mm", uninitialised_grouped_mm)
    case = Case(wrong.experts, 19, torch.float32)
    hold(case)
    wrong.put(monkeypatch)
    with pytest.raises(AssertionError) as caught:
        hold(case)
    said = " ".join(str(caught.value).split())
    assert f"likely cause: {wrong.cause}" in said
    assert f"{wrong.result} is wrong" in said


def test_a_habitual_check_of_the_output_alone_passes_most_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """allclose of the output for one token four times, without capacity: a first test of such a layer."""
    from .mixtures import definition, layer_of, make_inputs

    passed = set()
    for wrong in WRONG:
        with monkeypatch.context() as patch:
            wrong.put(patch)
            inputs = make_inputs(1, torch.float32, 0)
            inputs["x"] = inputs["x"].expand(4, -1)  # the same token four times
            out = layer_of(with_settings(router=wrong.experts.router))(*inputs.values())[0]
            wanted = definition(*inputs.values(), experts=with_settings(router=wrong.experts.router))[0]
            if torch.allclose(out, wanted, atol=1e-2, rtol=1e-2):
                passed.add(wrong.name)
    assert passed == {"another-token", "capacity", "loss-axis", "empty-expert", "rows-behind"}


def edited(tmp_path: Path, name: str, *edits: tuple[str, str]) -> Any:
    """The module of the kernels with texts replaced, its operators under names of their own."""
    source = Path(triton_grouped.__file__).read_text()
    for before, after in (*edits, ('operators.define(\n    "', f'operators.define(\n    "{name}_')):
        assert before in source, before
        source = source.replace(before, after)
    source = source.replace('operators.define("', f'operators.define("{name}_')
    path = tmp_path / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where Triton looks for the source
    spec.loader.exec_module(module)
    return module


def product_of(module: Any, weight: Tensor, ends: list[int], x: Tensor) -> tuple[Tensor, ...]:
    """A kernel's product and gradients, rows behind the end left out."""
    leaves = [x.detach().requires_grad_(), weight.detach().requires_grad_()]
    out = module.triton_grouped_product(*leaves, torch.tensor(ends, dtype=torch.int32))[: ends[-1]]
    dx, dweight = torch.autograd.grad(out.square().sum(), leaves)
    return out, dx[: ends[-1]], dweight


def test_an_offset_in_32_bits_reads_memory_in_front_of_the_weights(tmp_path: Path) -> None:
    """Expert 2 begins 2**31 + 16 elements behind expert 0; in 32 bits that is 2**31 - 16 elements in front of it."""
    wrong = edited(tmp_path, "narrow_grouped", ("expert.to(tl.int64) * stride_we", "expert * stride_we"))
    x, weight = rows_of(torch.float16, 0, shape=(3, 24, 40)).values()
    ends = torch.tensor([30, 31, 90], dtype=torch.int32)
    wanted = triton_grouped.triton_grouped_product(x, weight, ends)
    assert torch.equal(wrong.triton_grouped_product(x, weight, ends), wanted)  # nothing shows at usual sizes
    distant, in_front = far_apart(weight, room_in_front=2**31)
    in_front[: 16 + weight[0].numel()] = torch.nan
    assert torch.equal(triton_grouped.triton_grouped_product(x, distant, ends), wanted)
    got = wrong.triton_grouped_product(x, distant, ends)
    assert torch.equal(got[:31], wanted[:31])
    assert got[31:].isnan().all()


@pytest.mark.parametrize(
    ("name", "before", "after", "wrong_results"),
    [
        ("first_expert", "expert.to(tl.int64) * stride_we", "0 * expert.to(tl.int64) * stride_we", {0, 1, 2}),
        (
            "gradient_of_all",
            "for start in tl.range(begin, end, BLOCK_K):",
            "for start in tl.range(0, end, BLOCK_K):",
            {2},
        ),
        ("dropped_tail", "tl.cdiv(ends - begins, BLOCK_M), 0)", "(ends - begins) // BLOCK_M, 0)", {0, 1, 2}),
    ],
)
def test_a_wrong_kernel_has_wrong_results(
    name: str, before: str, after: str, wrong_results: set[int], tmp_path: Path
) -> None:
    wrong = edited(tmp_path, name, (before, after))
    x, weight = rows_of(torch.float32, 0).values()
    ends = ENDS["empty ones"]
    with PoisonedMemory():  # rows that a kernel leaves alone may otherwise hold the right values of an earlier call
        wrong_ones, right_ones = (product_of(kernels, weight, ends, x) for kernels in (wrong, triton_grouped))
    pairs = zip(wrong_ones, right_ones, strict=True)
    differing = {
        number for number, (got, wanted) in enumerate(pairs) if not torch.allclose(got, wanted, atol=1e-3, rtol=1e-3)
    }
    assert differing >= wrong_results
