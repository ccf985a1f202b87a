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


_SCOPES = ("at", "native", "c10", "std", "cuda", "detail", "cub", "thrust", "at_cuda_detail", "internal")
_NAMESPACES = re.compile(rf"\b(?:{'|'.join(_SCOPES)})::|\(anonymous namespace\)::")
_LAMBDAS = re.compile(r"\{lambda\([^{}]*\)#\d+\}")
_MOST = 120


def short_name(kernel: str) -> str:
    """A kernel's name without namespaces, arguments and where its lambdas stand; cut in its middle where it is long.

    ``void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, ...>(int, ...)`` becomes
    ``vectorized_elementwise_kernel<4, FillFunctor<float>, ...>``.
    """
    name = _without_arguments(kernel.removeprefix("void "))
    name = _LAMBDAS.sub("λ", _NAMESPACES.sub("", name))
    name = re.sub(r"(?:operator\(\)|\w+)\([^()]*\)(?: const)?::(?=λ)", "", name)
    if len(name) <= _MOST:
        return name
    return f"{name[: _MOST - 41]}…{name[-40:]}"


def _without_arguments(name: str) -> str:
    """Up to the parenthesis of its own arguments: the first one outside of its template's."""
    depth = 0
    for at, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0 and not name.startswith("(anonymous namespace)", at):
            return name[:at]
    return name
