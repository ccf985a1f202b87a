"""A watch sees each operator before it is called, and may stop the tracing.

No torch here, so that who watches can be made before there is anything to trace. What shows it operators that no tracer
sees is ``watched``.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class CalledOff(BaseException):
    """Tracing took too long. The text completes a sentence: ``took longer than --perf-budget=10 s``.

    Not an ``Exception``: code that is traced may catch those of its own, and must not go on after this one.
    """


class Watch(Protocol):
    """Looks on, and raises ``CalledOff`` when it has seen enough."""

    def operator(self) -> None:
        """An operator is about to be called."""
        ...

    def part(self, what: str) -> AbstractContextManager[None]:
        """For the length of the block, something beside the call itself is traced, with time of its own."""
        ...


def part_of(watch: Watch | None, what: str) -> AbstractContextManager[None]:
    """``watch.part``, where somebody watches."""
    return watch.part(what) if watch is not None else nullcontext()
