"""Predicted memory held against what really happens: operator by operator, and byte by byte of the allocator.

On a CPU both can be had: real runs are predicted as CPU runs (no ``as_cuda``, blocks not rounded), which is the same
code but for what it takes for the device.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from perflab.attribution.held import held_bytes
from perflab.attribution.reachable import reachable
from perflab.lab.attention import attention
from perflab.lab.train.skipping import Watch, WatchOnDevice, WatchOnHost
from perflab.measure.calls.workload import Workload
from perflab.measure.memory.peak import cpu_allocations, measure_memory
from perflab.predicted.cuda.fake import fake_tensors
from perflab.predicted.cuda.kernels import ON_CUDA
from perflab.predicted.gpus import GPUS
from perflab.predicted.memory.account import Account, account_of
from perflab.predicted.prediction import predict, traced
from perflab.predicted.run.exploring import fit_of
from perflab.predicted.run.predicting import work_of
from perflab.predicted.trace.modules import book_of, holdings
from perflab.predicted.trace.operators import Hidden
from perflab.predicted.trace.tracer import Tracer
from tests.correctness.predicted import on_a_gpu, setup_of, work, workload_of
from tests.perf.setup import Setup

pytestmark = pytest.mark.correctness

CPU = torch.device("cpu")
SLACK = 0.02
"""By how much real peaks may be larger or smaller: what kernels take in passing is in no trace."""
MODES = ("forward", "forward_backward", "train_step")
TINY = [
    *(("train_step", "fp32", impl, "none") for impl in ("naive", "sdpa", "tiled")),
    ("forward", "bf16", "naive", "none"),
    ("forward", "fp32", "sdpa", "none"),
    ("forward_backward", "fp32", "naive", "none"),
    ("forward_backward", "bf16", "tiled", "none"),
    ("train_step", "bf16", "sdpa", "none"),
    ("train_step", "fp32", "tiled", "selective"),
    ("train_step", "bf16", "naive", "every-block"),
]
LAYERS = 2
"""The number of layers that run, whatever the model's size."""


@pytest.fixture(autouse=True)
def watched_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step on a CPU keeps whether its loss is finite as one on a GPU does: in three scalars more than otherwise."""

    def watch_for(optimizer: str, parameter: Tensor) -> Watch:
        return WatchOnDevice(parameter.device) if optimizer == "fused" else WatchOnHost()

    monkeypatch.setattr("perflab.lab.train.step.watch_for", watch_for)


@dataclass(frozen=True)
class Real:
    """What a real run showed."""

    account: Account
    """Of our tracer."""
    tracker: dict[str, int]
    """Of PyTorch's: bytes at its peak, by its kinds, and ``Total``."""
    peak_bytes: int
    """Of the allocator."""


def predicted(mode: str, setup: Setup) -> Account:
    with fake_tensors():
        return account_of(traced(work(mode, setup), Hidden(), whole=True).trace, rounded=int)


def real(mode: str, setup: Setup) -> Real:
    """Two calls under PyTorch's profiler, then one under each tracker."""
    # Not at the head of the file: each worker of pytest-xdist collects it, and this import takes three seconds.
    from torch.distributed._tools.mem_tracker import MemTracker

    workload = workload_of(mode, setup)
    memory, result = measure_memory(workload, CPU)
    del result
    tracker, what = MemTracker(), work_of(workload)
    found = list(reachable(what.roots))
    tracker.track_external(*(one for one in found if isinstance(one, nn.Module | torch.optim.Optimizer)))
    tracker.track_external(*(one for one in found if isinstance(one, Tensor)))
    book = book_of(found)
    with tracker:
        what.run(lambda: None)
    seen = Tracer(book, holdings(reachable(what.roots), book), what.spans, Hidden()).trace_of(what.run)
    peak = tracker.get_tracker_snapshot("peak")[CPU]
    kinds = {getattr(kind, "value", kind): size for kind, size in peak.items()}
    return Real(account_of(seen, rounded=int), kinds, memory.peak_bytes)


@pytest.mark.parametrize(
    ("model_name", "context_length", "mode", "precision", "impl", "checkpointing"),
    [("tiny", 64, *case) for case in TINY] + [("small", 16, "train_step", "fp32", "sdpa", "none")],
)
def test_what_is_predicted_is_what_a_real_run_does(
    model_name: str, context_length: int, mode: str, precision: str, impl: str, checkpointing: str
) -> None:
    setup = setup_of(
        model_name,
        context_length=context_length,
        training={"precision": precision, "checkpointing": checkpointing},
        attention=impl,
        num_layers=LAYERS,
    )
    now, then = predicted(mode, setup), real(mode, setup)
    assert now == then.account  # operator by operator, block by block, where each was asked for
    assert now.peak_bytes == then.tracker["Total"]
    assert now.composition["parameters"] == then.tracker["Parameter"]
    assert now.composition["buffers"] == then.tracker["Buffer"]
    assert now.peak_bytes == pytest.approx(then.peak_bytes, rel=SLACK)


# --- scripts in which the result of the call before is still alive


def peak_of_a_loop(workload: Workload) -> int:
    """Of a real script that says ``out = step()`` again and again: the old result goes when the new one is there."""
    with cpu_allocations() as allocations:
        workload.run()
        held = held_bytes(workload.roots, CPU)
        with allocations.span():
            out = workload.run()
            out = workload.run()
    del out
    return held + allocations.peak_bytes()


@pytest.mark.parametrize("mode", MODES)
def test_a_script_that_keeps_the_previous_output_needs_what_is_predicted_for_that(mode: str) -> None:
    setup = setup_of(attention="sdpa")
    now = predicted(mode, setup)
    assert now.keeping_output_bytes is not None
    with collector_off():
        assert peak_of_a_loop(workload_of(mode, setup)) == pytest.approx(now.keeping_output_bytes, rel=1e-5)
    kept = now.keeping_output_bytes - now.peak_bytes
    if mode == "forward":  # logits, and the graph behind them with all that it saved
        assert kept == now.composition["activations"] + 2 * 64 * 10_000 * 4
    else:  # backward has let the graph go
        assert kept == 4


@contextmanager
def collector_off() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# --- what grows with the context, and where it ends


def peak_on_a_gpu(impl: str, context_length: int) -> int:
    with on_a_gpu():
        setup = setup_of(context_length=context_length, device="cuda", attention=impl)
        return account_of(traced(work("forward_backward", setup), ON_CUDA).trace).peak_bytes


def test_naive_attentions_memory_is_quadratic_in_the_context_and_flash_attentions_linear() -> None:
    lengths = (512, 1024, 1536, 2048)
    flash = differences([peak_on_a_gpu("sdpa", length) for length in lengths[:3]])
    naive = differences([peak_on_a_gpu("naive", length) for length in lengths])
    assert flash[1] == [0]
    assert naive[1][0] == naive[1][1] > 0
    # c T^2 bytes have a second difference of 2 c 512^2. Each layer keeps its mask, and weights of 2 x 4 heads.
    layers, mask_bytes, weights_bytes = 2, 2 * 512**2, 2 * 4 * 4 * 2 * 512**2
    weights, rest = divmod(naive[1][0], weights_bytes)
    assert rest == layers * mask_bytes
    assert weights >= layers


def differences(values: list[int]) -> tuple[list[int], list[int]]:
    """First and second ones."""
    first = [after - before for before, after in pairwise(values)]
    return first, [after - before for before, after in pairwise(first)]


@pytest.mark.parametrize(
    ("capability", "head_dim", "takes_one"),
    [((9, 0), 64, True), ((9, 0), 128, False), ((8, 0), 128, True), ((8, 9), 64, False)],
)
def test_a_backward_in_one_pass_is_predicted_with_its_float32_sum_on_gpus_that_take_it(
    capability: tuple[int, int], head_dim: int, takes_one: bool
) -> None:
    pytest.importorskip("triton")
    size = (2, 4, 1024, head_dim)

    def step(q: Tensor, k: Tensor, v: Tensor, upstream: Tensor, impl: str) -> object:
        return torch.autograd.grad(attention(q, k, v, is_causal=True, impl=impl), (q, k, v), upstream)

    def peak_bytes(impl: str) -> int:
        with on_a_gpu(capability):
            inputs = [torch.zeros(size, dtype=torch.bfloat16, device="cuda", requires_grad=True) for _ in range(4)]
            trace = traced(work_of(Workload(step, (*inputs, impl), {})), ON_CUDA).trace
            return account_of(trace, rounded=lambda size_bytes: size_bytes).peak_bytes

    sum_bytes = 2 * 4 * 1024 * head_dim * 4 if takes_one else 0
    assert peak_bytes("triton-one-pass") - peak_bytes("triton") == sum_bytes


def test_a_small_card_has_room_for_fused_attention_and_not_for_weights_of_every_pair_of_tokens() -> None:
    card = GPUS["l4"]
    with on_a_gpu():
        setups = {impl: setup_of("small", 4, 4096, device="cuda", attention=impl) for impl in ("naive", "sdpa")}
        found = {impl: predict(work("forward_backward", setup), card, ON_CUDA) for impl, setup in setups.items()}
    fits = {impl: fit_of(now, card) for impl, (now, _) in found.items()}
    assert fits["sdpa"].fits
    assert not fits["naive"].fits
    assert "l4" not in fits["naive"].fits_on
    assert set(fits["naive"].fits_on) < set(fits["sdpa"].fits_on)
