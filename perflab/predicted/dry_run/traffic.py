"""Counts a dry run's copies between host and device and waits of the host, each with the line that asked for it."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from perflab.base.gpu_names import kernel_name
from perflab.base.user_lines import line_of
from perflab.results.predicted import TO_DEVICE, TO_HOST, WAIT, Traffic

if TYPE_CHECKING:
    from nocuda import Seen
    from nocuda.library import Counts

_DESCRIBES = re.compile(r"Set[A-Z]|[Dd]estroy|Finalize")
_BACKWARD = "backward"
"""Shown in place of a line for calls in autograd's own thread, which runs no Python of the user's."""


class TrafficNotes:
    """Observer of ``nocuda`` that sums up copies and waits by kind, line and function."""

    def __init__(self) -> None:
        self._calls: Counter[tuple[str, str, str]] = Counter()
        self._bytes: Counter[tuple[str, str, str]] = Counter()

    def note(self, what: Seen, function: str, size_bytes: int, source: int, target: int) -> None:
        """Count one call; runs in the thread that makes the call. Copies within the device are ignored."""
        from nocuda import Seen
        from nocuda.library import HOST

        if what is Seen.SYNCHRONISATION:
            kind = WAIT
        elif (source == HOST) == (target == HOST):
            return  # within the device
        else:
            kind = TO_DEVICE if source == HOST else TO_HOST
        key = (kind, line_of(sys._getframe(1)) or _BACKWARD, function)
        self._calls[key] += 1
        self._bytes[key] += size_bytes

    def traffic(self) -> list[Traffic]:
        """Return the copies and waits, the most frequent first."""
        return [
            Traffic(what=kind, line=line, function=function, calls=calls, size_bytes=self._bytes[kind, line, function])
            for (kind, line, function), calls in self._calls.most_common()
        ]


def without_effect(names: Iterable[str]) -> list[str]:
    """Return the names of the functions, among those that did nothing, whose effect or answer is missing.

    Functions that only describe a computation, or release a description, are left out: nothing depends on them.
    """
    return [name for name in dict.fromkeys(names) if not _DESCRIBES.search(name)]


def by_name(counts: Counts) -> Counter[str]:
    """Return the launches by the kernel's short name."""
    from nocuda.library import demangled

    found: Counter[str] = Counter()
    for kernel, launches in counts.kernels.items():
        found[kernel_name(demangled(kernel))] += launches
    return found
