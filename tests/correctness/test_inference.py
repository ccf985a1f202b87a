"""Decoding with a cache is the full forward, whatever the cache, the batch and the schedule."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from perflab.lab.inference.cache import KVCache
from perflab.lab.inference.generate import generate, stream
from perflab.lab.inference.paged_cache import PagedCache, PagePool, PoolFullError
from perflab.lab.inference.sampling import Sampling
from perflab.lab.inference.scheduler import Request, Scheduler
from perflab.lab.inference.slots import through_8_bits
from perflab.lab.inference.speculative import generate_speculatively
from perflab.lab.inference.window_cache import WindowCache
from tests.correctness.inference import (
    CONFIGS,
    LENGTH,
    PLAIN,
    PROMPTS,
    WINDOW,
    cache_of,
    check_decoding,
    check_generation,
    check_rollback,
    check_schedule,
    full_forward_through_8_bits,
    model_of,
)

pytestmark = pytest.mark.correctness

MATRIX = [
    (name, kind) for name in CONFIGS for kind in ("contiguous", "paged", "ring") if kind != "ring" or name == "window"
]


@pytest.mark.parametrize(("name", "kind"), MATRIX)
def test_decoding_is_the_full_forward_at_every_position_from_1_to_300(name: str, kind: str) -> None:
    config = CONFIGS[name]
    check_decoding(model_of(config), cache_of(kind, config, 1), [1], steps=LENGTH - 1)


@pytest.mark.parametrize(("name", "kind"), MATRIX)
@pytest.mark.parametrize("chunk", [None, 1, 8])
def test_prompts_of_unequal_lengths_in_one_batch_and_in_chunks(name: str, kind: str, chunk: int | None) -> None:
    config = CONFIGS[name]
    lengths = [WINDOW + 9, 1, 16, 17, WINDOW, 31]
    check_decoding(model_of(config), cache_of(kind, config, len(lengths)), lengths, steps=20, chunk=chunk)


@pytest.mark.parametrize(("name", "kind"), MATRIX)
def test_an_8_bit_cache_decodes_as_the_forward_with_rounded_keys_and_values(name: str, kind: str) -> None:
    config = CONFIGS[name]
    model = model_of(config)
    cache = cache_of(kind, config, 3, dtype=torch.int8)
    check_decoding(
        model, cache, [20, 1, 33], steps=30, chunk=8 if kind == "ring" else None,
        full=partial(full_forward_through_8_bits, model),
    )  # fmt: skip


def test_8_bits_are_off_by_half_a_scale_at_most() -> None:
    x = (
        torch.randn(50, 4, 8, dtype=torch.float64, generator=torch.manual_seed(0))
        * torch.logspace(-6, 6, 50)[:, None, None]
    )
    x[7] = 0
    scale = x.abs().amax(-1, keepdim=True) / 127
    assert bool(((through_8_bits(x) - x).abs() <= scale * 0.5000001).all())


@pytest.mark.parametrize(("name", "kind"), MATRIX)
def test_tokens_that_are_taken_back_leave_no_trace(name: str, kind: str) -> None:
    config = CONFIGS[name]
    check_rollback(model_of(config), cache_of(kind, config, 2))


@pytest.mark.parametrize("kernel", ["torch", "triton"])
@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kind in MATRIX if kind != "ring"])
def test_decode_kernels_read_every_cache(name: str, kind: str, kernel: str) -> None:
    config = CONFIGS[name]
    model = model_of(config).float()
    one, other = (cache_of(kind, config, 3, dtype=torch.float32, kernel=k, capacity=64) for k in ("sdpa", kernel))
    with torch.no_grad():
        tokens = torch.randint(61, (3, 44), generator=torch.manual_seed(3))
        for cache in (one, other):
            cache.begin(36, [30, 1, 36])
            model(tokens[:, :36], cache=cache)
            cache.end()
        for step in range(3):
            out = []
            for cache in (one, other):
                cache.begin(2 if step else 1)
                out.append(model(tokens[:, 36 + step : 37 + step + bool(step)], cache=cache))
                cache.end()
            torch.testing.assert_close(*out, atol=2e-5, rtol=0)


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.9, top_k=20, top_p=0.95, seed=4)])
@pytest.mark.parametrize("stop", [(), (7, 11)])
def test_a_batch_gets_what_each_prompt_gets_alone(kind: str, sampling: Sampling, stop: tuple[int, ...]) -> None:
    check_generation(model_of(PLAIN), kind, sampling, stop)


def test_generation_ends_at_a_stop_token_and_where_it_is_cancelled() -> None:
    model = model_of(PLAIN)
    tokens = generate(model, PROMPTS[:1], max_new_tokens=30, cache=cache_of("contiguous", PLAIN, 1))[0]
    stop = tokens[4]
    stopped = generate(model, PROMPTS[:1], max_new_tokens=30, cache=cache_of("contiguous", PLAIN, 1), stop=[stop])[0]
    assert stopped == tokens[: tokens.index(stop) + 1]
    streamed = stream(model, PROMPTS[:1], max_new_tokens=30, cache=cache_of("contiguous", PLAIN, 1))
    assert [int(next(streamed)) for _ in range(3)] == tokens[:3]  # and nobody asks for more


def test_a_compiled_step_generates_what_an_eager_one_does_and_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[object] = []

    def captured(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:  # what a compiler would get
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=captured))
    model = model_of(PLAIN)
    runs = [
        generate(model, PROMPTS[:2], max_new_tokens=12, cache=cache_of("contiguous", PLAIN, 2, capacity=40), how=how)
        for how in ("eager", "compiled")
    ]
    assert runs[0] == runs[1]
    assert len(graphs) == 1


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_requests_that_come_and_go_get_what_each_gets_alone(temperature: float) -> None:
    scheduler = check_schedule(model_of(PLAIN), num_pages=40, temperature=temperature)
    assert scheduler.preemptions == 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_preempted_request_gets_what_an_undisturbed_one_gets(temperature: float) -> None:
    scheduler = check_schedule(model_of(PLAIN), num_pages=4, temperature=temperature)
    assert scheduler.preemptions > 0


def test_prompts_that_begin_alike_are_computed_once() -> None:
    model = model_of(PLAIN)
    shared = list(range(40))
    computed = {}
    for share in (True, False):
        pool = PagePool(PLAIN, num_pages=40, page_size=16, dtype=torch.float64)
        scheduler = Scheduler(model, pool, share=share)
        numbers = [scheduler.submit(Request([*shared, n], 5)) for n in (50, 51)]
        tokens = scheduler.run()
        computed[share] = scheduler.computed, [tokens[n] for n in numbers]
    assert computed[True][1] == computed[False][1]
    assert computed[False][0] - computed[True][0] == 32  # two full pages of 16


def test_a_page_that_was_given_away_is_not_found_any_more() -> None:
    pool = PagePool(PLAIN, num_pages=3, page_size=4)
    first = pool.find([])
    pool.grow([first], [8])
    first.length = 8
    pool.remember(first, range(8))
    pool.release(first)
    assert pool.find(range(9)).length == 8  # held again now
    other = pool.find([])
    pool.grow([other], [4])
    with pytest.raises(PoolFullError, match="1 pages wanted and 0 of 3 free; make the pool with more num_pages"):
        pool.grow([other], [8])


def test_an_empty_prefix_of_another_history_is_not_shared() -> None:
    pool = PagePool(PLAIN, num_pages=8, page_size=4)
    first = pool.find([])
    pool.grow([first], [8])
    first.length = 8
    pool.remember(first, [1, 2, 3, 4, 9, 9, 9, 9])
    assert pool.find([5, 5, 5, 5, 9, 9, 9, 9, 0]).length == 0  # the same second page behind another first one
    assert pool.find([1, 2, 3, 4, 9, 9, 9, 9, 0]).length == 8


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_speculation_generates_for_every_prompt_of_a_batch(temperature: float, kind: str) -> None:
    model, sampling = model_of(PLAIN), Sampling(temperature=temperature, seed=2)
    draft = model_of(PLAIN)
    with torch.no_grad():  # like the model, and not the same
        for p in draft.parameters():
            p += 0.1 * p.std() * torch.randn_like(p) if p.numel() > 1 else 0
    got = generate_speculatively(
        model, draft, PROMPTS, max_new_tokens=30, sampling=sampling, cache=cache_of(kind, PLAIN, 4),
        draft_cache=cache_of(kind, PLAIN, 4),
    )  # fmt: skip
    assert [len(row) for row in got.tokens] == [30] * 4
    assert 0 < got.accepted < got.drafted
    if temperature == 0:  # greedy tokens in float64 are decoding's
        assert got.tokens == generate(model, PROMPTS, max_new_tokens=30, cache=cache_of(kind, PLAIN, 4))


BAD = {
    "a prompt longer than the context": (
        lambda m: generate(m, [[1] * 299], max_new_tokens=5),
        r"prompt 0 has 299 tokens, and with 5 new ones exceeds context_length=300: shorten it, generate at most 1",
    ),
    "an empty prompt": (lambda m: generate(m, [[1], []], max_new_tokens=5), "prompt 1 is empty: give it one token"),
    "a batch of nothing": (lambda m: generate(m, [], max_new_tokens=5), "got no prompts: give a list"),
    "no new tokens": (lambda m: generate(m, [[1]], max_new_tokens=0), "max_new_tokens=0: wanted 1 or more"),
    "tokens outside the vocabulary": (
        lambda m: generate(m, [[1, 61]], max_new_tokens=5),
        "prompt 0 has token 61, outside the vocabulary of 61: encode it with this model's tokenizer",
    ),
    "a cache of another model": (
        lambda m: generate(m, [[1]], max_new_tokens=2, cache=cache_of("contiguous", CONFIGS["multi-query"], 1)),
        "the cache is another model's: num_kv_heads=1 for 4; make it with this model's config",
    ),
    "a cache of another batch": (
        lambda m: generate(m, [[1]], max_new_tokens=2, cache=cache_of("contiguous", PLAIN, 3)),
        "a cache of 3 sequences for 1 prompts: make it with batch_size=1",
    ),
    "a full cache": (
        lambda m: generate(m, [[1, 2]], max_new_tokens=9, cache=cache_of("contiguous", PLAIN, 1, capacity=5)),
        "the cache is full: sequence 0 has 5 tokens and gets 1 more, with room for 5; make it with capacity=6",
    ),
    "a draft of another vocabulary": (
        lambda m: generate_speculatively(
            m, model_of(ModelConfigOf60), [[1]], max_new_tokens=2, cache=cache_of("contiguous", PLAIN, 1),
            draft_cache=cache_of("contiguous", ModelConfigOf60, 1),
        ),
        "a draft model with vocab_size=60 for one with 61: tokens must mean the same to both",
    ),
    "a cache without sequences": (lambda m: KVCache(PLAIN, batch_size=0), "a cache for a batch of 0"),
    "too much capacity": (lambda m: KVCache(PLAIN, batch_size=1, capacity=301), "a cache for 301 tokens: wanted 1 to"),
    "an unknown kernel": (lambda m: KVCache(PLAIN, batch_size=1, kernel="fast"), "kernel='fast': wanted one of sdpa"),
    "an unknown dtype": (lambda m: KVCache(PLAIN, batch_size=1, dtype=torch.int16), "a cache in torch.int16: wanted"),
    "a ring without a window": (lambda m: WindowCache(PLAIN, batch_size=1), "a model without a window: give the model"),
    "a graph without CUDA": (lambda m: generate(m, [[1]], max_new_tokens=2, how="graph"), "how='graph' on cpu"),
    "an unknown way": (lambda m: generate(m, [[1]], max_new_tokens=2, how="quick"), "how='quick': wanted one of eager"),
    "a chunk of nothing": (lambda m: generate(m, [[1]], max_new_tokens=2, chunk=0), "chunk=0: wanted 1 token or more"),
    "a request that no pool has room for": (
        lambda m: Scheduler(m, PagePool(PLAIN, num_pages=2, page_size=8)).submit(Request([1] * 10, 10)),
        "a request of up to 20 tokens for a pool of 2 pages of 8: make it with num_pages=3 or more",
    ),
    "a pool of another model": (
        lambda m: PagedCache(CONFIGS["window"], pool=PagePool(PLAIN, num_pages=2), batch_size=1),
        "make the pool of the same model and dtype",
    ),
    "taking back too much": (lambda m: KVCache(PLAIN, batch_size=1).truncate([1]), "wanted no more than there are"),
    "counts that do not fit": (lambda m: KVCache(PLAIN, batch_size=1).begin(2, [3]), r"counts=\[3\] of 2 new tokens"),
    "temperature": (lambda m: Sampling(temperature=-1), "temperature=-1: wanted 0 .greedy. or a positive"),
    "top_k": (lambda m: Sampling(top_k=0), "top_k=0: wanted 1 or more"),
    "top_p": (lambda m: Sampling(top_p=0), "top_p=0: wanted more than 0"),
}  # fmt: skip
ModelConfigOf60 = type(PLAIN)(**{**PLAIN.__dict__, "vocab_size": 60})


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_a_remedy(what: str) -> None:
    do, words = BAD[what]
    with pytest.raises(ValueError, match=words):
        do(model_of(PLAIN))


def test_keys_of_another_dtype_than_the_cache_are_refused() -> None:
    with pytest.raises(
        TypeError, match=r"keys in torch.float32 for a cache in torch.float64: make the cache with dtype="
    ):
        generate(model_of(PLAIN).float(), [[1]], max_new_tokens=2, cache=cache_of("contiguous", PLAIN, 1))
