"""``--perf-total-budget``: what is left of it, and the fair share of a case."""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE_AT_LEAST_S = 0.5
"""A share is never smaller: samples are spread over 0.3 s, after a quarter of the budget for warm-up."""
GRACE_S = 5.0
"""A case that begins so soon after the end may still say what it would have cost."""
CAUSES_SHARE = 0.25
"""Of the whole: what is kept for the causes of failures at most."""


class TotalBudget:
    """Time of a run.

    Args:
        total_s: seconds; None: as long as it takes.
        now_s: a clock.
    """

    def __init__(self, total_s: float | None, now_s: Callable[[], float] = time.monotonic) -> None:
        self._total_s = total_s
        self._now_s = now_s
        self._began_s = now_s()
        self._done = 0
        self.cases = 0
        """How many cases the run has."""
        self.processes = 1
        """How many processes share them; they measure one at a time."""
        self.causes_s = 0.0
        """What is kept from now on to look for the causes of failures that are known, or near."""

    def left_s(self) -> float | None:
        """What is left; None without a budget."""
        return None if self._total_s is None else self._total_s - (self._now_s() - self._began_s)

    def measuring_s(self) -> float | None:
        """What is left for measuring, without the share of the causes; None without a budget."""
        left_s = self.left_s()
        return None if left_s is None else left_s - min(CAUSES_SHARE * (self._total_s or 0.0), self.causes_s)

    def is_over(self) -> bool:
        """Whether nothing is left."""
        left_s = self.left_s()
        return left_s is not None and left_s <= 0

    def case_done(self) -> None:
        """One more case has come to its end, measured or not."""
        self._done += 1

    def case_share_s(self) -> float | None:
        """What the case at hand may take, so that each of those to come may take as much; None without a budget."""
        return self.share_s(self.cases - self.processes * self._done)

    def share_s(self, among: int) -> float | None:
        """What one of so many measurements may take of what is left; None without a budget."""
        left_s = self.measuring_s()
        return None if left_s is None else max(SHARE_AT_LEAST_S, left_s / max(1, among))
