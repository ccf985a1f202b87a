"""What decoding with a cache must do, as checks that say where it first goes wrong.

All in float64, where decoding and the full forward differ by rounding of 1e-15 and a mistake by 1e-3 or more: `BUDGET`
is a thousand sums of V = 61 logits' rounding, and far below what any token's key weighs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from perflab.lab.inference.cache import KVCache
from perflab.lab.inference.generate import generate, prefill
from perflab.lab.inference.paged_cache import PagedCache, PagePool
from perflab.lab.inference.sampling import Sampling
from perflab.lab.inference.scheduler import Request, Scheduler
from perflab.lab.inference.slots import through_8_bits
from perflab.lab.inference.window_cache import WindowCache
from perflab.lab.models import ModelConfig, TransformerLM, transformer

BUDGET = 1e-10
LENGTH = 300
PAGE, WINDOW = 16, 24
PLAIN = ModelConfig(
    vocab_size=61, context_length=LENGTH, d_model=32, d_ff=48, num_layers=2, num_heads=4, attention="naive"
)
CONFIGS = {
    "plain": PLAIN,
    "grouped heads": replace(PLAIN, num_kv_heads=2),
    "multi-query": replace(PLAIN, num_kv_heads=1),
    "learned positions": replace(PLAIN, positions="learned", norm="layer", feed_forward="gelu", tied_head=True),
    "window": replace(PLAIN, window=WINDOW),
}
CACHES: dict[str, Callable[..., KVCache]] = {
    "contiguous": KVCache,
    "paged": lambda config, **rest: PagedCache(config, page_size=PAGE, **rest),
    "ring": lambda config, **rest: WindowCache(config, slack=8, **rest),
}
PROMPTS = ([3, 1, 4, 1, 5, 9, 2, 6], [5], [3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3, 3, 8, 3, 2, 7], [2, 7])


def model_of(config: ModelConfig, seed: int = 0) -> TransformerLM:
    """The model in float64, without training mode."""
    torch.manual_seed(seed)
    return TransformerLM(config).double().eval()


def cache_of(kind: str, config: ModelConfig, batch_size: int, **rest: object) -> KVCache:
    """An empty cache in float64."""
    return CACHES[kind](config, batch_size=batch_size, **{"dtype": torch.float64, **rest})


@torch.no_grad()
def check_decoding(
    model: TransformerLM,
    cache: KVCache,
    lengths: Sequence[int],
    *,
    steps: int,
    chunk: int | None = None,
    full: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Prompts of these lengths, then token after token, have the logits of the full forward at each position.

    Raises:
        AssertionError: names the first sequence and position that has others, and what is special about it.
    """
    tokens = torch.randint(
        model.config.vocab_size, (len(lengths), max(lengths) + steps), generator=torch.manual_seed(1)
    )
    wanted = (full or model)(tokens)
    logits = prefill(model, tokens[:, : max(lengths)], cache, list(lengths), chunk)
    _compare(logits, wanted, list(lengths), "after the prompt", model.config)
    for _ in range(steps):
        at = list(cache.counts)
        cache.begin(1)
        logits = model(torch.stack([tokens[b, n] for b, n in enumerate(at)])[:, None], cache=cache)[:, -1]
        cache.end()
        _compare(logits, wanted, [n + 1 for n in at], "decoding", model.config)
    assert cache.lengths.tolist() == cache.counts == [n + steps for n in lengths], "the cache counts other tokens"


def _compare(logits: Tensor, wanted: Tensor, lengths: list[int], when: str, config: ModelConfig) -> None:
    for b, length in enumerate(lengths):
        off = (logits[b] - wanted[b, length - 1]).abs().max().item()
        # Not "off > BUDGET", which lets NaN through.
        assert off <= BUDGET, (
            f"{when}: sequence {b} departs from the full forward by {off:.1e} at position {length - 1}"
            f"{_special(length - 1, b, lengths, config)}"
        )


def _special(position: int, sequence: int, lengths: list[int], config: ModelConfig) -> str:
    notes = []
    if position % PAGE == 0 and position:
        notes.append("the first of a page")
    if config.window is not None and position in (config.window, config.window - 1):
        notes.append("where the window begins to move")
    if lengths[sequence] < max(lengths):
        notes.append(f"shorter than the longest by {max(lengths) - lengths[sequence]}: behind padding")
    return "".join(f", {note}" for note in notes)


def check_rollback(model: TransformerLM, cache: KVCache, full: Callable[[Tensor], Tensor] | None = None) -> None:
    """Tokens that were taken back leave no trace, whatever was written for them.

    Raises:
        AssertionError: logits differ afterwards.
    """
    tokens = torch.randint(model.config.vocab_size, (2, 60), generator=torch.manual_seed(2))
    with torch.no_grad():
        wanted = (full or model)(tokens)
        prefill(model, tokens[:, :37], cache, [37, 30])
        for kept in ((0, 5), (3, 0), (5, 5), (1, 2)):
            held = list(cache.counts)
            wrong = torch.zeros(2, 5)  # behind the right tokens, others
            for b, (n, k) in enumerate(zip(held, kept, strict=True)):
                wrong[b, :k] = tokens[b, n : n + k]
            cache.begin(5)
            model(wrong.long(), cache=cache)
            cache.end()
            cache.truncate([n + k for n, k in zip(held, kept, strict=True)])
        cache.begin(1)
        at = list(cache.counts)
        logits = model(torch.stack([tokens[b, n] for b, n in enumerate(at)])[:, None], cache=cache)[:, -1]
        cache.end()
    _compare(logits, wanted, [n + 1 for n in at], "after tokens were taken back", model.config)


def check_generation(model: TransformerLM, kind: str, sampling: Sampling, stop: tuple[int, ...] = ()) -> None:
    """A batch of prompts of unequal lengths gets what each gets alone.

    Raises:
        AssertionError: names the prompt.
    """
    cache = cache_of(kind, model.config, len(PROMPTS))
    together = generate(model, PROMPTS, max_new_tokens=40, cache=cache, sampling=sampling, stop=stop)
    for n, (prompt, tokens) in enumerate(zip(PROMPTS, together, strict=True)):
        held = len(prompt) + len(tokens) - 1  # the last token is in no cache
        assert cache.counts[n] == held, f"prompt {n} has ended with {held} tokens, and the cache has {cache.counts[n]}"
    for n, prompt in enumerate(PROMPTS):
        alone = generate(
            model, [prompt], max_new_tokens=40, cache=cache_of(kind, model.config, 1),
            sampling=replace(sampling, seed=sampling.seed + n), stop=stop,
        )  # fmt: skip
        assert together[n] == alone[0], f"prompt {n} gets other tokens in a batch than alone: {together[n]}, {alone[0]}"


def check_schedule(
    model: TransformerLM, *, num_pages: int, max_batch: int = 3, chunk: int = 7, temperature: float = 0.0
) -> Scheduler:
    """Requests that come and go get what each gets alone, and every page comes back.

    The pool's values are 1e30 at first, so reading a slot that nobody wrote changes everything. A request is cancelled
    half-way, and another comes in while others run.

    Raises:
        AssertionError: names the request.
    """
    pool = PagePool(model.config, num_pages=num_pages, page_size=PAGE, dtype=torch.float64)
    for values in pool.memory.values:
        values.fill_(1e30)
    scheduler = Scheduler(model, pool, max_batch=max_batch, chunk=chunk)
    requests = [
        Request(prompt, 20 + 5 * n, Sampling(temperature=temperature, seed=n)) for n, prompt in enumerate(PROMPTS)
    ]
    numbers = [scheduler.submit(request) for request in requests]
    doomed = scheduler.submit(Request([1, 2, 3], 30))
    made: dict[int, list[int]] = {}
    ended: set[int] = set()
    for step in range(400):
        if scheduler.is_idle:
            break
        if step == 35:
            scheduler.cancel(doomed)
            requests.append(Request(PROMPTS[2], 12, Sampling(temperature=temperature, seed=9)))
            numbers.append(scheduler.submit(requests[-1]))
        for token in scheduler.step():
            assert token.request not in ended, f"request {token.request} makes tokens after its last"
            made.setdefault(token.request, []).append(token.token)
            ended |= {token.request} if token.is_last else set()
    assert scheduler.is_idle, "requests are left waiting for ever"
    assert pool.num_free == num_pages, f"{num_pages - pool.num_free} pages never came back"
    for request, number in zip(requests, numbers, strict=True):
        alone = generate(
            model,
            [request.prompt],
            max_new_tokens=request.max_new_tokens,
            cache=cache_of("contiguous", model.config, 1),
            sampling=request.sampling,
        )[0]
        got = made.get(number, [])
        assert got == alone, f"request {number} gets other tokens than alone: {got}, {alone}"
    return scheduler


def check_sharing(model: TransformerLM) -> None:
    """Requests whose prompts share pages, or hold the same page behind another beginning, get what each gets alone.

    Raises:
        AssertionError: names the request.
    """
    same = [n % 61 for n in range(2 * PAGE)]
    prompts = [
        [*same, 1],
        [*same, 2],
        [*reversed(same[:PAGE]), *same[PAGE:], 3],
        [*same[PAGE:], 4],
        [*same[:PAGE], *same[:PAGE], 5],
    ]
    pool = PagePool(model.config, num_pages=9, page_size=PAGE, dtype=torch.float64)
    scheduler = Scheduler(model, pool, max_batch=3)
    numbers = [scheduler.submit(Request(prompt, 20)) for prompt in prompts]
    made = scheduler.run()
    for prompt, number in zip(prompts, numbers, strict=True):
        alone = generate(model, [prompt], max_new_tokens=20, cache=cache_of("contiguous", model.config, 1))[0]
        assert made[number] == alone, f"request {number} gets other tokens than alone: {made[number]}, {alone}"
    assert pool.num_free == 9, f"{9 - pool.num_free} pages never came back"


@torch.no_grad()
def full_forward_through_8_bits(model: TransformerLM, tokens: Tensor) -> Tensor:
    """The full forward with every key and value rounded as an int8 cache rounds it."""
    plain = transformer.attention

    def rounding(q: Tensor, k: Tensor, v: Tensor, **settings: object) -> Tensor:
        return plain(q, through_8_bits(k), through_8_bits(v), **settings)  # type: ignore[arg-type]

    transformer.attention = rounding  # type: ignore[attr-defined, assignment]
    try:
        return model(tokens)
    finally:
        transformer.attention = plain  # type: ignore[attr-defined]
