"""One decode step, run eagerly, compiled, or replayed as a CUDA graph.

    token (B,), cache -> logits (B, V)

A decode step is many small kernels, and the host takes longer to launch them than the GPU to run them. A CUDA graph
launches all of them at once, and `torch.compile` fuses them into fewer. Both need the same shapes in every step, so
they read the cache's whole capacity under a mask (`KVCache.fixed`): capacity beyond what is used costs time then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from perflab.lab.inference.cache import KVCache
from perflab.lab.inference.state_cache import StateCache

if TYPE_CHECKING:
    from perflab.lab.inference.generate import LanguageModel

HOW = ("eager", "compiled", "graph")
"""The ways to run a step."""


class Decoding:
    """Decode steps of a model with one cache.

    Args:
        model: what is called.
        cache: with the prompts in it.
        how: out of HOW. "compiled" compiles on the first call, and "graph" records then.

    Raises:
        ValueError: an unknown way, or a graph without CUDA.
    """

    def __init__(self, model: LanguageModel, cache: KVCache | StateCache, how: str = "eager") -> None:
        if how not in HOW:
            raise ValueError(f"how={how!r}: wanted one of {', '.join(HOW)}")
        if how == "graph" and cache.device.type != "cuda":
            raise ValueError(
                f"how='graph' on {cache.device}: CUDA graphs need a CUDA device; give 'compiled' or 'eager'"
            )
        self.model, self.cache, self.how = model, cache, how
        cache.fixed = how != "eager"
        self._forward: Callable[[Tensor], Tensor] = self._call
        if how == "compiled":
            self._forward = torch.compile(self._call, fullgraph=True)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._token = torch.zeros(cache.batch_size, dtype=torch.int64, device=cache.device)
        self._logits: Tensor | None = None

    @torch.no_grad()
    def __call__(self, token: Tensor, alive: Sequence[bool] | None = None) -> Tensor:
        """Add a token (B,) to each sequence that is alive; logits (B, V) behind it, of a graph valid until the next."""
        self.cache.reserve(1, None if alive is None else [int(is_alive) for is_alive in alive])
        if self.how == "graph":
            logits = self._replay(token)
            self.cache.keep_counts()
            return logits
        self.cache.place(1)
        logits = self._forward(token)
        self.cache.end()
        return logits

    def _call(self, token: Tensor) -> Tensor:
        return self.model(token[:, None], cache=self.cache)[:, -1]

    def _replay(self, token: Tensor) -> Tensor:
        self._token.copy_(token)
        if self._graph is None:
            self._record()
        assert self._graph is not None
        assert self._logits is not None
        self._graph.replay()
        return self._logits

    def _record(self) -> None:
        """Record a step: positions from `lengths`, the model, and the new lengths."""
        stream = torch.cuda.Stream(self.cache.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.cache.device))
        before = self.cache.snapshot() if isinstance(self.cache, StateCache) else None
        with torch.cuda.stream(stream):  # libraries set themselves up in a first call, which no graph may hold
            self.cache.place(1)
            self._call(self._token)  # writes the slot that the first replay writes again
        torch.cuda.current_stream(self.cache.device).wait_stream(stream)
        if isinstance(self.cache, StateCache) and before is not None:  # the call moved the state, which a slot is not
            self.cache.restore(before)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.cache.place(1)
            self._logits = self._call(self._token)
            self.cache.keep_lengths()
