"""Inference: prompts at once (prefill), one token more (decode), whole answers, and what each switch of it is worth.

By --model, --context-length and --batch-size. `bytes/s` of decode beside `copy_bytes_per_s`, a plain copy's on the same
device: decode reads every weight once a token, so a step that uses the memory well comes near it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from perflab import Perf
from perflab import serving as served
from perflab.lab.inference.cost import cache_bytes_per_token
from perflab.lab.inference.generate import prefill, stream
from perflab.lab.inference.load import drive, poisson_arrivals
from perflab.lab.inference.paged_cache import PagePool
from perflab.lab.inference.scheduler import Request, Scheduler

from .attention_cases import device_type
from .choice import context_lengths, model_names
from .inference import DecodeStep, Serving, copied_bytes_per_s

NEW_TOKENS = 32
LOADS = (0.5, 2.0, 8.0)
"""Offered requests, in multiples of what the model answers one after the other."""
BATCHES = (1, 8)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Spread the cases over models, lengths, precisions, batches and switches."""
    names = metafunc.fixturenames
    if "model_name" in names:
        metafunc.parametrize("model_name", model_names(metafunc.config))
    if "context" in names:
        lengths = context_lengths(metafunc.config)
        metafunc.parametrize("context", lengths if len(lengths) < 3 else [lengths[0], lengths[-1]])
    if "batch" in names:
        batches = {*BATCHES, metafunc.config.getoption("--batch-size")} - {4}
        metafunc.parametrize("batch", sorted(batches), ids=lambda size: f"b{size}")
    if "precision" in names:
        metafunc.parametrize("precision", ["fp32", "bf16"])
    if "switch" in names:
        metafunc.parametrize("switch", switches(device_type(metafunc.config)))


@pytest.mark.perf(study="prefill", columns="mean, tokens/s, MFU, peak", budget=4)
def test_prefill(perf: Perf, device: torch.device, model_name: str, context: int, precision: str) -> None:
    """One prompt: the time to the first token, without drawing it."""
    one = Serving(model_name, 1, context, device, precision)
    one.declare(perf, flops=one.prefill_flops())
    perf.work(tokens=context, flops=one.prefill_flops())
    perf.fits(lambda **sizes: _again(*_prefill(one.resized(**sizes))), sizes=_sizes(one), remedies=one.remedies)
    call, empty = _prefill(one)
    logits = perf(call, setup=empty)
    assert logits.shape == (1, 10_000)


@pytest.mark.perf(
    study="decode",
    columns="mean, tokens/s, bytes/s, copy_bytes_per_s, cache_token_bytes, kernel_launches, peak",
    budget=3,
)
def test_decode(perf: Perf, device: torch.device, model_name: str, context: int, batch: int, precision: str) -> None:
    """One token of each sequence, behind `context` less one."""
    one = Serving(model_name, batch, context, device, precision, laid_out=device.type == "cpu")
    _declare_decode(perf, one)
    step = DecodeStep(one, filled=not perf.predicts)
    logits = perf(step)
    assert logits.shape == (batch, 10_000)


@pytest.mark.perf(study="the next token", columns="mean, tokens/s, peak", versus="way=recomputed", budget=15)
@pytest.mark.parametrize("way", ["recomputed", "cached"])
def test_next_token(perf: Perf, device: torch.device, model_name: str, context: int, way: str) -> None:
    """What the cache is for: the next token from it, and from a forward of the whole sequence."""
    one = Serving(model_name, 1, context, device)
    one.declare(perf, flops=one.prefill_flops() if way == "recomputed" else one.step_cost().flops)
    if perf.predicts:
        pytest.skip("prefill and decode are predicted by themselves: test_prefill, test_decode")
    perf.work(tokens=1)
    step = DecodeStep(one)
    tokens = torch.zeros(1, context, dtype=torch.int64, device=device)
    last = torch.tensor([context - 1], device=device)

    def recomputed() -> Tensor:
        with torch.no_grad():
            return step.model(tokens, at=last)[:, 0]

    logits = perf(recomputed if way == "recomputed" else step)
    torch.testing.assert_close(logits, recomputed(), atol=1e-3, rtol=1e-3)


@pytest.mark.perf(
    study="generate", columns="ttft, tpot, itl_p50, itl_p90, itl_p99, tokens/s, operators/token, peak", budget=4
)
def test_generate(perf: Perf, device: torch.device, model_name: str, context: int, precision: str) -> None:
    """A prompt and 32 tokens behind it, first token and the others timed apart."""
    one = Serving(model_name, 1, context, device, precision)
    one.declare(perf, flops=one.prefill_flops() + NEW_TOKENS * one.step_cost().flops)
    if perf.predicts:
        pytest.skip("prefill and decode are predicted by themselves: test_prefill, test_decode")
    model, cache, prompts = one.model(), one.new_cache(), one.prompts(context - NEW_TOKENS)

    def generate(hook: Any) -> Tensor:
        made = []
        for token in stream(model, prompts, max_new_tokens=NEW_TOKENS, cache=cache):
            hook()
            made.append(token)
        return torch.cat(made)

    tokens = perf.generation(generate, setup=lambda: cache.truncate([0]))
    assert tokens.shape == (NEW_TOKENS,)


SWITCHES: dict[str, dict[str, Any]] = {
    "baseline": {},
    "bf16": {"precision": "bf16"},
    "paged": {"cache": "paged"},
    "int8-cache": {"cache_bits": 8},
    "weights-laid-out": {"laid_out": True},
    "int8-weights": {"bits": 8},
    "int4-weights": {"bits": 4},
    "grouped-heads": {"changes": {"num_kv_heads": 2}},
    "multi-query": {"changes": {"num_kv_heads": 1}},
    "window": {"cache": "window", "changes": {"window": 64}},
    "split-keys": {"kernel": "torch"},
    "split-keys-triton": {"kernel": "triton"},
    "graph": {"how": "graph"},
    "compiled": {"how": "compiled"},
}


def switches(device_type: str) -> list[str]:
    """Those that there is something to see of on that type of device; what compiles comes last."""
    on_a_gpu = ("split-keys-triton", "graph")
    return [name for name in SWITCHES if device_type == "cuda" or name not in on_a_gpu]


@pytest.mark.perf(
    study="inference switches",
    columns="mean, tokens/s, read_bytes, kernel_launches, allocations, peak",
    versus="switch=baseline",
    budget=2,
)
def test_switch(perf: Perf, device: torch.device, model_name: str, switch: str) -> None:
    """A decode step of one sequence, with one thing changed."""
    if perf.predicts:
        pytest.skip("a study compares what was run")
    one = replace(Serving(model_name, 1, 256, device), **SWITCHES[switch])
    one.skip_what_a_state_has_not()
    _declare_decode(perf, one)
    step = DecodeStep(one)
    perf(step)


@pytest.mark.perf(
    study="load",
    columns="offered_per_s, requests_per_s, tokens_per_s, ttft_p50_s, tpot_p50_s, goodput_per_s, preemptions",
    budget=3,
)
@pytest.mark.parametrize("load", LOADS)
def test_load(perf: Perf, device: torch.device, model_name: str, load: float) -> None:
    """Requests that arrive as a Poisson process, on the scheduler with a paged cache that is too small for all."""
    if perf.predicts:
        pytest.skip("a load is driven, not predicted")
    one = Serving(model_name, 8, 128, device, cache="paged")
    one.skip_what_a_state_has_not()
    one.declare(perf, flops=one.step_cost().flops, calls=16 * 16)
    model = one.model()
    requests = [Request(row[: 8 + 7 * n % 40], 16) for n, row in enumerate(one.prompts(64) * 2)]

    def scheduler() -> Scheduler:
        pool = PagePool(one.config, num_pages=24, dtype=one.cache_dtype, device=device)
        return Scheduler(model, pool, max_batch=8, chunk=64)

    for _ in range(2):  # the first call warms up
        (alone,) = drive(scheduler(), requests[:1], [0.0])
    rate = load / alone.tokens_s[-1]
    arrivals = poisson_arrivals(rate, len(requests))
    made: list[tuple[Scheduler, list[served.Request]]] = []

    def run() -> None:
        running = scheduler()
        answered = drive(running, requests, arrivals)
        made.append((running, [served.Request(a.arrival_s, tuple(a.tokens_s)) for a in answered]))

    perf(run)
    last, answered = made[-1]
    seen = served.served(answered)
    limits = {"ttft_s": 4 * alone.tokens_s[0], "tpot_s": 4 * (alone.tokens_s[-1] - alone.tokens_s[0]) / 15}
    perf.note(
        offered_per_s=len(requests) / arrivals[-1],
        requests_per_s=seen.requests_per_s,
        tokens_per_s=seen.tokens_per_s,
        ttft_p50_s=seen.ttft_s["p50"].value,
        tpot_p50_s=seen.tpot_s["p50"].value,
        goodput_per_s=served.goodput(answered, **limits),
        preemptions=last.preemptions,
    )
    assert seen.completed == len(requests)


def _declare_decode(perf: Perf, one: Serving) -> None:
    cost = one.step_cost()
    one.declare(perf, flops=cost.flops)
    perf.work(tokens=one.batch_size, bytes=cost.read_bytes, flops=cost.flops)
    perf.note(
        read_bytes=cost.read_bytes,
        cache_token_bytes=cache_bytes_per_token(one.config, one.cache_dtype),
        copy_bytes_per_s=None if perf.predicts else copied_bytes_per_s(one.device),
    )

    def decoding(**sizes: Any) -> Callable[[], Tensor]:
        return DecodeStep(one.resized(**sizes), filled=False)

    perf.fits(decoding, sizes=_sizes(one), remedies=one.remedies)


def _again(call: Callable[[], Tensor], rewind: Callable[[], None]) -> Callable[[], Tensor]:
    """A call that puts the cache back first."""

    def run() -> Tensor:
        rewind()
        return call()

    return run


def _sizes(one: Serving) -> dict[str, int]:
    return {"batch_size": one.batch_size, "context_length": one.context}


def _prefill(one: Serving) -> tuple[Callable[[], Tensor], Callable[[], None]]:
    """All prompts at once, and how the cache is emptied."""
    model, cache = one.model(), one.new_cache()
    counts = [one.context] * one.batch_size
    tokens = torch.zeros(one.batch_size, one.context, dtype=torch.int64, device=one.device)
    with torch.no_grad():
        return lambda: prefill(model, tokens, cache, counts), lambda: cache.truncate([0] * one.batch_size)
