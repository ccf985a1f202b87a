"""How a case's calls are timed, which is part of what the case is: numbers of two modes are never compared.

On the ground floor. What each mode does is ``measure``'s: ``measure/cold.py`` and ``measure/cuda_graph.py``.
"""

from __future__ import annotations

import re
from typing import Literal

from perflab.data import Data

_SUFFIX = re.compile(r" \{(?:cold|graph|cold, graph)\}$")


class Mode(Data, frozen=True):
    """Warm or cold caches; calls launched one after another, or replayed in a CUDA graph."""

    cache: Literal["warm", "cold"] = "warm"
    """``cold``: what the device's caches held is evicted before each call."""
    cuda_graph: bool = False

    @property
    def suffix(self) -> str:
        """What stands behind the case's name, such as `` {cold, graph}``; nothing for the default mode."""
        words = ["cold"] * (self.cache == "cold") + ["graph"] * self.cuda_graph
        return f" {{{', '.join(words)}}}" if words else ""

    def __str__(self) -> str:
        return f"a {self.cache} cache{' in a CUDA graph' if self.cuda_graph else ''}"


DEFAULT = Mode()


def identity(case: str, mode: Mode) -> str:
    """The name that a case's numbers are stored under: its node id, and its mode unless that is the default."""
    return case + mode.suffix


def without_mode(name: str) -> str:
    """The case that an identity, or a name in a baseline file, belongs to."""
    return _SUFFIX.sub("", name)
