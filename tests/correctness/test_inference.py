"""Decoding with a cache is the full forward, whatever the cache, the batch and the schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from torch import nn

from perflab.lab.inference.cache import KVCache
from perflab.lab.inference.generate import generate, prefill, stream
from perflab.lab.inference.paged_cache import PagedCache, PagePool, Pages, PoolFullError
from perflab.lab.inference.sampling import Sampling
from perflab.lab.inference.scheduler import Request, Scheduler
from perflab.lab.inference.slots import through_8_bits
from perflab.lab.inference.speculative import generate_speculatively
from perflab.lab.inference.weight_layout import lay_out_for_decode
from perflab.lab.inference.window_cache import WindowCache
from perflab.lab.models import TransformerLM
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
from tests.correctness.refusals import refusal_of

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=["fp32", "int8"])
@pytest.mark.parametrize("kernel", ["torch", "triton"])
@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kind in MATRIX if kind != "ring"])
def test_decode_kernels_read_every_cache(name: str, kind: str, kernel: str, dtype: torch.dtype) -> None:
    config = CONFIGS[name]
    model = model_of(config).float()
    one, other = (cache_of(kind, config, 3, dtype=dtype, kernel=k, capacity=64) for k in ("sdpa", kernel))
    with torch.no_grad():
        tokens = torch.randint(61, (3, 44), generator=torch.manual_seed(3))
        for cache in (one, other):
            cache.begin(36, [30, 1, 36])
            model(tokens[:, :36], cache=cache)
            cache.end()
        for written in (slice(36, 37), slice(37, 39)):
            out = []
            for cache in (one, other):
                cache.begin(written.stop - written.start)
                out.append(model(tokens[:, written], cache=cache))
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


@pytest.mark.parametrize("name", ["plain", "learned positions"])
def test_weights_that_are_laid_out_for_decoding_are_the_same_weights(name: str) -> None:
    """The second model's head is its embedding, which lookups read by rows."""
    model, plain = model_of(CONFIGS[name]), model_of(CONFIGS[name])
    lay_out_for_decode(model)
    laid_out = [n for n, weight in model.named_parameters() if not weight.is_contiguous()]
    wide = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and m.out_features > m.in_features]
    assert wide
    assert laid_out == [f"{n}.weight" for n in wide]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
    check_decoding(model, cache_of("contiguous", CONFIGS[name], 1), [9], steps=4)
    assert [n for n, weight in model.float().named_parameters() if not weight.is_contiguous()] == laid_out


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


def test_a_page_has_one_content_however_often_it_is_remembered() -> None:
    pool = PagePool(PLAIN, num_pages=3, page_size=4)

    def filled(tokens: range) -> Pages:
        sequence = Pages()
        pool.grow([sequence], [len(tokens)])
        sequence.length = len(tokens)
        pool.remember(sequence, tokens)
        return sequence

    first, second = filled(range(4)), filled(range(8))  # the second has a page 0 of its own, known as the first's
    pool.release(first)
    pool.grow([first], [4])  # and now known as nothing: another one writes it
    pool.remember(second, range(8))
    pages, found = list(second.pages), pool.find(range(9))
    assert found.pages == pages
    for sequence in (first, second, found):
        pool.release(sequence)
    pool.grow([first], [12])  # every page is given away, and known as nothing
    assert pool.find(range(9)).pages == []


def test_a_known_page_that_is_cut_is_copied_if_others_hold_it_and_found_no_more() -> None:
    config, tokens = PLAIN, list(range(33))
    model = model_of(config)
    pool = PagePool(config, num_pages=8, page_size=16, dtype=torch.float64)
    scheduler = Scheduler(model, pool)
    scheduler.submit(Request(tokens, 1))
    scheduler.run()
    one, other = (pool.find(tokens) for _ in range(2))
    before = pool.memory.keys[0].clone()
    cache = PagedCache(config, pool=pool, sequences=[one])
    cache.truncate([20])
    assert one.pages[0] == other.pages[0]
    assert one.pages[1] != other.pages[1]
    with torch.no_grad():
        wanted = model(torch.tensor([[*tokens[:20], 7]]))[:, -1]
        cache.begin(1)
        torch.testing.assert_close(model(torch.tensor([[7]]), cache=cache)[:, -1], wanted, atol=1e-10, rtol=0)
        cache.end()
    theirs = slice(other.pages[1] * 16, other.pages[1] * 16 + 16)
    assert torch.equal(pool.memory.keys[0][theirs], before[theirs])
    pool.release(other)  # the first one's page is nobody else's now, but it has other tokens than it was known by
    assert pool.find(tokens).pages[0] == one.pages[0]


def test_numbers_that_overflowed_in_one_request_reach_no_other() -> None:
    """A weight of 0 times NaN is NaN, so what is masked has to be a number too."""
    model = model_of(PLAIN)
    pool = PagePool(PLAIN, num_pages=6, page_size=16, dtype=torch.float64)
    broken = Pages()
    pool.grow([broken], [96])
    for memory in (*pool.memory.keys, *pool.memory.values):
        memory[:96] = float("nan")
    pool.release(broken)
    scheduler = Scheduler(model, pool, max_batch=2)
    numbers = [scheduler.submit(Request(prompt, 30)) for prompt in PROMPTS[:2]]
    made = scheduler.run()
    for number, prompt in zip(numbers, PROMPTS, strict=False):
        assert made[number] == generate(model, [prompt], max_new_tokens=30, cache=cache_of("contiguous", PLAIN, 1))[0]


@pytest.mark.parametrize("kind", ["contiguous", "ring"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int8], ids=["fp64", "int8"])
def test_what_overflowed_in_a_cache_is_gone_when_it_is_emptied(kind: str, dtype: torch.dtype) -> None:
    config = CONFIGS["window"]
    model, cache = model_of(config), cache_of(kind, config, 2, dtype=dtype)
    fresh = generate(model, PROMPTS[:2], max_new_tokens=12, cache=cache)
    for layers in (cache.memory.keys, cache.memory.values, cache.memory.key_scales, cache.memory.value_scales):
        for memory in layers or ():
            memory.fill_(float("nan") if memory.is_floating_point() else 127)
    cache.truncate([0, 0])
    assert generate(model, PROMPTS[:2], max_new_tokens=12, cache=cache) == fresh


def test_a_ring_remembers_how_far_it_was_written() -> None:
    config = CONFIGS["window"]
    cache = WindowCache(config, batch_size=1, slack=2, dtype=torch.float64)
    tokens = torch.randint(61, (1, 40), generator=torch.manual_seed(4))
    model = model_of(config)
    with torch.no_grad():
        prefill(model, tokens, cache, [40])
    cache.truncate([38])
    with pytest.raises(ValueError, match=r"truncate\(\[37\]\) after \[40\] tokens: a ring with slack=2 keeps no more"):
        cache.truncate([37])
    cache.truncate([0])
    check_decoding(model, cache, [30], steps=9)  # and from nothing it begins anew


@pytest.mark.parametrize("chunk", [1, 3, 50])
@pytest.mark.parametrize("num_pages", [6, 7, 9])
def test_small_pools_and_chunks_preempt_and_share_and_change_no_token(chunk: int, num_pages: int) -> None:
    model = model_of(PLAIN)
    prompts = [[1, 2, 3, 4, 5, 6, 7, n] for n in range(4)] + [[9], [8, 8, 8]]
    pool = PagePool(PLAIN, num_pages=num_pages, page_size=4, dtype=torch.float64)
    scheduler = Scheduler(model, pool, max_batch=3, chunk=chunk)
    numbers = [scheduler.submit(Request(prompt, 9 + n)) for n, prompt in enumerate(prompts)]
    cancelled = scheduler.submit(Request(list(range(12)), 8))
    made: dict[int, list[int]] = {number: [] for number in numbers}
    for step in range(500):
        if scheduler.is_idle:
            break
        if step == 40:
            scheduler.cancel(cancelled)
        for token in scheduler.step():
            made.setdefault(token.request, []).append(token.token)
    assert scheduler.is_idle
    assert pool.num_free == num_pages
    for n, (number, prompt) in enumerate(zip(numbers, prompts, strict=True)):
        alone = generate(model, [prompt], max_new_tokens=9 + n, cache=cache_of("contiguous", PLAIN, 1))[0]
        assert made[number] == alone


def test_a_prompt_that_is_cancelled_before_it_is_done_leaves_its_pages() -> None:
    pool = PagePool(PLAIN, num_pages=8, page_size=16, dtype=torch.float64)
    scheduler = Scheduler(model_of(PLAIN), pool, chunk=4)
    number = scheduler.submit(Request([1] * 20, 5))
    assert scheduler.step() == []
    assert scheduler.cancel(number)
    assert not scheduler.cancel(number)
    assert scheduler.is_idle
    assert pool.num_free == 8


def test_a_cache_serves_again_after_a_compiled_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    model, cache = model_of(PLAIN), cache_of("contiguous", PLAIN, 1)
    first = generate(model, PROMPTS[:1], max_new_tokens=6, cache=cache, how="compiled")
    cache.truncate([0])
    assert generate(model, PROMPTS[:1], max_new_tokens=6, cache=cache) == first


@pytest.mark.parametrize("drafts", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int8], ids=["fp64", "int8"])
def test_speculation_with_a_ring_8_bits_and_stop_tokens(drafts: int, dtype: torch.dtype) -> None:
    config = CONFIGS["window"]
    model, draft = model_of(config), model_of(config, seed=1)

    def ring() -> WindowCache:
        return WindowCache(config, batch_size=4, slack=drafts, dtype=dtype)

    chunked = generate(model, PROMPTS, max_new_tokens=25, cache=ring(), stop=[7])
    for asked in (draft, model):  # one that is nearly never right, and one that always is
        got = generate_speculatively(
            model, asked, PROMPTS, max_new_tokens=25, cache=ring(), draft_cache=ring(), drafts=drafts, stop=[7]
        )
        assert got.tokens == chunked


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


BAD: dict[str, Callable[..., object]] = {
    "a prompt longer than the context": lambda m: generate(m, [[1] * 299], max_new_tokens=5),
    "an empty prompt": lambda m: generate(m, [[1], []], max_new_tokens=5),
    "a batch of nothing": lambda m: generate(m, [], max_new_tokens=5),
    "no new tokens": lambda m: generate(m, [[1]], max_new_tokens=0),
    "tokens outside the vocabulary": lambda m: generate(m, [[1, 61]], max_new_tokens=5),
    "a cache of another model": lambda m: generate(
        m, [[1]], max_new_tokens=2, cache=cache_of("contiguous", CONFIGS["multi-query"], 1)
    ),
    "a cache of another batch": lambda m: generate(m, [[1]], max_new_tokens=2, cache=cache_of("contiguous", PLAIN, 3)),
    "a model that trains": lambda m: generate(m.train(), [[1]], max_new_tokens=2),
    "a cache of a longer context": lambda m: generate(
        m, [[1]], max_new_tokens=2, cache=KVCache(replace(PLAIN, context_length=400), batch_size=1)
    ),
    "a cache of speculation with tokens in it": lambda m: [
        generate_speculatively(m, m, [[1]], max_new_tokens=2, cache=cache, draft_cache=cache_of("paged", PLAIN, 1))
        for cache in [cache_of("contiguous", PLAIN, 1)] * 2
    ],
    "a scheduler whose pages others hold": lambda m: scheduler_beside_another(m).run(),
    "a pool in another dtype": lambda m: Scheduler(m.float(), pool_of(2)),
    "a full cache": lambda m: generate(
        m, [[1, 2]], max_new_tokens=9, cache=cache_of("contiguous", PLAIN, 1, capacity=5)
    ),
    "a draft of another vocabulary": lambda m: generate_speculatively(
        m,
        model_of(ModelConfigOf60),
        [[1]],
        max_new_tokens=2,
        cache=cache_of("contiguous", PLAIN, 1),
        draft_cache=cache_of("contiguous", ModelConfigOf60, 1),
    ),
    "a cache without sequences": lambda m: KVCache(PLAIN, batch_size=0),
    "too much capacity": lambda m: KVCache(PLAIN, batch_size=1, capacity=301),
    "an unknown kernel": lambda m: KVCache(PLAIN, batch_size=1, kernel="fast"),
    "an unknown dtype": lambda m: KVCache(PLAIN, batch_size=1, dtype=torch.int16),
    "a ring without a window": lambda m: WindowCache(PLAIN, batch_size=1),
    "a graph without CUDA": lambda m: generate(m, [[1]], max_new_tokens=2, how="graph"),
    "an unknown way": lambda m: generate(m, [[1]], max_new_tokens=2, how="quick"),
    "a chunk of nothing": lambda m: generate(m, [[1]], max_new_tokens=2, chunk=0),
    "a request that no pool has room for": lambda m: Scheduler(m, pool_of(2)).submit(Request([1] * 10, 10)),
    "a pool of another model": lambda m: PagedCache(CONFIGS["window"], pool=PagePool(PLAIN, num_pages=2), batch_size=1),
    "taking back too much": lambda m: KVCache(PLAIN, batch_size=1).truncate([1]),
    "counts that do not fit": lambda m: KVCache(PLAIN, batch_size=1).begin(2, [3]),
    "temperature": lambda m: Sampling(temperature=-1),
    "top_k": lambda m: Sampling(top_k=0),
    "top_p": lambda m: Sampling(top_p=0),
}


def pool_of(num_pages: int) -> PagePool:
    """Pages of 8 tokens, in float64."""
    return PagePool(PLAIN, num_pages=num_pages, page_size=8, dtype=torch.float64)


def scheduler_beside_another(model: TransformerLM) -> Scheduler:
    """A scheduler whose pool has a page that somebody else holds."""
    pool = pool_of(2)
    pool.grow([Pages()], [8])
    scheduler = Scheduler(model, pool)
    scheduler.submit(Request([1] * 9, 2))
    return scheduler


ModelConfigOf60 = type(PLAIN)(**{**PLAIN.__dict__, "vocab_size": 60})


def test_bad_input_is_refused_with_a_remedy(snapshot: SnapshotAssertion) -> None:
    assert {what: refusal_of(lambda do=do: do(model_of(PLAIN))) for what, do in BAD.items()} == snapshot


def test_keys_of_another_dtype_than_the_cache_are_refused() -> None:
    with pytest.raises(
        TypeError, match=r"keys in torch.float32 for a cache in torch.float64: make the cache with dtype="
    ):
        generate(model_of(PLAIN).float(), [[1]], max_new_tokens=2, cache=cache_of("contiguous", PLAIN, 1))
