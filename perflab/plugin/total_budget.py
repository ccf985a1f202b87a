"""``--perf-total-budget``: what is left of it, and what of that may be spent on more than measuring each case."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator


class TotalBudget:
    """Time of a run.

    Args:
        total_s: seconds; None: as long as it takes.
        case_s: what a case may take; the first ones may be the quick ones, so those to come are given that at least.
        now_s: a clock.
    """

    def __init__(self, total_s: float | None, case_s: float = 0.0, now_s: Callable[[], float] = time.monotonic) -> None:
        self._total_s = total_s
        self._case_s = case_s
        self._now_s = now_s
        self._began_s = now_s()
        self._extra_s = 0.0
        """Spent on more than measuring each case."""
        self._done = 0
        self.cases = 0
        """How many cases this process will see, at most."""
        self.processes = 1
        """How many share them."""

    def left_s(self) -> float | None:
        """What is left; None without a budget."""
        return None if self._total_s is None else self._total_s - (self._now_s() - self._began_s)

    def case_done(self) -> None:
        """One more case has come to its end, measured or not."""
        self._done += 1

    @contextlib.contextmanager
    def extra(self) -> Generator[Callable[[], float | None]]:
        """For the length of the block, spend what is left beyond the cases to come.

        Those are given what others took, or their budget if that is more. Gives a function that says what is
        left of the rest; None without a budget.
        """
        began_s = self._now_s()
        left_s = self.left_s()
        if left_s is None:
            yield lambda: None
            return
        measuring_s = began_s - self._began_s - self._extra_s
        # The case at hand is measured, and not yet done.
        to_come = max(0, self.cases / self.processes - self._done - 1)
        spare_s = left_s - to_come * max(self._case_s, measuring_s / (self._done + 1))
        try:
            yield lambda: spare_s - (self._now_s() - began_s)
        finally:
            self._extra_s += self._now_s() - began_s
