"""What crosses between host and device in a dry run, and when the host waits, each with the line that asked for it."""

from __future__ import annotations

import re
import sys
from collections import Counter
from typing import TYPE_CHECKING

from perflab.predicted.records import TO_DEVICE, TO_HOST, WAIT, Traffic
from perflab.predicted.trace.lines import line_of

if TYPE_CHECKING:
    from nocuda import Seen
    from nocuda.library import Counts

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


_SCOPES = [
    "at",
    "native",
    "c10",
    "std",
    "cuda",
    "detail",
    "cub",
    "thrust",
    "at_cuda_detail",
    "internal",
    "binary_internal",
    "memory",
]
_NAMESPACES = re.compile(rf"\b(?:{'|'.join(_SCOPES)})::|\(anonymous namespace\)::")
_LAMBDAS = re.compile(r"\{lambda\(([^{}()]*)\)#\d+\}")
_PARENTHESES = re.compile(r"\([^()]*\)")
_SAME_FOR_ALL = re.compile(r", (?:array<char\*, \d+>|TrivialOffsetCalculator<[^<>]*>|(?:Load|Store)\w+<\d+>)")
"""Template arguments that say how a kernel loads and stores."""
_MOST = 120


def by_name(counts: Counts) -> Counter[str]:
    """Launches by kernel's short name."""
    from nocuda.library import demangled

    found: Counter[str] = Counter()
    for kernel, launches in counts.kernels.items():
        found[short_name(demangled(kernel))] += launches
    return found


def short_name(kernel: str) -> str:
    """A kernel's name without namespaces and arguments; a lambda is named for its function and what it takes.

    ``void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int,
    ...)`` becomes ``vectorized_elementwise_kernel<4, FillFunctor<float>>``. Cut in its middle where it is long.
    """
    name = _NAMESPACES.sub("", kernel.removeprefix("void "))
    name = _LAMBDAS.sub(r"{\1}", name)
    while _PARENTHESES.search(name):
        name = _PARENTHESES.sub("", name)
    name = name.replace("operator const::", "").replace("operator::", "").replace(" const::", "::")
    name = name.replace("::{}", "").replace("::{", "{").replace(" >", ">")
    name = re.sub(r"\b(\d+)ul?\b", r"\1", name)
    name = _SAME_FOR_ALL.sub("", name)
    name = re.sub(r"gpu_kernel_impl(?:_nocast)?<(.*)>\{int\}", r"\1", name)
    return name if len(name) <= _MOST else f"{name[: _MOST - 41]}…{name[-40:]}"
