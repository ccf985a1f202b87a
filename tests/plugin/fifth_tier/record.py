"""The record of the traced tier: the operators that a test's body called."""

from __future__ import annotations

from perflab.base.data import Amount
from perflab.results.records import TierRecord


class TracedCase(TierRecord, frozen=True, tag="traced"):
    """The number of calls of each operator, now and in the baseline."""

    operators: dict[str, Amount]
    before: dict[str, Amount] | None = None
