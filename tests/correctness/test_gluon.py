"""The backward in Gluon: on an A100 as it is, elsewhere as far as it can be known: arithmetic, launch, machine code."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from perflab.attention.candidate import from_registry
from perflab.attention.chosen import find_candidates
from perflab.attention.grid import Case
from perflab.attention.hold import hold
from perflab.lab.attention import (
    IMPLEMENTATIONS,
    attention,
    attention_with_logsumexp,
    reference_attention,
    triton_operator,
    triton_tuning,
)
from perflab.lab.attention import gluon_one_pass_kernel as in_gluon
from perflab.lab.launch import Launch, architecture_of, is_interpreted, run_prepared
from tests.correctness.gluon_by_hand import run
from tests.correctness.test_one_pass import CLAIMS, problems
from tests.perf.studies.switches import switches

pytestmark = pytest.mark.correctness

gluon = pytest.mark.parametrize("impl", ["triton-gluon"])
"""By this parameter ``--attention=triton-gluon`` chooses tests."""


@pytest.fixture
def on_an_a100(device: torch.device, monkeypatch: pytest.MonkeyPatch, gluon_anywhere: None) -> None:
    """Run the test on an A100, or on a CPU that takes itself for one and runs the kernel by hand."""
    monkeypatch.setattr(triton_tuning, "_ran", {})
    if device.type == "cuda":
        if architecture_of(device) != in_gluon.ARCHITECTURE:
            pytest.skip("the kernel is for an A100")
        return
    if not is_interpreted():
        pytest.skip("the forward runs in Triton's interpreter")

    def by_hand(make_launch: Callable[..., Launch], *arguments: Any) -> None:
        if make_launch is not in_gluon.one_pass_gluon_launch:
            return run_prepared(make_launch, *arguments)
        launch = make_launch(*arguments)
        run(launch.kernel, launch.grid[0], launch.arguments)

    monkeypatch.setattr(triton_tuning, "run_prepared", by_hand)
    monkeypatch.setattr(in_gluon, "is_interpreted", lambda: False)
    for module in (triton_operator, triton_tuning):
        monkeypatch.setattr(module, "architecture_of", lambda _device: in_gluon.ARCHITECTURE)


def backward_that_ran() -> str:
    (found,) = {str(key[0]) for key in triton_tuning.tiles_in_use()} - {"forward"}
    return found


def between_heads(num_tokens: int, device: torch.device, head_dim: int = 128) -> torch.Tensor:
    """Two heads that lie between tokens and columns, as a projection gives them."""
    return torch.randn(1, num_tokens, 2, head_dim, device=device).bfloat16().transpose(1, 2)


@gluon
@pytest.mark.usefixtures("on_an_a100")
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("num_queries", "num_keys"), [(256, 256), (64, 256), (320, 128)])
def test_its_gradients_are_those_of_the_definition(
    impl: str, is_causal: bool, num_queries: int, num_keys: int, device: torch.device
) -> None:
    torch.manual_seed(0)
    d_out = between_heads(num_queries, device)
    leaves = [between_heads(num, device).requires_grad_() for num in (num_queries, num_keys, num_keys)]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    reference_attention(*exact, is_causal=is_causal)[0].backward(d_out.double())
    attention(*leaves, impl=impl, is_causal=is_causal).backward(d_out)
    assert backward_that_ran() == "one_pass_gluon"
    for name, leaf, right in zip("qkv", leaves, exact, strict=True):
        assert leaf.grad is not None
        assert right.grad is not None
        error = (leaf.grad.double() - right.grad).abs().max() / right.grad.abs().max()
        assert error < 2**-7, f"d{name}"  # a rounding of weights to bfloat16, and one of the result


@gluon
@pytest.mark.usefixtures("on_an_a100")
@pytest.mark.parametrize("problem", [one for one in problems() if one.head_dim == in_gluon.HEAD_DIM], ids=str)
def test_it_is_right_beside_what_takes_its_place_for_other_layouts(
    impl: str, problem: Case, device: torch.device
) -> None:
    hold(replace(from_registry(impl, device), claims=CLAIMS), problem, device, lambda name, value: None)
    assert backward_that_ran() in ("one_pass_gluon", "one_pass")


@gluon
@pytest.mark.usefixtures("on_an_a100")
@pytest.mark.parametrize(
    ("num_queries", "num_keys", "head_dim", "columns"),
    [(96, 128, 128, 128), (64, 64, 128, 128), (64, 128, 64, 64), (64, 128, 128, 130), (64, 128, 128, 132)],
    ids=["half a tile of queries", "half a tile of keys", "another width", "rows at odd places", "strides of 8 and 16"],
)
def test_what_it_does_not_take_the_kernel_in_triton_does(
    impl: str, num_queries: int, num_keys: int, head_dim: int, columns: int, device: torch.device
) -> None:
    q, k, v = (between_heads(num, device, columns)[..., :head_dim] for num in (num_queries, num_keys, num_keys))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = attention(*leaves, impl=impl)
    out.backward(torch.ones_like(out))
    assert backward_that_ran() == "one_pass"
    assert all(x.grad is not None and x.grad.isfinite().all() for x in leaves)


def test_another_gpu_or_the_interpreter_does_not_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    q = between_heads(128, torch.device("cpu"))
    monkeypatch.setattr(in_gluon, "is_interpreted", lambda: False)
    assert in_gluon.takes(q, q, q, q, 80)
    assert not in_gluon.takes(q, q, q, q, 86), "which has room for 99 KiB of shared memory"
    monkeypatch.setattr(in_gluon, "is_interpreted", lambda: True)
    assert not in_gluon.takes(q, q, q, q, 80)


def test_it_is_taken_by_its_name_alone() -> None:
    """On a GPU, too: no run of all variants, no study and no remedy has what no GPU has run."""
    cuda, here = torch.device("cuda"), Path.cwd()
    every = {candidate.name for candidate in find_candidates("", cuda, here)}
    assert {name for name, claims in IMPLEMENTATIONS.items() if claims.runs_on("cuda")} - every == {
        "reference",
        "triton-gluon",
    }
    assert [candidate.name for candidate in find_candidates("triton-gluon", cuda, here)] == ["triton-gluon"]
    assert "attention-triton-gluon" not in map(str, switches(100, "cuda"))
    q = between_heads(64, torch.device("cpu"))
    with pytest.raises(
        RuntimeError, match=r"'triton-gluon' exists on cuda alone.*choose one of: .*triton-one-pass"
    ) as on_cpu:
        attention(q, q, q, impl="triton-gluon")
    with pytest.raises(NotImplementedError, match=r"has no window; choose one of: .*triton-one-pass") as windowed:
        attention(q, q, q, impl="sdpa", window_size=(3, 3))
    with pytest.raises(ValueError, match=r"gives no log-sum-exp; choose one of: .*triton-one-pass") as without:
        attention_with_logsumexp(q, q, q, impl="sdpa")
    for error in (on_cpu, windowed, without):
        assert "triton-gluon" not in str(error.value).partition("choose one of")[2]


def test_its_loops_take_what_the_tensor_cores_take_and_nothing_is_spilled(python_of_kernels: str) -> None:
    program = (
        "from perflab.compiled.compiler.compile import compile_example\n"
        "from tests.perf.kernels import examples\n"
        "for one in examples(80):\n"
        "    if 'gluon' in one.name:\n"
        "        found = compile_example('lab', one, 80)\n"
        "        assert found.resources is not None, found.problem\n"
        "        for one in found.resources.loops:\n"
        "            print(one.limit, round(one.share_of_peak, 2), one.issues.get('local_memory', 0))\n"
    )
    compiling = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [python_of_kernels, "-u", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=compiling)
    assert done.stdout.splitlines() == ["tensor cores 1.0 0"] * 3, done.stderr
