"""Limits how long a prediction may trace, and shows its progress.

This module does not import torch, so that a watch can be created before there is anything to trace.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from perflab.measure.clocks import clock

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

SHOW_EVERY = 100
"""The number of operators between updates of the progress line: on fake tensors, some hundredths of a second."""
MORE = 6
"""The factor by which messages suggest to raise a budget that was too short. The sufficient budget is unknown."""


class CalledOff(BaseException):
    """Tracing took too long. The message completes a sentence: ``took longer than --perf-budget=10 s``.

    The base class is ``BaseException``: traced code may catch any ``Exception``, and must not go on after this one.
    """


@dataclass
class _Part:
    what: str
    began_ns: int
    budget_ns: float
    operators: int = 0


class Watch:
    """A limit of the time in which one case is traced: it is told each operator, and raises ``CalledOff`` to stop.

    A budget is processor time: a prediction is exact, and must not depend on other load on the machine. The time that
    the run has left is wall-clock time.

    Args:
        show: shows a text about the progress.
        budget_s: seconds of processor time for each part: the case itself, running every layer once, other sizes.
        by_marker: whether the case's marker sets the budget, and not ``--perf-budget``.
        left_s: wall-clock seconds that the run has left for all parts together; None: unlimited.
    """

    def __init__(self, show: Callable[[str], None], budget_s: float, *, by_marker: bool, left_s: float | None) -> None:
        self._show, self._budget_s, self._by_marker = show, budget_s, by_marker
        self._run_ends_ns = float("inf") if left_s is None else clock.read_ns() + left_s * 1e9
        self._part = self._begun("")

    def operator(self) -> None:
        """Count an operator that is about to be called.

        Raises:
            CalledOff: the budget, or the time that the run has left, is used up.
        """
        part = self._part
        spent_ns = clock.read_processor_ns() - part.began_ns
        is_over = clock.read_ns() >= self._run_ends_ns
        if is_over or spent_ns >= part.budget_ns:
            so_far = f"; {part.operators:,} operators so far"
            if is_over:
                raise CalledOff(f"took longer than the run had left (--perf-total-budget){so_far}")
            given, more = (f"budget={many * self._budget_s:g}" for many in (1, MORE))
            if self._by_marker:
                raise CalledOff(f"took longer than @pytest.mark.perf({given}){so_far} (more: {more})")
            raise CalledOff(f"took longer than --perf-{given} s{so_far} (more: --perf-{more})")
        part.operators += 1
        if part.operators % SHOW_EVERY == 0:
            self._show(
                f"{part.what}{part.operators:,} operators, {spent_ns / 1e9:.0f} s of {part.budget_ns / 1e9:.0f} s"
            )

    @contextlib.contextmanager
    def part(self, what: str) -> Iterator[None]:
        """Give the tracing in the block its own budget; the block's time does not count for the enclosing part."""
        outside, began_ns = self._part, clock.read_processor_ns()
        self._part = self._begun(f"{what}: ")
        try:
            yield
        finally:
            outside.began_ns += clock.read_processor_ns() - began_ns
            self._part = outside

    def _begun(self, what: str) -> _Part:
        return _Part(what, clock.read_processor_ns(), self._budget_s * 1e9)
