"""``--perf-total-budget``: the time that is left of a run, and a case's fair share of that time."""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE_AT_LEAST_S = 0.5
"""The smallest share in seconds: samples are spread over 0.3 s, after a quarter of the budget for warm-up."""
GRACE_S = 5.0
"""The time in seconds after the end of the budget within which a case may still begin, to state its claimed cost."""
CAUSES_SHARE = 0.25
"""The largest fraction of the total budget that is reserved for finding the causes of failures."""


class TotalBudget:
    """The total time budget of a run.

    Args:
        total_s: the budget in seconds; None: no limit.
        now_s: a clock that returns seconds.
    """

    def __init__(self, total_s: float | None, now_s: Callable[[], float] = time.monotonic) -> None:
        self._total_s = total_s
        self._now_s = now_s
        self._began_s = now_s()
        self._done = 0
        self.cases = 0
        """The number of cases in the run."""
        self.processes = 1
        """The number of processes that share the cases; only one process measures at a time."""
        self.causes_s = 0.0
        """The seconds to reserve from now on for finding the causes of known or probable failures."""

    def left_s(self) -> float | None:
        """Return the seconds that are left, negative after the end; None without a budget."""
        return None if self._total_s is None else self._total_s - (self._now_s() - self._began_s)

    def measuring_s(self) -> float | None:
        """Return the seconds left for measuring, without the time reserved for causes; None without a budget."""
        left_s = self.left_s()
        return None if left_s is None else left_s - min(CAUSES_SHARE * (self._total_s or 0.0), self.causes_s)

    def is_over(self) -> bool:
        """Whether nothing is left of the budget."""
        left_s = self.left_s()
        return left_s is not None and left_s <= 0

    def case_done(self) -> None:
        """Count one more case as done, whether it was measured or not."""
        self._done += 1

    def case_share_s(self) -> float | None:
        """Return the seconds that the current case may take: an equal share of the time left; None without a budget."""
        return self.share_s(self.cases - self.processes * self._done)

    def share_s(self, among: int) -> float | None:
        """Return the seconds that each of ``among`` measurements may take of the time left; None without a budget."""
        left_s = self.measuring_s()
        return None if left_s is None else max(SHARE_AT_LEAST_S, left_s / max(1, among))
