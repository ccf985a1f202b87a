"""The backward in Gluon, as far as it can be known without a GPU: its arithmetic, its launch, and its machine code."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import torch

from perflab.lab.attention import gluon_one_pass_kernel as in_gluon
from perflab.lab.attention import reference_attention, triton_operator, triton_tuning
from perflab.lab.attention.triton_function import FlashAttentionTritonGluon
from perflab.lab.launch import Launch, run_prepared
from tests.correctness.gluon_by_hand import run


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """The launches of Gluon's kernel, on what takes itself for an A100; each is run by hand."""
    found: list[Launch] = []

    def by_hand(make_launch: Callable[..., Launch], *arguments: Any) -> None:
        if make_launch is not in_gluon.one_pass_gluon_launch:
            return run_prepared(make_launch, *arguments)
        found.append(make_launch(*arguments))
        run(found[-1].kernel, found[-1].grid[0], found[-1].arguments)

    monkeypatch.setattr(triton_tuning, "run_prepared", by_hand)
    for module in (triton_operator, triton_tuning):
        monkeypatch.setattr(module, "architecture_of", lambda _device: in_gluon.ARCHITECTURE)
    return found


def between_heads(num_tokens: int, head_dim: int = 128) -> torch.Tensor:
    """Two heads that lie between tokens and columns, as a projection gives them."""
    return torch.randn(1, num_tokens, 2, head_dim).bfloat16().transpose(1, 2)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("num_queries", "num_keys"), [(256, 256), (64, 256), (320, 128)])
def test_its_gradients_are_those_of_the_definition(
    launched: list[Launch], is_causal: bool, num_queries: int, num_keys: int
) -> None:
    torch.manual_seed(0)
    d_out = between_heads(num_queries)
    leaves = [between_heads(num).requires_grad_() for num in (num_queries, num_keys, num_keys)]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    reference_attention(*exact, is_causal=is_causal)[0].backward(d_out.double())
    FlashAttentionTritonGluon.apply(*leaves, is_causal).backward(d_out)
    assert len(launched) == 1
    for name, leaf, right in zip("qkv", leaves, exact, strict=True):
        assert leaf.grad is not None
        assert right.grad is not None
        error = (leaf.grad.double() - right.grad).abs().max() / right.grad.abs().max()
        assert error < 2**-7, f"d{name}"  # a rounding of weights to bfloat16, and one of the result


@pytest.mark.parametrize(
    ("num_queries", "num_keys", "head_dim", "rows"),
    [(96, 128, 128, 128), (64, 64, 128, 128), (64, 128, 64, 64), (64, 128, 128, 130)],
    ids=["half a tile of queries", "half a tile of keys", "another width", "rows at odd places"],
)
def test_what_it_does_not_take_the_kernel_in_triton_does(
    launched: list[Launch], num_queries: int, num_keys: int, head_dim: int, rows: int
) -> None:
    q, k, v = (between_heads(num, rows)[..., :head_dim] for num in (num_queries, num_keys, num_keys))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    FlashAttentionTritonGluon.apply(*leaves).sum().backward()
    assert not launched
    assert all(x.grad is not None and x.grad.isfinite().all() for x in leaves)


def test_another_gpu_does_not_get_it() -> None:
    q = between_heads(128)
    assert in_gluon.takes(q, q, q, q, 80)
    assert not in_gluon.takes(q, q, q, q, 86), "which has room for 99 KiB of shared memory"


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
