"""The study of compilation: eager beside compiled, for attention and for the model, each phase and the set-up apart.

Shapes: q, k, v (B, 1, N, D), causal; tokens (B, T).

`setup_ns` is what the first three calls took beyond later ones, from an empty compiler's cache: compile time. Graph
breaks and recompilations are counted by perflab for every case.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

import perflab
from perflab import Perf
from perflab.lab.attention import attention
from tests.perf.attention_cases import BACKWARD_SHARE, Shape, device_type, memory_bytes
from tests.perf.published import attention_rows
from tests.perf.setup import measure_step

from .training import (
    FIRST_CALLS,
    LATER_CALLS,
    TURNS_SECONDS,
    compile_seconds,
    from_an_empty_cache,
    note_speed,
    note_turns,
    noted_compilation,
    set_up,
    study_setup,
)

COLUMNS = "speed_ratio, forward, backward, optimizer, setup_ns, graph_breaks, recompiles, quoted"
CALLS = 2 * FIRST_CALLS + LATER_CALLS + 2 * perflab.Comparison.LEAST_CALLS
"""Before anything is measured: to set up, and in turns."""
LENGTHS = {"cpu": (256,), "cuda": (256, 1024, 4096, 8192, 16384)}
ATTENTION = {"eager": "naive", "compiled": "compiled"}
"""The variant behind each."""
COMPILED = {"eager": None, "compiled": "model", "compiled-optimizer-too": "model and optimizer"}
"""What torch.compile is given of a training step."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Attention at a few lengths."""
    if "seq_len" in metafunc.fixturenames:
        metafunc.parametrize("seq_len", LENGTHS[device_type(metafunc.config)])


@pytest.mark.perf(study="compile: attention", columns=COLUMNS)
@pytest.mark.parametrize("how", list(ATTENTION))
def test_compiled_attention(perf: Perf, device: torch.device, seq_len: int, how: str) -> None:
    """Attention written out: batch 8, one head of 64, fp32, as it was published."""
    shape = Shape(8, 1, seq_len, 64, "fp32")
    compiles = "attention alone" if how == "compiled" else None
    flops = shape.flops * (1 + BACKWARD_SHARE)
    perf.requires(
        memory_bytes=max(memory_bytes(impl, shape, device.type, backward=True) for impl in ATTENTION.values()),
        flops=flops,
        setup_calls=CALLS,
        setup_seconds=compile_seconds(device.type, compiles) + TURNS_SECONDS,
    )
    perf.work(flops=flops)
    for source, (forward_s, backward_s) in attention_rows().get((64, seq_len), {}).items():
        if source.startswith(how):
            perf.quote(f"H100 {source}", seconds=forward_s + backward_s, forward=forward_s, backward=backward_s)
    inputs = shape.inputs(device, requires_grad=True)
    upstream = torch.randn_like(inputs[0])
    forward = partial(attention, *inputs, is_causal=True, impl=ATTENTION[how])

    def backward(out: Tensor) -> None:
        torch.autograd.grad(out, inputs, upstream)

    def eager() -> None:
        backward(attention(*inputs, is_causal=True, impl=ATTENTION["eager"]))

    with from_an_empty_cache(compiles is not None, device):
        setup_ns, _ = set_up(lambda: backward(forward()), device)
        noted_compilation(device.type, compiles, setup_ns)
        found = perflab.compare(
            base=eager, candidate=lambda: backward(forward()), budget_s=TURNS_SECONDS, device=device
        )
        note_turns(perf, found)
        perf.note(setup_ns=setup_ns)
        perf.step(forward=forward, backward=backward)


@pytest.mark.perf(study="compile: model", columns=COLUMNS)
@pytest.mark.parametrize("how", list(COMPILED))
def test_compiled_model(perf: Perf, device: torch.device, request: pytest.FixtureRequest, how: str) -> None:
    """A training step of the studies' model, AdamW operator by operator so that there is something to compile."""
    compiles = COMPILED[how]
    eager = study_setup(request.config, device).switched(training={"optimizer": "foreach"}, changes={})
    setup = eager.switched(training={"compile": "eager" if compiles is None else "default"}, changes={})
    compiling_s = compile_seconds(device.type, compiles)
    setup.declare(perf, "train_step", setup_calls=CALLS, setup_seconds=compiling_s + TURNS_SECONDS)
    with from_an_empty_cache(compiles is not None, device):
        step = setup.training_step()
        if compiles == "model and optimizer":
            step.adamw.step = torch.compile(step.adamw.step)  # type: ignore[method-assign]
        setup_ns, later_ns = set_up(step, device)
        noted_compilation(device.type, compiles, setup_ns)
        perf.note(setup_ns=setup_ns)
        if not setup.is_ours:
            perf.requires(seconds=later_ns / 1e9)
        note_speed(perf, step, eager)
        measure_step(perf, step)
