"""What generating asks of CUDA's host side: launches, waits and memory, the same for each token at every length.

Counts are perflab's own (`measure/counts/counter.py`). They need a CUDA device and none of its numbers, so
`make cuda` runs this without a GPU; every token reads as 0 then. 2 sequences, 2 layers, C = 1,024.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from perflab.lab.inference.generate import generate, stream
from perflab.lab.inference.paged_cache import PagePool
from perflab.lab.inference.sampling import Sampling
from perflab.lab.inference.scheduler import Request, Scheduler
from perflab.lab.inference.speculative import generate_speculatively
from perflab.measure.calls.workload import Workload
from perflab.measure.counts.counter import CallCounter, compiler_state
from perflab.measure.machine.devices import release_memory
from tests.perf.inference import DecodeStep, Serving

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here; `make cuda` runs it without a GPU"),
]

CUDA = torch.device("cuda", 0)
CONTEXT = 1024
ONE = Serving("tiny", 2, CONTEXT, CUDA)
STEPS: dict[str, tuple[dict[str, Any], int]] = {
    "fp32": ({}, 102),
    "bf16": ({"precision": "bf16"}, 116),
    "paged": ({"cache": "paged"}, 123),
    "window": ({"cache": "window", "changes": {"window": 64}}, 124),
    "int8 cache": ({"cache_bits": 8}, 138),
    "grouped heads": ({"changes": {"num_kv_heads": 2}}, 122),
    "int8 weights": ({"bits": 8}, 102),
    "int4 weights": ({"bits": 4}, 102),
    "split keys": ({"kernel": "torch"}, 592),
    "split keys, Triton": ({"kernel": "triton"}, 104),
    "split keys, Triton, paged": ({"kernel": "triton", "cache": "paged"}, 107),
    "graph": ({"how": "graph"}, 1),
    "graph, paged": ({"how": "graph", "cache": "paged"}, 1),
    "graph, Triton, bf16": ({"how": "graph", "kernel": "triton", "precision": "bf16"}, 1),
}
"""What differs from `ONE`, and the launches of a step. cuBLAS may launch more than a kernel for a product on a GPU."""


def counts_of(call: Callable[[], object]) -> dict[str, int]:
    """Launches, waits and allocations of one call."""
    counter = CallCounter(CUDA, compiler_state())
    counter.count_apart(Workload(call, (), {}))
    return {name: counter.counts[name] for name in ("kernel_launches", "host_syncs", "allocations")}


def at_length(step: DecodeStep, held: int) -> dict[str, int]:
    """Counts of a step behind so many tokens, whose memory is as before when its logits are let go."""
    counts = [held] * step.cache.batch_size
    with no_memory_stays():
        step.cache.truncate(counts)
        found = counts_of(lambda: step.decode(step.token))
        step.cache.truncate(counts)
    return found


@contextmanager
def no_memory_stays() -> Iterator[None]:
    """What is allocated within is freed within."""
    release_memory(CUDA)  # of models of other tests
    before = torch.cuda.memory_allocated(CUDA)
    yield
    assert torch.cuda.memory_allocated(CUDA) == before


@pytest.mark.parametrize("name", STEPS)
def test_a_step_launches_as_much_at_every_length_waits_for_nothing_and_keeps_no_memory(name: str) -> None:
    switches, launches = STEPS[name]
    step = DecodeStep(replace(ONE, **switches), filled=False)
    step()  # libraries set themselves up, kernels are compiled, a graph is recorded
    is_ring = "window" in switches.get("changes", {})
    found = [at_length(step, held) for held in ((CONTEXT - 1,) * 2 if is_ring else (CONTEXT - 1, 127))]
    assert found[0] == found[1]
    assert (found[0]["kernel_launches"], found[0]["host_syncs"]) == (launches, 0)
    if "how" in switches:
        assert found[0]["allocations"] == 0


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.9, top_k=20, top_p=0.95, seed=4)])
@pytest.mark.parametrize("how", ["eager", "graph"])
@pytest.mark.parametrize("cache", ["contiguous", "paged"])
def test_the_host_waits_once_for_all_tokens_and_once_for_each_with_stop_tokens(
    cache: str, how: str, sampling: Sampling
) -> None:
    one = replace(ONE, cache=cache, context=128)
    model, prompts = one.model(), one.prompts(20)
    tokens, recording = 40, 2 * (how == "graph")  # tokens of 3 pages and more; torch.cuda.graph waits as it begins

    def run(stop: tuple[int, ...]) -> list[list[int]]:
        return generate(
            model, prompts, max_new_tokens=tokens, cache=one.new_cache(), sampling=sampling, stop=stop, how=how
        )

    run(())
    without, with_stop = (counts_of(lambda stop=stop: run(stop))["host_syncs"] for stop in ((), (9_999,)))
    assert (without - recording, with_stop - recording) == (1, 1 + tokens)


def test_no_token_of_a_stream_keeps_memory_beyond_the_next_one() -> None:
    one = replace(ONE, context=128)
    model, cache = one.model(), one.new_cache()
    held = []
    release_memory(CUDA)
    for _token in stream(model, one.prompts(20), max_new_tokens=40, cache=cache, how="graph"):
        held.append(torch.cuda.memory_allocated(CUDA))
    assert len(set(held[2:])) == 1  # with the second token came the graph; one goes as the next one comes


def test_a_step_of_the_scheduler_waits_once_for_all_its_requests() -> None:
    one = replace(ONE, context=128)
    scheduler = Scheduler(one.model(), PagePool(one.config, num_pages=32, device=CUDA), max_batch=3, chunk=64)
    for row in one.prompts(20) + one.prompts(30)[:1]:
        scheduler.submit(Request(row, 40))
    while len(scheduler.step()) < 3:
        pass
    assert [counts_of(scheduler.step)["host_syncs"] for _ in range(20)] == [1] * 20  # pages are taken on the way


def test_speculation_waits_once_a_round_and_once_for_the_prompts() -> None:
    one = replace(ONE, context=128)
    model, draft = one.model(), one.model()
    rounds = []

    def run() -> None:
        found = generate_speculatively(
            model, draft, one.prompts(20), max_new_tokens=20, cache=one.new_cache(), draft_cache=one.new_cache()
        )
        rounds.append(found.rounds)

    run()
    assert counts_of(run)["host_syncs"] == 1 + rounds[-1]
