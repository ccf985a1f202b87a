"""The interface of a watch, which sees each operator before the operator is called and may stop the tracing.

This module does not import torch, so that a watch can be created before there is anything to trace. ``watched`` reports
the operators that no tracer sees.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class CalledOff(BaseException):
    """Tracing took too long. The message completes a sentence: ``took longer than --perf-budget=10 s``.

    The base class is ``BaseException``: traced code may catch any ``Exception``, and must not go on after this one.
    """


class Watch(Protocol):
    """An observer of tracing, which raises ``CalledOff`` to stop it."""

    def operator(self) -> None:
        """Take note that an operator is about to be called."""
        ...

    def part(self, what: str) -> AbstractContextManager[None]:
        """Return a context in which something beside the call itself is traced, with a time budget of its own."""
        ...


def part_of(watch: Watch | None, what: str) -> AbstractContextManager[None]:
    """Return ``watch.part(what)``, or an empty context if there is no watch."""
    return watch.part(what) if watch is not None else nullcontext()
