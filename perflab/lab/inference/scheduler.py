"""Continuous batching: requests come and go while others decode, and the cache's pages are shared among them.

Each step (Yu et al. 2022, Orca; Kwon et al. 2023, section 4.5):

    admit    the request that waits for longest, if all prompts before it are done and batch and pool have room for it
    prefill  one chunk of its prompt, so that a long prompt delays decoding by no more than a chunk (Agrawal et al.
             2023, Sarathi)
    decode   one token of every request whose prompt is done

If a decode step needs pages and none is free, the request that came last is preempted: its pages are released, and it
waits at the head of the queue to compute prompt and tokens again. Its tokens stay, and since sampling depends on seed
and position alone (`sampling.py`), what follows is what would have followed, but for rounding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from perflab.lab.inference.generate import GREEDY, LanguageModel, dtype_of, padded, prefill
from perflab.lab.inference.paged_cache import PagedCache, PagePool, Pages, PoolFullError
from perflab.lab.inference.sampling import Sampling, sample
from perflab.lab.inference.slots import sent
from perflab.lab.models.config import check_cache


@dataclass(frozen=True)
class Request:
    """A request to generate: a prompt and how to continue the prompt.

    prompt          token ids
    max_new_tokens  how many tokens are generated at most
    sampling        how they are chosen
    stop            token ids that end it
    """

    prompt: Sequence[int]
    max_new_tokens: int
    sampling: Sampling = GREEDY
    stop: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Made:
    """A token of a request. `is_last`: the request is done."""

    request: int
    token: int
    is_last: bool


@dataclass
class _Active:
    """A request that is not done: its tokens so far, and its pages while it runs."""

    number: int
    request: Request
    tokens: list[int]
    pages: Pages = field(default_factory=Pages)

    @property
    def is_prefilled(self) -> bool:
        """Whether all tokens but the newest are in the cache, and the newest was made here."""
        return self.pages.length == len(self.tokens) - 1 and len(self.tokens) > len(self.request.prompt)


class Scheduler:
    """Runs requests on one model.

    Args:
        model: what is asked.
        pool: the pages of the cache; its size limits how much runs at once.
        max_batch: requests that run at once at most.
        chunk: tokens of a prompt that a step computes at most.
        share: take known pages for prompts that begin alike (prompt caching).
        kernel: what reads the cache, as of `KVCache`.

    Attributes:
        preemptions: how often a request lost its pages.
        computed: tokens that prefills computed, and did not take from known pages; a preempted request's own ones too.
    """

    def __init__(
        self,
        model: LanguageModel,
        pool: PagePool,
        *,
        max_batch: int = 8,
        chunk: int = 256,
        share: bool = True,
        kernel: str = "sdpa",
    ) -> None:
        if max_batch < 1 or chunk < 1:
            raise ValueError(f"max_batch={max_batch}, chunk={chunk}: wanted 1 or more of each")
        check_cache(pool.config, model.config)
        dtype = dtype_of(model)
        if pool.memory.dtype not in (dtype, torch.int8):
            raise ValueError(
                f"a pool in {pool.memory.dtype} for a model in {dtype}: make it with dtype={dtype} or int8"
            )
        self.model, self.pool, self.max_batch, self.chunk, self.share = model, pool, max_batch, chunk, share
        self.kernel = kernel
        self.preemptions = self.computed = 0
        self._waiting: deque[_Active] = deque()
        self._running: list[_Active] = []
        self._next_number = 0

    @property
    def is_idle(self) -> bool:
        """Whether every request is done."""
        return not self._waiting and not self._running

    def submit(self, request: Request) -> int:
        """Queue a request, and return the number by which `step` names it.

        Raises:
            ValueError: its prompt is empty, has tokens outside the vocabulary, or with its new tokens exceeds the
                context or all pages of the pool.
        """
        padded([request.prompt], self.model.config, request.max_new_tokens)
        longest = len(request.prompt) + request.max_new_tokens
        if self.pool.pages_for(longest) > self.pool.num_pages:
            raise ValueError(
                f"a request of up to {longest} tokens for a pool of {self.pool.num_pages} pages of "
                f"{self.pool.page_size}: make it with num_pages={self.pool.pages_for(longest)} or more, or ask for "
                "fewer tokens"
            )
        self._next_number += 1
        self._waiting.append(_Active(self._next_number, request, list(request.prompt)))
        return self._next_number

    def cancel(self, number: int) -> bool:
        """End a request, and free its pages; False if none of that number waits or runs."""
        for queue in (self._waiting, self._running):
            for active in queue:
                if active.number == number:
                    queue.remove(active)
                    self._release(active)
                    return True
        return False

    @torch.no_grad()
    def step(self) -> list[Made]:
        """Do the work of one step, and return its tokens in the order in which their requests were admitted."""
        self._admit()
        made = {**self._prefill(), **self._decode()}
        return [self._take(active, made[active.number]) for active in list(self._running) if active.number in made]

    def run(self) -> dict[int, list[int]]:
        """Step until every request is done, and return the new tokens of each request by number."""
        tokens: dict[int, list[int]] = {active.number: [] for active in (*self._running, *self._waiting)}
        while not self.is_idle:
            for made in self.step():
                tokens[made.request].append(made.token)
        return tokens

    def _admit(self) -> None:
        # One prompt at a time: the next one may begin like it, and then finds its pages.
        if not self._waiting or len(self._running) == self.max_batch or not all(a.is_prefilled for a in self._running):
            return
        active = self._waiting[0]
        pages = self.pool.find(active.tokens) if self.share else Pages()
        # One token more than it has, so that its first decode step preempts nobody.
        if self.pool.pages_for(len(active.tokens) + 1) - len(pages.pages) > self.pool.num_free:
            self.pool.release(pages)
            if not self._running:
                raise PoolFullError(
                    f"a request of {len(active.tokens)} tokens waits, none runs, and {self.pool.num_free} of "
                    f"{self.pool.num_pages} pages are free: release the sequences that others hold of this pool"
                )
            return
        self.pool.grow([pages], [len(active.tokens) + 1])
        active.pages = pages
        self._running.append(self._waiting.popleft())

    def _prefill(self) -> dict[int, int]:
        """The first token, by request, if its prompt was finished in this step."""
        active = next((active for active in self._running if not active.is_prefilled), None)
        if active is None:
            return {}
        start, end = active.pages.length, min(active.pages.length + self.chunk, len(active.tokens))
        part = sent([active.tokens[start:end]], self.pool.memory.device)
        cache = self._cache([active])
        logits = prefill(self.model, part, cache, [end - start])
        self.computed += end - start
        if end < len(active.tokens):
            return {}
        if self.share:
            self.pool.remember(active.pages, active.tokens)
        return {active.number: int(self._sampled([active], logits, cache.lengths)[0])}

    def _decode(self) -> dict[int, int]:
        """The next token of each request whose prompt was done before this step."""
        batch = [active for active in self._running if active.is_prefilled]
        while batch and self._missing(batch) > self.pool.num_free:
            self._preempt(self._running[-1])
            batch = [active for active in self._running if active.is_prefilled]
        if not batch:
            return {}
        cache = self._cache(batch)
        cache.begin(1)
        newest = sent([[active.tokens[-1]] for active in batch], cache.device)
        logits = self.model(newest, cache=cache)[:, -1]
        cache.end()
        tokens = self._sampled(batch, logits, cache.lengths).tolist()
        return {active.number: token for active, token in zip(batch, tokens, strict=True)}

    def _missing(self, batch: Sequence[_Active]) -> int:
        # One that was preempted may have pages for a token more than it has.
        return sum(max(0, self.pool.pages_for(len(active.tokens)) - len(active.pages.pages)) for active in batch)

    def _preempt(self, active: _Active) -> None:
        self._running.remove(active)
        self._release(active)
        self._waiting.appendleft(active)
        self.preemptions += 1

    def _release(self, active: _Active) -> None:
        if self.share:
            self.pool.remember(active.pages, active.tokens)
        self.pool.release(active.pages)
        active.pages = Pages()

    def _cache(self, batch: Sequence[_Active]) -> PagedCache:
        pages = [active.pages for active in batch]
        return PagedCache(self.model.config, pool=self.pool, sequences=pages, kernel=self.kernel)

    def _sampled(self, batch: Sequence[_Active], logits: Tensor, positions: Tensor) -> Tensor:
        seeds = sent([active.request.sampling.seed for active in batch], logits.device)
        rows = [
            sample(logits[n, None], active.request.sampling, seeds[n, None], positions[n, None])
            for n, active in enumerate(batch)
        ]
        return torch.cat(rows)

    def _take(self, active: _Active, token: int) -> Made:
        active.tokens.append(token)
        made = len(active.tokens) - len(active.request.prompt)
        is_last = made == active.request.max_new_tokens or token in active.request.stop
        if is_last:
            self._running.remove(active)
            self._release(active)
        return Made(active.number, token, is_last)
