"""What takes a saved baseline's place: the new numbers with their anchors and history, and what to say of them."""

from __future__ import annotations

from collections.abc import Iterable

from perflab.measured.judge.anchor import exact_successor, is_past_anchor, is_past_memory_anchor, times_successor
from perflab.measured.records import Entry, Exact
from perflab.records import Policy
from perflab.report.drift import REASON_TO_FILL_IN
from perflab.report.lines import short_name
from perflab.results import Result


class Succession:
    """Decides, case by case, what is stored where something is stored already."""

    def __init__(self, results: Iterable[Result], reason: str | None) -> None:
        self._policies = {result.identity: result.policy or Policy() for result in results}
        self._reason = reason
        self._past: dict[str, str] = {}

    def times(self, case: str, old: Entry | None, new: Entry) -> Entry:
        """The times to store: ``new``, with what they take over from ``old``."""
        policy = self._policies[case]
        entry = times_successor(old, new, policy, self._reason)
        if entry.anchor is not None and is_past_anchor(entry, policy):
            self._past[case] = entry.anchor.recorded
        return entry

    def exact(self, case: str, old: Exact | None, new: Exact) -> Exact:
        """The exact quantities to store."""
        policy = self._policies[case]
        exact = exact_successor(old, new, policy, self._reason)
        if exact.memory_anchor is not None and is_past_memory_anchor(exact, policy):
            self._past.setdefault(case, exact.memory_anchor.recorded)
        return exact

    def notes(self) -> list[str]:
        """What was saved and will be reported all the same, since no reason was given."""
        if not self._past:
            return []
        names = ", ".join(f"{short_name(case)} (anchor of {date[:10]})" for case, date in self._past.items())
        return [
            f"saved, but still worse than the anchor: {names}",
            f"  the next run will report them again; to accept them: --perf-update {REASON_TO_FILL_IN}",
        ]
