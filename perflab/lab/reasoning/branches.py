"""Branches of one prompt: sequences that a search grows, copies and drops, over pages of one pool.

n branches, T tokens of the prompt, N new tokens at most, P tokens a page, V vocabulary:

    log_p (n, V)     log-probabilities of each branch's next token
    take(parents)    branch i becomes a copy of branch parents[i]; a branch that is nobody's parent is dropped
    add(tokens)      one token more for each branch: one decode step for all of them

The prompt is computed once. Its T div P full pages are shared by all branches, as are all full pages that two of them
have in common (Kwon et al. 2023, PagedAttention, section 4.4: parallel sampling and beam search), so a pool needs

    pages = (T div P) + n (ceil((T + N) / P) - (T div P))

A copy copies the page that is not full, and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from perflab.lab.inference.decoding import Decoding
from perflab.lab.inference.generate import LanguageModel, device_of, dtype_of, padded, prefill
from perflab.lab.inference.paged_cache import PagedCache, PagePool, Pages
from perflab.lab.inference.slots import sent


@dataclass(frozen=True)
class Question:
    """A prompt and the model that is to answer the prompt.

    prompt          token ids
    max_new_tokens  tokens of an answer at most
    stop            token ids that end one
    page_size       P: smaller pages are shared more often, and make the table longer
    """

    model: LanguageModel
    prompt: Sequence[int]
    max_new_tokens: int
    stop: Collection[int] = ()
    page_size: int = 16


@dataclass
class Branch:
    """New tokens, and the sum of their log-probabilities in nats."""

    tokens: list[int] = field(default_factory=list)
    log_probability: float = 0.0
    has_ended: bool = False

    @property
    def mean_log_probability(self) -> float:
        """Per token, so that a long answer is not worse for its length."""
        return self.log_probability / max(len(self.tokens), 1)


class Branches:
    """Up to `most` branches of a question's prompt; at first one, without new tokens.

    `log_p` (n, V) is float64, and means nothing of branches that have ended; `computed_tokens` counts new tokens of all
    branches, dropped ones too. ValueError as of `generate`, and for fewer branches than one.
    """

    def __init__(self, question: Question, most: int) -> None:
        if most < 1:
            raise ValueError(f"a search among {most} branches: wanted 1 or more")
        rows, counts = padded([question.prompt], question.model.config, question.max_new_tokens)
        self.question, self.computed_tokens, self.all = question, 0, [Branch()]
        size, config = question.page_size, question.model.config
        self._capacity = counts[0] + question.max_new_tokens
        shared = counts[0] // size
        self.pool = PagePool(
            config, num_pages=shared + most * (-(-self._capacity // size) - shared), page_size=size,
            dtype=dtype_of(question.model), device=device_of(question.model),
        )  # fmt: skip
        self.cache = self._cache_of([Pages()])
        logits = prefill(question.model, sent(rows, self.cache.device), self.cache, counts)
        self.log_p = logits.double().log_softmax(-1)

    @property
    def growing(self) -> list[bool]:
        """Return, for each branch, whether the branch still grows."""
        return [not branch.has_ended for branch in self.all]

    @property
    def totals(self) -> Tensor:
        """(n,) float64 log-probability of each branch's tokens together."""
        sums = [branch.log_probability for branch in self.all]
        return torch.tensor(sums, dtype=torch.float64, device=self.cache.device)

    def take(self, parents: Sequence[int]) -> None:
        """Let branch i be a copy of branch parents[i]."""
        held = self._sequences
        for number, pages in enumerate(held):
            if number not in parents:
                self.pool.release(pages)
        # The first child has its parent's pages, and all others have copies of the last one.
        taken = [
            held[parent] if parent not in parents[:n] else self.pool.fork(held[parent])
            for n, parent in enumerate(parents)
        ]
        self.cache = self._cache_of(taken)
        self.all = [replace(branch, tokens=[*branch.tokens]) for branch in (self.all[parent] for parent in parents)]
        self.log_p = self.log_p[sent(parents, self.cache.device)]

    def add(self, tokens: Tensor, to: Sequence[bool] | None = None) -> None:
        """Append tokens (n,) to the branches that have not ended, of these `to` the ones that are named; None: all."""
        adding = [grows and (to is None or to[n]) for n, grows in enumerate(self.growing)]
        gained = self.log_p.gather(1, tokens[:, None])[:, 0].tolist()
        for branch, token, gain, is_meant in zip(self.all, tokens.tolist(), gained, adding, strict=True):
            if is_meant:
                branch.tokens.append(token)
                branch.log_probability += gain
                is_full = len(branch.tokens) == self.question.max_new_tokens
                branch.has_ended = is_full or token in self.question.stop
        self.computed_tokens += sum(adding)
        fed = [now and grows for now, grows in zip(adding, self.growing, strict=True)]
        if any(fed):
            logits = Decoding(self.question.model, self.cache)(tokens, fed)
            is_new = torch.tensor(fed, device=self.cache.device)[:, None]
            self.log_p = torch.where(is_new, logits.double().log_softmax(-1), self.log_p)

    @property
    def _sequences(self) -> list[Pages]:
        assert self.cache.sequences is not None
        return self.cache.sequences

    def _cache_of(self, sequences: list[Pages]) -> PagedCache:
        return PagedCache(self.question.model.config, pool=self.pool, sequences=sequences, capacity=self._capacity)
