"""Caches, samplers and schedulers that are wrong on purpose, one mistake each, and the check that must find it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from perflab.lab.inference import cache as cache_module
from perflab.lab.inference import generate as generate_module
from perflab.lab.inference.cache import KVCache
from perflab.lab.inference.paged_cache import PagePool, Pages
from perflab.lab.inference.sampling import Sampling
from perflab.lab.inference.scheduler import Scheduler
from perflab.lab.inference.slots import Slots, Stored
from perflab.lab.inference.window_cache import WindowCache
from tests.correctness.inference import (
    CONFIGS,
    PLAIN,
    cache_of,
    check_decoding,
    check_generation,
    check_rollback,
    check_schedule,
    check_sharing,
    full_forward_through_8_bits,
    model_of,
)


@dataclass(frozen=True)
class WrongInference:
    """One mistake.

    name   what is wrong
    where  the class or module, and the name in it that is replaced
    wrong  takes what was there, and returns what stands in for it
    check  must fail
    words  of the failure, a pattern: where it says that things go wrong
    """

    name: str
    where: tuple[object, str]
    wrong: Callable[[Any], Any]
    check: Callable[[], object]
    words: str

    def put_in_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make the mistake until the test ends."""
        owner, attribute = self.where
        right = vars(owner)[attribute]
        monkeypatch.setattr(owner, attribute, self.wrong(right))


def _decoding(name: str, kind: str, **more: Any) -> Callable[[], None]:
    def check() -> None:
        config, lengths = CONFIGS[name], [33, 1, 16, 27]
        model = model_of(config)
        full = partial(full_forward_through_8_bits, model) if more.get("dtype") == torch.int8 else None
        cache = cache_of(kind, config, len(lengths), **{k: v for k, v in more.items() if k == "dtype"})
        check_decoding(model, cache, lengths, steps=20, chunk=more.get("chunk"), full=full)

    return check


def _rollback(kind: str, dtype: torch.dtype = torch.float64) -> Callable[[], None]:
    def check() -> None:
        model = model_of(PLAIN)
        full = partial(full_forward_through_8_bits, model) if dtype == torch.int8 else None
        check_rollback(model, cache_of(kind, PLAIN, 2, dtype=dtype), full)

    return check


def _schedule(num_pages: int, temperature: float = 0.0) -> Callable[[], object]:
    return lambda: check_schedule(model_of(PLAIN), num_pages=num_pages, temperature=temperature)


def _positions_not_advanced(right: property) -> property:
    return property(lambda self: right.fget(self) * (0 if any(self.counts) else 1))  # type: ignore[misc]


def _slots_one_too_far(right: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda self, positions, lengths: right(self, positions + (positions == 20), lengths)


def _padding_counts(right: Callable[..., None]) -> Callable[..., None]:
    def place(self: KVCache, new_tokens: int) -> None:
        right(self, new_tokens)
        assert self._step is not None
        self._step = replace(self._step, lengths=self.lengths + new_tokens)

    return place


def _counts_ignored(right: Callable[..., None]) -> Callable[..., None]:
    return lambda self, new_tokens, counts=None: right(self, new_tokens, None if new_tokens == 1 else counts)


def _sees_the_future(right: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda queries, keys, window: right(queries + 1, keys, window)


def _window_off_by_one(right: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda queries, keys, window: right(queries, keys, None if window is None else window + 1)


def _ring_too_small(right: Callable[..., None]) -> Callable[..., None]:
    def init(self: WindowCache, config: Any, *, slack: int = 16, **others: Any) -> None:
        right(self, config, slack=-1, **others)
        self.slack = slack

    return init


def _stale_scales(right: Callable[..., None]) -> Callable[..., None]:
    def write(self: Slots, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        assert self.key_scales is not None
        held = self.key_scales[layer].clone()
        right(self, layer, slots, keys, values)
        self.key_scales[layer] = torch.where(held > 0, held, self.key_scales[layer])

    return write


def _scale_of_the_neighbour(right: Callable[..., Stored]) -> Callable[..., Stored]:
    def raw(self: Slots, layer: int, which: Any, shape: tuple[int, int]) -> Stored:
        stored = right(self, layer, which, shape)
        return replace(stored, key_scales=stored.key_scales.roll(1, 1)) if stored.key_scales is not None else stored

    return raw


def _truncates_the_host_alone(right: Callable[..., None]) -> Callable[..., None]:
    def truncate(self: KVCache, counts: Sequence[int]) -> None:
        self.counts = list(counts)

    return truncate


def _page_given_back_too_early(right: Callable[..., None]) -> Callable[..., None]:
    def release(self: PagePool, sequence: Pages, keep: int = 0) -> None:
        pages = list(sequence.pages)
        right(self, sequence, keep)
        if keep and pages and sequence.pages == pages:  # nothing was to be given back
            self._empty.append(pages[-1])

    return release


def _shared_pages_are_free(right: Callable[..., Pages]) -> Callable[..., Pages]:
    def find(self: PagePool, tokens: Sequence[int]) -> Pages:
        found = right(self, tokens)
        self._empty.extend(found.pages)  # as if nobody held them
        return found

    return find


def _history_ignored(right: Callable[..., Any]) -> Callable[..., Any]:
    def find(self: PagePool, tokens: Sequence[int]) -> Pages:
        found = Pages()
        by_tokens = {own: page for (_, own), page in self._page_of.items()}
        for own in self._full_pages(tokens[: len(tokens) - 1]):
            if own not in by_tokens:
                break
            found.pages.append(by_tokens[own])
            found.length += self.page_size
            self._holders[by_tokens[own]] += 1
            self._idle.pop(by_tokens[own], None)
        return found

    return find


def _slots_mixed_up(right: Callable[..., dict[int, int]]) -> Callable[..., dict[int, int]]:
    def decode(self: Scheduler) -> dict[int, int]:
        made = right(self)
        return dict(zip(made, reversed(list(made.values())), strict=True))

    return decode


def _preempted_loses_its_tokens(right: Callable[..., None]) -> Callable[..., None]:
    def preempt(self: Scheduler, active: Any) -> None:
        right(self, active)
        del active.tokens[len(active.request.prompt) + 1 :]

    return preempt


def _preempted_keeps_its_pages(right: Callable[..., None]) -> Callable[..., None]:
    def preempt(self: Scheduler, active: Any) -> None:
        self._running.remove(active)
        self._waiting.appendleft(active)

    return preempt


def _cancelled_keeps_its_pages(right: Callable[..., bool]) -> Callable[..., bool]:
    def cancel(self: Scheduler, number: int) -> bool:
        self._running = [active for active in self._running if active.number != number]
        return True

    return cancel


def _decodes_an_empty_batch(right: Callable[..., Any]) -> Callable[..., Any]:
    def decode(self: Scheduler) -> dict[int, int]:
        batch = [active for active in self._running if active.is_prefilled]
        cache = self._cache(batch)
        return right(self) if cache.batch_size else {}

    return decode


def _ended_goes_on(right: Callable[..., Any]) -> Callable[..., Any]:
    def take(self: Scheduler, active: Any, token: int) -> Any:
        made = right(self, active, token)
        if made.is_last and len(active.tokens) < 45:
            self._running.append(active)
        return made

    return take


def _draws_by_batch(right: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def sample(logits: Tensor, sampling: Sampling, seeds: Tensor, positions: Tensor) -> Tensor:
        return right(logits, sampling, seeds, positions.max().expand_as(positions))

    return sample


def _logits_of_padding(right: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def prefill(model: Any, tokens: Tensor, cache: Any, counts: Sequence[int], chunk: int | None = None) -> Tensor:
        cache.begin(tokens.shape[1], counts)
        logits = model(tokens, cache=cache)[:, -1]
        cache.end()
        return logits

    return prefill


WRONG = [
    WrongInference(
        "rotary position not advanced",
        (KVCache, "positions"),
        _positions_not_advanced,
        _decoding("plain", "contiguous"),
        "decoding: sequence 0 departs .* at position 33",
    ),
    WrongInference(
        "a slot off by one",
        (KVCache, "_slots_of"),
        _slots_one_too_far,
        _decoding("plain", "contiguous"),
        "departs from the full forward",
    ),
    WrongInference(
        "padding counts as tokens: mask past the prompt",
        (KVCache, "place"),
        _padding_counts,
        _decoding("plain", "contiguous"),
        "sequence 1 departs .* behind padding",
    ),
    WrongInference(
        "an ended sequence still writes",
        (KVCache, "reserve"),
        _counts_ignored,
        lambda: check_generation(model_of(PLAIN), "contiguous", Sampling(), (7, 11, 20, 33, 44, 50)),
        "has ended with .* and the cache has",
    ),
    WrongInference(
        "a token sees the next one",
        (cache_module, "seen"),
        _sees_the_future,
        _decoding("plain", "contiguous", chunk=8),
        "departs from the full forward",
    ),
    WrongInference(
        "window off by one",
        (cache_module, "seen"),
        _window_off_by_one,
        _decoding("window", "paged"),
        "sequence 0 departs",
    ),
    WrongInference(
        "a ring with a token too few",
        (WindowCache, "__init__"),
        _ring_too_small,
        _decoding("window", "ring"),
        "departs from the full forward",
    ),
    WrongInference(
        "stale scale",
        (Slots, "write"),
        _stale_scales,
        _rollback("contiguous", dtype=torch.int8),
        "after tokens were taken back",
    ),
    WrongInference(
        "scale of the neighbour",
        (Slots, "raw"),
        _scale_of_the_neighbour,
        _decoding("plain", "contiguous", dtype=torch.int8),
        "decoding: sequence 0 departs",
    ),
    WrongInference(
        "taken back on the host alone",
        (KVCache, "truncate"),
        _truncates_the_host_alone,
        _rollback("contiguous"),
        "after tokens were taken back",
    ),
    WrongInference(
        "page given back too early",
        (PagePool, "release"),
        _page_given_back_too_early,
        _rollback("paged"),
        "after tokens were taken back",
    ),
    WrongInference(
        "shared page reused too early",
        (PagePool, "find"),
        _shared_pages_are_free,
        lambda: check_sharing(model_of(PLAIN)),
        "gets other tokens than alone|never came back",
    ),
    WrongInference(
        "page of another history",
        (PagePool, "find"),
        _history_ignored,
        lambda: check_sharing(model_of(PLAIN)),
        "request . gets other tokens than alone",
    ),
    WrongInference(
        "request and slot mixed up",
        (Scheduler, "_decode"),
        _slots_mixed_up,
        _schedule(40),
        "request 1 gets other tokens than alone",
    ),
    WrongInference(
        "a preempted request loses its tokens",
        (Scheduler, "_preempt"),
        _preempted_loses_its_tokens,
        _schedule(4),
        "gets other tokens than alone",
    ),
    WrongInference(
        "a preempted request keeps its pages",
        (Scheduler, "_preempt"),
        _preempted_keeps_its_pages,
        _schedule(4),
        "a request of 17 tokens waits, none runs, and 0 of 4 pages are free",
    ),
    WrongInference(
        "a cancelled request keeps its pages",
        (Scheduler, "cancel"),
        _cancelled_keeps_its_pages,
        _schedule(40),
        "pages never came back",
    ),
    WrongInference(
        "a request goes on behind its last token",
        (Scheduler, "_take"),
        _ended_goes_on,
        _schedule(40),
        "makes tokens after its last",
    ),
    WrongInference(
        "an empty batch is decoded",
        (Scheduler, "_decode"),
        _decodes_an_empty_batch,
        _schedule(40),
        "a cache for a batch of 0",
    ),
    WrongInference(
        "drawn by the batch's position",
        (generate_module, "sample"),
        _draws_by_batch,
        lambda: check_generation(model_of(PLAIN), "contiguous", Sampling(temperature=1.0)),
        "prompt 0 gets other tokens in a batch than alone",
    ),
    WrongInference(
        "logits of padding",
        (generate_module, "prefill"),
        _logits_of_padding,
        lambda: check_generation(model_of(PLAIN), "contiguous", Sampling()),
        "prompt 0 gets other tokens in a batch than alone",
    ),
]
