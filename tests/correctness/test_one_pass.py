"""Triton's attention with a backward in one pass: right where it runs, and where it does and does not.

Shapes: q (B, H, N_q, D); k, v (B, H_kv, N_k, D). What all Triton variants share as operators is in
test_triton_operator.py, every tile in test_proofs.py, memory in test_predicted_memory.py.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from perflab.attention.candidate import from_registry
from perflab.attention.grid import HEADS, Case, Claims, factors_for
from perflab.attention.hold import hold
from perflab.correctness.covering import cover
from perflab.lab.attention import attention, triton_operator, triton_tuning
from perflab.lab.attention.scoring import Scoring
from perflab.lab.attention.triton_tiles import Tiles, one_pass_tiles
from perflab.lab.launch import architecture_of, is_interpreted

pytestmark = pytest.mark.correctness
interpreted = pytest.mark.skipif(not is_interpreted(), reason="which backward it is depends on the GPU")

IMPL = "triton-one-pass"
ONCE, TWICE = {"forward", "one_pass"}, {"forward", "dk_dv", "dq"}
CLAIMS = Claims(
    dtypes=("bf16", "fp16"),
    head_dims=(64, 80, 128),
    features=frozenset(("causal", "bottom-right", "scale")),
    on_cpu=True,
    interpreted=True,
)
"""What an A100 computes in one pass."""
WHOLE_TILES = {"n_q": (64, 128, 192), "n_k": (128, 256)}
MOST_TILES = 4
"""As many as a case may have, all heads together, in Triton's interpreter; six heads have one each."""


def problems() -> list[Case]:
    """Every pair of levels, at lengths that are whole tiles: one of queries and more, fewer and more than of keys."""

    def affordable(row: Mapping[str, Any]) -> bool:
        heads = HEADS[row.get("heads", "h1:1")][0] * row.get("batch", 1)
        tiles = heads * row.get("n_q", 64) // 64 * row.get("n_k", 128) // 128
        return bool(tiles <= MOST_TILES or tiles == heads <= 6)

    factors = {**factors_for(CLAIMS), **WHOLE_TILES}
    del factors["relation"]
    return [Case(**row) for row in cover(factors, affordable)]  # type: ignore[arg-type]


def ran() -> set[str]:
    return {str(key[0]) for key in triton_tuning.tiles_in_use()}


@pytest.fixture(autouse=True)
def _nothing_ran(monkeypatch: pytest.MonkeyPatch, gluon_anywhere: None) -> None:
    monkeypatch.setattr(triton_tuning, "_ran", {})


@interpreted
@pytest.mark.parametrize("problem", problems(), ids=str)
def test_one_pass_is_right_in_every_pair_of_levels_that_an_a100_runs_in_it(
    problem: Case, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_operator, "architecture_of", lambda _: 80)
    hold(replace(from_registry(IMPL, device), claims=CLAIMS), problem, device, lambda name, value: None)
    assert ran() == ONCE


def leaves(
    device: torch.device, dtype: torch.dtype = torch.float16, key_heads: int = 2, head_dim: int = 64
) -> list[Tensor]:
    """Inputs; with the defaults their backward takes one pass on an H100, as which the interpreter counts."""
    torch.manual_seed(0)
    return [
        torch.randn(1, heads, length, head_dim, device=device, dtype=dtype, requires_grad=True)
        for heads, length in ((2, 64), (key_heads, 128), (key_heads, 128))
    ]


def gradients(inputs: list[Tensor], call: Callable[..., Tensor] = attention, **settings: Any) -> tuple[Tensor, ...]:
    triton_tuning._ran.clear()
    out = call(*inputs, **({"impl": IMPL, "is_causal": True} | settings))
    return torch.autograd.grad(out.float().square().sum(), inputs)


@pytest.fixture
def use_deterministic_algorithms() -> Iterator[Callable[..., None]]:
    yield torch.use_deterministic_algorithms
    torch.use_deterministic_algorithms(False)


@interpreted
@pytest.mark.parametrize("impl", [IMPL, "triton-gluon"])
def test_one_pass_is_a_choice_and_deterministic_algorithms_take_two(
    use_deterministic_algorithms: Callable[..., None], impl: str, device: torch.device
) -> None:
    inputs = leaves(device)
    in_one = gradients(inputs, impl=impl)
    assert ran() == ONCE
    for one, two in zip(in_one, gradients(inputs, impl="triton"), strict=True):
        torch.testing.assert_close(one, two, atol=2e-2, rtol=2e-3)
    assert ran() == TWICE
    use_deterministic_algorithms(True)
    gradients(inputs, impl=impl)
    assert ran() == TWICE
    use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match=r"in an order that differs .* warn_only=False\) selects the backward in two"):
        gradients(inputs, impl=impl)
    assert ran() == ONCE
    use_deterministic_algorithms(False, warn_only=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradients(inputs, impl=impl)


@interpreted
@pytest.mark.parametrize("ahead", [5, 40])
def test_a_window_that_is_open_to_the_left_takes_one(ahead: int, device: torch.device) -> None:
    inputs = leaves(device)
    settings: dict[str, Any] = {"is_causal": False, "window_size": (-1, ahead)}
    in_one = gradients(inputs, **settings)
    assert ran() == ONCE
    for one, two in zip(in_one, gradients(inputs, impl="triton", **settings), strict=True):
        torch.testing.assert_close(one, two, atol=2e-2, rtol=2e-3)
    assert ran() == TWICE


@interpreted
@pytest.mark.parametrize("settings", [{"softcap": 2.0}, {"window_size": (9, 0)}], ids=str)
def test_a_soft_cap_and_a_window_which_would_spill_take_two(settings: dict[str, Any], device: torch.device) -> None:
    gradients(leaves(device), **settings)
    assert ran() == TWICE


@interpreted
@pytest.mark.parametrize("form", [(torch.float32,), (torch.float16, 1), (torch.float16, 2, 48)], ids=str)
def test_float32_grouped_heads_and_padded_ones_take_two_on_an_h100(form: tuple[Any, ...], device: torch.device) -> None:
    gradients(leaves(device, *form))
    assert ran() == TWICE


@interpreted
@pytest.mark.parametrize("upper", [None, 0], ids=["full", "causal"])
@pytest.mark.parametrize("of_logsumexp", [False, True])
@pytest.mark.parametrize("dim", [3, 4])
@pytest.mark.parametrize(
    "op",
    [triton_operator.flash_attention_backward_one_pass_op, triton_operator.flash_attention_backward_gluon_op],
    ids=["triton", "gluon"],
)
def test_the_operators_change_the_memory_that_they_are_lent_and_no_other(
    op: Callable[..., Any], upper: int | None, of_logsumexp: bool, dim: int, device: torch.device
) -> None:
    """Schema, fake implementation, autograd, and static and dynamic shapes under AOT."""
    q, k, v = (x.detach()[0] if dim == 3 else x.detach() for x in leaves(device))
    rules = (0.25, None, None, upper, 0)
    out, logsumexp = triton_operator.flash_attention_op(q, k, v, *rules)
    d_logsumexp = torch.randn_like(logsumexp) if of_logsumexp else None
    lent = torch.empty_like(logsumexp), torch.zeros(q.shape, device=device)
    torch.library.opcheck(op, (torch.randn_like(out), d_logsumexp, q, k, v, out, logsumexp, *lent, *rules))


@interpreted
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_it_compiles_without_graph_breaks(dynamic: bool, device: torch.device) -> None:
    inputs = leaves(device)
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    found = gradients(inputs, compiled)
    assert ran() == ONCE
    assert all(torch.equal(one, other) for one, other in zip(found, gradients(inputs), strict=True))


@interpreted
def test_a_graph_of_another_table_of_tiles_gets_two_passes(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = leaves(device)
    expected = gradients(inputs, impl="triton")
    tables = iter([one_pass_tiles])  # of when it was compiled; afterwards there is none
    monkeypatch.setattr(triton_operator, "one_pass_tiles", lambda *given: next(tables, lambda *_: None)(*given))
    assert all(torch.equal(one, two) for one, two in zip(gradients(inputs), expected, strict=True))
    assert ran() == TWICE


@pytest.mark.parametrize(
    ("architecture", "head_dim", "lengths", "expected"),
    [
        (80, 64, (32, 128), Tiles(32, 128, 4, 2)),
        (80, 64, (31, 128), None),
        (80, 64, (32, 127), None),
        (80, 80, (64, 64), Tiles(64, 64, 4, 2)),
        (80, 80, (32, 64), None),
        (80, 128, (32, 64), Tiles(32, 64, 4, 2)),
        (80, 72, (128, 128), None),
        (80, 48, (128, 128), None),
        (80, 96, (128, 128), None),
        (80, 160, (128, 128), None),
        (90, 64, (128, 128), Tiles(64, 128, 8, 2)),
        (90, 64, (1000, 1000), None),
        (90, 128, (128, 128), None),
        (100, 64, (128, 128), Tiles(64, 128, 8, 2)),
        (100, 128, (128, 128), None),
        (86, 64, (128, 128), None),
        (120, 64, (128, 128), None),
        (0, 64, (128, 128), None),
    ],
)
def test_one_pass_is_for_gpus_widths_and_lengths_whose_loops_were_counted(
    architecture: int, head_dim: int, lengths: tuple[int, int], expected: Tiles | None
) -> None:
    q, k = (torch.empty(1, 1, length, head_dim, dtype=torch.bfloat16, device="meta") for length in lengths)
    assert one_pass_tiles(q, k, Scoring(1.0, None, None, None), architecture) == expected


def test_amds_gpus_take_two_passes_whatever_their_compute_capability_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert architecture_of(torch.device("cuda")) == 90
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert architecture_of(torch.device("cuda")) == 0
