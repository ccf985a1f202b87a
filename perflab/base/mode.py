"""The mode in which a case's calls are timed. It is part of the case: numbers of two modes are never compared.

``measure/clocks/cold.py`` and ``measure/clocks/cuda_graph.py`` implement the modes.
"""

from __future__ import annotations

from typing import Literal

from perflab.base.data import Data


class Mode(Data, frozen=True):
    """A mode: warm or cold caches, calls launched one by one or replayed in a CUDA graph, one process or several."""

    cache: Literal["warm", "cold"] = "warm"
    """The state of the device's caches: ``cold`` evicts their content before each call."""
    cuda_graph: bool = False
    world_size: int = 1
    """The number of processes that run the case at once, as ranks of one group."""

    @property
    def suffix(self) -> str:
        """The text after the case's name, such as `` {cold, graph}``; empty for the default mode."""
        return f" {self.variant}" if self.variant else ""

    @property
    def variant(self) -> str:
        """The text of the mode alone, such as ``{cold, graph}``; empty for the default mode."""
        words = ["cold"] * (self.cache == "cold") + ["graph"] * self.cuda_graph
        words += [f"{self.world_size} ranks"] * (self.world_size > 1)
        return f"{{{', '.join(words)}}}" if words else ""

    @property
    def is_plain(self) -> bool:
        """Whether calls are timed as they follow each other, with warm caches, in however many processes."""
        return self.cache == "warm" and not self.cuda_graph

    def __str__(self) -> str:
        ranks = f" in {self.world_size} ranks" if self.world_size > 1 else ""
        return f"a {self.cache} cache{' in a CUDA graph' if self.cuda_graph else ''}{ranks}"


DEFAULT = Mode()
