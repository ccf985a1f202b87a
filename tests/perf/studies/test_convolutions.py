"""The study of cuDNN's benchmark mode: it times every algorithm at the first call with a shape, and keeps the fastest.

Shapes: tokens (B, T). The model is the lab's with Mamba as its mixer, which has a short convolution in each block.

`setup_ns` is what the first calls took beyond later ones. With prompts of many lengths the search is done for each, so
what the mode is worth depends on how often a length comes again.
"""

from __future__ import annotations

from itertools import cycle

import pytest
import torch
from torch import Tensor

from perflab import Perf
from perflab.lab.models import build_model, size_config
from perflab.lab.models.cost import forward_flops

from .training import FIRST_CALLS, LATER_CALLS, set_up

BATCH_SIZE = 8
LENGTHS = {"fixed": (256,), "varying": (256, 251, 193, 130)}
"""Tokens of prompts, in turns."""


@pytest.mark.perf(study="cuDNN benchmark mode", columns="mean, setup_ns, kernel_launches, peak")
@pytest.mark.parametrize("searches", [False, True], ids=["heuristic", "benchmark"])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_benchmark_mode(perf: Perf, device: torch.device, lengths: str, searches: bool) -> None:
    """A forward of each length in turns, with cuDNN's own choice of algorithms and with the fastest that it timed."""
    if device.type != "cuda":
        pytest.skip(f"cuDNN is a library of CUDA, and this run is on {device.type}: give --perf-device=cuda")
    config = size_config("tiny", context_length=max(LENGTHS[lengths]), mixer="mamba")
    flops = forward_flops(config, batch_size=BATCH_SIZE, seq_len=max(LENGTHS[lengths]))
    perf.requires(flops=flops, setup_calls=FIRST_CALLS + LATER_CALLS)
    model = build_model("tiny", context_length=config.context_length, mixer="mamba", device=device).eval()
    prompts = cycle([torch.zeros(BATCH_SIZE, length, dtype=torch.int64, device=device) for length in LENGTHS[lengths]])

    def forward() -> list[Tensor]:
        return [model(next(prompts)) for _ in LENGTHS[lengths]]

    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, benchmark=searches):
        setup_ns, _ = set_up(forward, device)
        perf.note(setup_ns=setup_ns)
        perf(forward)
