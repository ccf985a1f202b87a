"""The mode in which a case's calls are timed. It is part of the case: numbers of two modes are never compared.

This module depends only on ``perflab.data``; ``measure/cold.py`` and ``measure/cuda_graph.py`` implement the modes.
"""

from __future__ import annotations

import re
from typing import Literal

from perflab.data import Data

_SUFFIX = re.compile(r" \{(?:cold|graph|cold, graph)\}$")


class Mode(Data, frozen=True):
    """A mode: warm or cold caches, and calls launched one after another or replayed in a CUDA graph."""

    cache: Literal["warm", "cold"] = "warm"
    """The state of the device's caches: ``cold`` evicts their content before each call."""
    cuda_graph: bool = False

    @property
    def suffix(self) -> str:
        """The text after the case's name, such as `` {cold, graph}``; empty for the default mode."""
        words = ["cold"] * (self.cache == "cold") + ["graph"] * self.cuda_graph
        return f" {{{', '.join(words)}}}" if words else ""

    def __str__(self) -> str:
        return f"a {self.cache} cache{' in a CUDA graph' if self.cuda_graph else ''}"


DEFAULT = Mode()


def identity(case: str, mode: Mode) -> str:
    """Return the name under which a case's numbers are stored: its node id, and its mode unless that is the default."""
    return case + mode.suffix


def without_mode(name: str) -> str:
    """Return the case of an identity, or of a name in a baseline file: the name without its mode."""
    return _SUFFIX.sub("", name)
