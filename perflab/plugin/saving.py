"""What takes a saved baseline's place: the new numbers with their anchors and history, and what to say of them."""

from __future__ import annotations

from collections.abc import Iterable

from perflab.gate.anchor import past_anchor, successor
from perflab.records import Entry, Policy, Result
from perflab.report.drift import REASON_TO_FILL_IN
from perflab.report.table import short_name


class Succession:
    """Decides, case by case, what is stored where something is stored already."""

    def __init__(self, results: Iterable[Result], reason: str | None) -> None:
        self._policies = {result.case: result.policy or Policy() for result in results}
        self._reason = reason
        self._past: dict[str, str] = {}

    def __call__(self, case: str, old: Entry | None, new: Entry) -> Entry:
        """The entry to store: ``new``, with what it takes over from ``old``."""
        entry = successor(old, new, self._policies[case], self._reason)
        dates = {"latency": entry.anchor, "memory": entry.memory_anchor}
        past = [anchor.recorded for name in past_anchor(entry, self._policies[case]) if (anchor := dates[name])]
        if past:
            self._past[case] = past[0]
        return entry

    def notes(self) -> list[str]:
        """What was saved and will be reported all the same, since no reason was given."""
        if not self._past:
            return []
        names = ", ".join(f"{short_name(case)} (anchor of {date[:10]})" for case, date in self._past.items())
        return [
            f"saved, and still worse than the anchor: {names}",
            f"  the next run will say so; to accept that: --perf-update {REASON_TO_FILL_IN}",
        ]
