"""Host time of attention on 128 tokens, in turns beside PyTorch's own and a bare launch of a Triton kernel.

    python -m nocuda run -- python -m tests.studies.attention_host        or on a GPU without nocuda

Over nocuda no kernel computes, so all time is the host's. Prints the least of 60 turns of 40 calls each, in µs and as a
multiple of the bare launch.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from perflab.lab.attention import attention

TURNS, CALLS = 60, 40


@triton.jit
def copy_kernel(x_ptr, size: tl.constexpr):
    """The least that a kernel can be."""
    places = x_ptr + tl.arange(0, size)
    tl.store(places, tl.load(places))


def calls() -> dict[str, Callable[[], object]]:
    """What is timed, by its name: one sequence of 128 tokens, 8 heads of 64 numbers, bfloat16, causal."""
    x = torch.zeros(128, device="cuda")
    q, k, v = (torch.randn(1, 8, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    trained = [x.clone().requires_grad_() for x in (q, k, v)]

    def step(forward: Callable[..., Tensor]) -> object:
        return torch.autograd.grad(forward(*trained).sum(), trained)

    def ours(*inputs: Tensor) -> Tensor:
        return attention(*inputs, impl="triton", is_causal=True)

    def theirs(*inputs: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*inputs, is_causal=True)

    return {
        "a bare launch": lambda: copy_kernel[(8,)](x, 128),
        "PyTorch's, forward": lambda: theirs(q, k, v),
        "triton, forward": lambda: ours(q, k, v),
        "PyTorch's, both": lambda: step(theirs),
        "triton, both": lambda: step(ours),
    }


def least_us() -> dict[str, float]:
    """The least host time of a call of each, in µs."""
    timed = calls()
    least = dict.fromkeys(timed, float("inf"))
    for turn in range(TURNS + 1):
        for name, call in timed.items():
            began = time.perf_counter_ns()
            for _ in range(CALLS):
                call()
            if turn:  # the first compiles
                least[name] = min(least[name], (time.perf_counter_ns() - began) / CALLS / 1e3)
        torch.cuda.synchronize()
    return least


if __name__ == "__main__":
    found = least_us()
    for name, us in found.items():
        print(f"{name:20}{us:8.1f} µs{us / found['a bare launch']:8.1f} launches")
