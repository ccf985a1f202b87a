"""A cache for a model with a sliding window: a ring of slots, so its size does not grow with the sequence.

w window, s slack, R = w + s slots a sequence:

    slot of position p      b R + p mod R
    position in slot r      the last p < length with p mod R = r; below 0: none yet

New tokens are written before attention reads. T of them overwrite the positions up to length + T - 1 - R, and the first
new query sees none before length - w + 1: so T may be s + 1. The slack also is how many tokens can be taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from perflab.lab.inference.cache import KVCache
from perflab.lab.inference.slots import Slots
from perflab.lab.models.config import ModelConfig


class WindowCache(KVCache):
    """Keys and values of the last `window` tokens of each sequence.

    Args:
        config: of the model that fills it; its `window` is w.
        slack: s: after the prompt a call may add s + 1 tokens, and `truncate` may take s back.
        others: as of `KVCache`, without `kernel`: kernels take slots in order, a ring has none.

    Raises:
        ValueError: the model has no window; or as `KVCache`.
    """

    def __init__(self, config: ModelConfig, *, slack: int = 16, **others: Any) -> None:
        if config.window is None:
            raise ValueError(
                "a window cache for a model without a window: give the model window=, or use KVCache or PagedCache"
            )
        if others.get("kernel", "sdpa") != "sdpa":
            raise ValueError(f"kernel={others['kernel']!r} with a window cache: its slots are no run; give 'sdpa'")
        self.slack, self.ring = slack, min(config.window, config.context_length) + slack
        super().__init__(config, **others)
        self._furthest = [0] * self.batch_size  # tokens that were written, taken back or not

    def reserve(self, new_tokens: int, counts: Sequence[int] | None = None) -> None:
        """Check the counts of new tokens, and note how far the ring will be written.

        Raises:
            ValueError: more tokens than the slack has room for, behind a prompt.
        """
        if any(self.counts) and new_tokens > self.slack + 1:
            raise ValueError(
                f"{new_tokens} new tokens behind others in a window cache with slack={self.slack}: wanted "
                f"{self.slack + 1} at most; make it with slack={new_tokens - 1}, or give smaller chunks"
            )
        super().reserve(new_tokens, counts)
        self._furthest = [max(pair) for pair in zip(self._furthest, self._next_counts(), strict=True)]

    def truncate(self, counts: Sequence[int]) -> None:
        """Forget what sequences have beyond so many tokens; any number may go, or as many as the ring still has.

        Raises:
            ValueError: more tokens are taken back than the slack has kept, and not all.
        """
        if any(0 < count < furthest - self.slack for furthest, count in zip(self._furthest, counts, strict=True)):
            raise ValueError(
                f"truncate({list(counts)}) after {self._furthest} tokens: a ring with slack={self.slack} keeps no "
                "more; make it with a larger slack"
            )
        super().truncate(counts)
        self._furthest = [furthest if count else 0 for furthest, count in zip(self._furthest, counts, strict=True)]

    def _allocated(self, dtype: torch.dtype, device: torch.device) -> Slots:
        slots = self.batch_size * self.ring + 1
        return Slots(self.config.num_layers, slots, self.config.kv_heads, self.config.head_dim, dtype, device)

    def _slots_of(self, positions: Tensor, lengths: Tensor) -> Tensor:
        slots = positions % self.ring + torch.arange(self.batch_size, device=self.device)[:, None] * self.ring
        # Of a long prompt the last R tokens stay: two positions in one slot would be written in any order.
        return torch.where(positions >= lengths[:, None] - self.ring, slots, self._spare)

    def _positions_read(self, lengths: Tensor) -> Tensor:
        last = lengths[:, None] - 1
        return last - (last - torch.arange(self.ring, device=self.device)) % self.ring

    def _read(self, layer: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return self.memory.read(layer, slice(0, self._spare), (self.batch_size, self.ring), dtype)
