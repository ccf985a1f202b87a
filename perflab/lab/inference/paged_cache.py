"""A paged cache: slots in pages that sequences take as they grow, and share where they begin alike.

P tokens a page, n pages in the pool (Kwon et al. 2023, PagedAttention, section 4):

    table (B, ceil(C / P))     page of each run of P positions of a sequence
    slot of position p         table[b, p div P] P + p mod P

A sequence wastes less than a page, where a run of slots for each wastes all that it does not reach.

Prompt caching (section 4.4 there): a full page is known by its tokens and all before them. A sequence whose prompt
begins with known pages takes these and computes the rest. Known pages are never written again, so sharing needs no
copy. Pages that nobody holds are kept, and the ones unused for longest are given away first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from perflab.lab.inference.cache import KVCache, Step, check_keeps_keys
from perflab.lab.inference.slots import Slots, sent
from perflab.lab.models.config import ModelConfig, check_cache

Content = tuple[int, tuple[int, ...]]
"""The key of a page's content: the number of the known page before it (0 at the start), and its tokens."""


class PoolFullError(RuntimeError):
    """No page is free, and each is held by a sequence."""


@dataclass
class Pages:
    """The pages of one sequence, in order, and how many tokens they hold."""

    pages: list[int] = field(default_factory=list)
    length: int = 0


class PagePool:
    """The memory of all pages, who holds them, and what full ones contain.

    Args:
        config: of the model that fills it.
        num_pages, page_size: n and P.
        dtype, device: of keys and values, as of `KVCache`.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        num_pages: int,
        page_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        check_keeps_keys(config, "PagePool")
        if num_pages < 1 or page_size < 1:
            raise ValueError(f"{num_pages} pages of {page_size} tokens: wanted 1 or more of each")
        self.config, self.num_pages, self.page_size = config, num_pages, page_size
        slots = num_pages * page_size + 1  # the last for padding
        self.memory = Slots(
            config.num_layers, slots, config.kv_heads, config.head_dim, dtype, torch.device(device)
        )  # fmt: skip
        self._holders = [0] * num_pages
        self._empty = list(reversed(range(num_pages)))
        self._idle: OrderedDict[int, None] = OrderedDict()  # held by nobody and known, unused for longest first
        self._page_of: dict[Content, int] = {}
        self._content_of: dict[int, Content] = {}
        self._numbers: dict[int, int] = {}  # of known pages; never used again, as the pages are
        self._last_number = 0
        self._written: set[int] = set()  # pages that somebody has held

    @property
    def num_free(self) -> int:
        """Pages that nobody holds."""
        return len(self._empty) + len(self._idle)

    def grow(self, sequences: Sequence[Pages], lengths: Sequence[int]) -> bool:
        """Take pages until each sequence has room for so many tokens; whether any were taken.

        Raises:
            PoolFullError: there are too few; no sequence gets any.
        """
        missing = [self.pages_for(n) - len(s.pages) for s, n in zip(sequences, lengths, strict=True)]
        wanted = sum(max(count, 0) for count in missing)
        if wanted > self.num_free:
            raise PoolFullError(
                f"{wanted} pages wanted and {self.num_free} of {self.num_pages} free; make the pool with more "
                "num_pages, or release a sequence"
            )
        for sequence, count in zip(sequences, missing, strict=True):
            sequence.pages.extend(self._take() for _ in range(count))
        return wanted > 0

    def pages_for(self, length: int) -> int:
        """Return the number of pages that hold so many tokens."""
        return -(-length // self.page_size)

    def release(self, sequence: Pages, keep: int = 0) -> None:
        """Give back the pages behind the first `keep` tokens; known ones stay findable until they are taken.

        A page of which a part is kept will be written again: it is forgotten, and copied if others hold it.

        Raises:
            PoolFullError: there is no page for the copy.
        """
        while len(sequence.pages) > self.pages_for(keep):
            page = sequence.pages.pop()
            self._holders[page] -= 1
            if self._holders[page] == 0:
                if page in self._content_of:
                    self._idle[page] = None
                else:
                    self._empty.append(page)
        sequence.length = min(sequence.length, keep)
        if keep % self.page_size and len(sequence.pages) == self.pages_for(keep):
            self._make_writable(sequence)

    def fork(self, sequence: Pages) -> Pages:
        """A second sequence with the same tokens: it shares the full pages, and has a copy of one that is not full.

        Raises:
            PoolFullError: there is no page for the copy.
        """
        full = sequence.pages[: sequence.length // self.page_size]
        forked = Pages([*full], sequence.length)
        if sequence.length % self.page_size:
            forked.pages.append(self._take())
            self.memory.copy(self._slots_of(sequence.pages[len(full)]), self._slots_of(forked.pages[-1]))
        for page in full:
            self._holders[page] += 1
        return forked

    def find(self, tokens: Sequence[int]) -> Pages:
        """A sequence of the known pages with which these tokens begin; at least one token is left to compute."""
        found, before = Pages(), 0
        for own in self._full_pages(tokens[: len(tokens) - 1]):
            page = self._page_of.get((before, own))
            if page is None:
                break
            self._idle.pop(page, None)
            self._holders[page] += 1
            found.pages.append(page)
            found.length += self.page_size
            before = self._numbers[page]
        return found

    def remember(self, sequence: Pages, tokens: Sequence[int]) -> None:
        """Make the full pages of a sequence findable by its tokens."""
        before = 0
        for page, own in zip(sequence.pages, self._full_pages(tokens[: sequence.length]), strict=False):
            if (before, own) not in self._page_of:
                self._forget(page)  # it may be known behind a page that was given away
                self._page_of[before, own], self._content_of[page] = page, (before, own)
                self._last_number += 1
                self._numbers[page] = self._last_number
            before = self._numbers[self._page_of[before, own]]

    def _full_pages(self, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        ends = range(self.page_size, len(tokens) + 1, self.page_size)
        return [tuple(tokens[end - self.page_size : end]) for end in ends]

    def _take(self) -> int:
        if self._empty:
            page = self._empty.pop()
        elif self._idle:
            page, _ = self._idle.popitem(last=False)
            self._forget(page)
        else:
            raise PoolFullError(f"all {self.num_pages} pages are held; make the pool with more num_pages")
        self._holders[page] = 1
        # A weight of 0 times NaN is NaN: what another sequence left must be no number of that kind where it is masked.
        if page in self._written:
            self.memory.clear(self._slots_of(page))
        self._written.add(page)
        return page

    def _forget(self, page: int) -> None:
        if page in self._content_of:
            del self._page_of[self._content_of.pop(page)], self._numbers[page]

    def _make_writable(self, sequence: Pages) -> None:
        """Give the sequence a last page that nobody else reads or finds."""
        page = sequence.pages[-1]
        if self._holders[page] == 1:
            self._forget(page)
            return
        sequence.pages[-1] = self._take()
        self._holders[page] -= 1
        self.memory.copy(self._slots_of(page), self._slots_of(sequence.pages[-1]))

    def _slots_of(self, page: int) -> slice:
        return slice(page * self.page_size, (page + 1) * self.page_size)


class PagedCache(KVCache):
    """Sequences of a pool as one batch.

    Args:
        config: of the model that fills it.
        pool: where the pages are from; None: a pool of its own, with pages for the whole batch.
        sequences: the batch; None: new ones. They may belong to other batches before and after this one.
        page_size: P of a pool of its own.
        others: as of `KVCache`; dtype and device are the pool's, if one is given.
    """

    _clears = False  # the pool clears pages where they are taken again

    def __init__(
        self,
        config: ModelConfig,
        *,
        pool: PagePool | None = None,
        sequences: Sequence[Pages] | None = None,
        page_size: int = 16,
        **others: Any,
    ) -> None:
        if pool is not None:
            check_cache(pool.config, config)
            if others.get("dtype", pool.memory.dtype) != pool.memory.dtype:
                raise ValueError(f"a pool in {pool.memory.dtype} for a cache in {others['dtype']}: give them one dtype")
        self.pool, self.page_size = pool, page_size if pool is None else pool.page_size
        self.sequences = None if sequences is None else list(sequences)
        if self.sequences is not None:
            others.setdefault("batch_size", len(self.sequences))
        if pool is not None:
            others["dtype"], others["device"] = pool.memory.dtype, pool.memory.device
        super().__init__(config, **others)
        if self.sequences is None:
            self.sequences = [Pages() for _ in range(self.batch_size)]
        self.table = torch.zeros(
            self.batch_size, -(-self.capacity // self.page_size), dtype=torch.int32, device=self.device
        )
        self.counts = [sequence.length for sequence in self.sequences]
        if any(self.counts):
            self.lengths.copy_(sent(self.counts, self.device))
        self._update_table()

    def reserve(self, new_tokens: int, counts: Sequence[int] | None = None) -> None:
        """Check the counts of new tokens, and take the pages that are missing.

        Raises:
            PoolFullError: there are too few.
        """
        super().reserve(new_tokens, counts)
        if self._pool.grow(self._sequences, self._next_counts()):
            self._update_table()

    def keep_counts(self) -> None:
        """Make the new lengths the sequences' own, on the host and in their pages."""
        super().keep_counts()
        for sequence, count in zip(self._sequences, self.counts, strict=True):
            sequence.length = count

    def truncate(self, counts: Sequence[int]) -> None:
        """Forget what sequences have beyond so many tokens, and give back pages that hold nothing more."""
        super().truncate(counts)
        held = [list(sequence.pages) for sequence in self._sequences]
        for sequence, count in zip(self._sequences, counts, strict=True):
            self._pool.release(sequence, keep=count)
        if any(before != sequence.pages for before, sequence in zip(held, self._sequences, strict=True)):
            self._update_table()

    @property
    def _pool(self) -> PagePool:
        assert self.pool is not None
        return self.pool

    @property
    def _sequences(self) -> list[Pages]:
        assert self.sequences is not None
        return self.sequences

    def _allocated(self, dtype: torch.dtype, device: torch.device) -> Slots:
        if self.pool is None:
            pages = self.batch_size * -(-self.capacity // self.page_size)
            self.pool = PagePool(
                self.config, num_pages=pages, page_size=self.page_size, dtype=dtype, device=device
            )  # fmt: skip
        return self.pool.memory

    def _update_table(self) -> None:
        width = self.table.shape[1]
        # Behind its pages a row has its own last one: what is masked is read all the same, and must be no one else's.
        own = [sequence.pages or [0] for sequence in self._sequences]
        rows = [pages + pages[-1:] * (width - len(pages)) for pages in own]
        self.table.copy_(sent(rows, self.device))  # in place: a CUDA graph has the address

    def _slots_of(self, positions: Tensor, lengths: Tensor) -> Tensor:
        pages = self.table.gather(1, positions // self.page_size)
        return pages.long() * self.page_size + positions % self.page_size

    def _read(self, layer: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        positions = torch.arange(self._num_read, device=self.device).expand(self.batch_size, -1)
        slots = self._slots_of(positions, self.lengths)
        return self.memory.read(layer, slots.flatten(), (self.batch_size, self._num_read), dtype)

    def _by_kernel(self, layer: int, q: Tensor, step: Step, pages: Tensor | None = None) -> Tensor:
        return super()._by_kernel(layer, q, step, self.table)

    @property
    def _shape(self) -> tuple[int, int]:
        return self._pool.num_pages, self.page_size
