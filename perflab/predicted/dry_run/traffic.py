"""What crosses between host and device in a dry run, and when the host waits, each with the line that asked for it."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from perflab.kernel_names import kernel_name
from perflab.predicted.records import TO_DEVICE, TO_HOST, WAIT, Traffic
from perflab.user_lines import line_of

if TYPE_CHECKING:
    from nocuda import Seen
    from nocuda.library import Counts

_DESCRIBES = re.compile(r"Set[A-Z]|[Dd]estroy|Finalize")
_BACKWARD = "backward"
"""In the place of a line: autograd's own thread has no Python of the user's."""


class TrafficNotes:
    """Notes what an observer of ``nocuda`` is told."""

    def __init__(self) -> None:
        self._calls: Counter[tuple[str, str, str]] = Counter()
        self._bytes: Counter[tuple[str, str, str]] = Counter()

    def note(self, what: Seen, function: str, size_bytes: int, source: int, target: int) -> None:
        """One call, in whatever thread makes it."""
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
        """The most frequent first."""
        return [
            Traffic(what=kind, line=line, function=function, calls=calls, size_bytes=self._bytes[kind, line, function])
            for (kind, line, function), calls in self._calls.most_common()
        ]


def without_effect(names: Iterable[str]) -> list[str]:
    """Of functions that did nothing, those that were to answer or to do something.

    What only describes a computation that nobody makes, or lets a description go, is missed by nobody.
    """
    return [name for name in dict.fromkeys(names) if not _DESCRIBES.search(name)]


def by_name(counts: Counts) -> Counter[str]:
    """Launches by kernel's short name."""
    from nocuda.library import demangled

    found: Counter[str] = Counter()
    for kernel, launches in counts.kernels.items():
        found[kernel_name(demangled(kernel))] += launches
    return found
