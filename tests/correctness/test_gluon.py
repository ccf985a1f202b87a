"""The backward in Gluon, as far as it can be known without a GPU: its arithmetic, and its machine code."""

from __future__ import annotations

import math
import os
import subprocess

import pytest
import torch
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from perflab.lab.attention.scoring import make_scoring
from perflab.lab.attention.triton_launches import one_pass_launch
from perflab.lab.attention.triton_tiles import Tiles
from tests.correctness.gluon_by_hand import run
from tests.studies.attention_gluon import BLOCK_K, BLOCK_Q, WARPS, attention_one_pass_gluon_kernel


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("num_queries", "num_keys"), [(256, 256), (64, 256), (320, 128)])
def test_its_gradients_are_those_of_the_definition(is_causal: bool, num_queries: int, num_keys: int) -> None:
    torch.manual_seed(0)
    # Heads lie between tokens and columns, as a projection gives them.
    q, d_out = (torch.randn(1, num_queries, 2, 128).bfloat16().transpose(1, 2) for _ in range(2))
    k, v = (torch.randn(1, num_keys, 2, 128).bfloat16().transpose(1, 2) for _ in range(2))
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    scoring = make_scoring(q, k, is_causal=is_causal)
    scores = exact[0] @ exact[1].mT * scoring.scale
    if is_causal:
        seen = torch.ones(num_queries, num_keys, dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    out = scores.softmax(-1) @ exact[2]
    out.backward(d_out.double())
    ends = scores.detach().logsumexp(-1).float().contiguous()
    delta = (out.detach() * d_out.double()).sum(-1).float().contiguous()
    dk, dv = torch.full_like(k, math.nan), torch.full_like(v, math.nan)
    dq_sum = torch.zeros(q.shape)

    tiles = Tiles(BLOCK_Q, BLOCK_K, WARPS, 2)
    launch = one_pass_launch(q, k, v, d_out, ends, delta, dk, dv, dq_sum, scoring, tiles)
    names = attention_one_pass_gluon_kernel.arg_names
    arguments = {name: value for name, value in launch.arguments.items() if name in names}
    layouts = dict.fromkeys(set(names) - set(arguments))
    run(attention_one_pass_gluon_kernel, launch.grid[0], arguments | layouts)

    for name, got, leaf in zip("qkv", (scoring.scale * dq_sum, dk, dv), exact, strict=True):
        assert leaf.grad is not None
        error = (got.double() - leaf.grad).abs().max() / leaf.grad.abs().max()
        assert error < 2**-7, f"d{name}"  # a rounding of weights to bfloat16, and one of the result


@pytest.mark.skipif(not hasattr(async_copy, "async_load"), reason="Gluon before Triton 3.9 has other names")
def test_its_loops_take_what_the_tensor_cores_take_and_nothing_is_spilled(python_of_kernels: str) -> None:
    program = (
        "import torch\n"
        "from perflab.compiled.compiler.compile import compile_example\n"
        "from tests.studies.attention_gluon import example\n"
        "for is_causal in (False, True):\n"
        "    found = compile_example('lab', example(torch.bfloat16, is_causal=is_causal), 80)\n"
        "    assert found.resources is not None, found.problem\n"
        "    for one in found.resources.loops:\n"
        "        print(one.limit, round(one.share_of_peak, 2), one.issues.get('local_memory', 0))\n"
    )
    compiling = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [python_of_kernels, "-u", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=compiling)
    assert done.stdout.splitlines() == ["tensor cores 1.0 0"] * 3, done.stderr
