"""Which verdicts fail a test."""

from __future__ import annotations

from perflab.plugin.settings import Settings
from perflab.records import Verdict


def fails(verdict: Verdict, settings: Settings, *, saving: bool) -> bool:
    """Whether a verdict fails the test. What is being accepted does not."""
    if settings.check == "off" or settings.update:
        return False
    if verdict is Verdict.REGRESSED:
        return True
    unjudged = verdict in (Verdict.NEW, Verdict.INCOMPARABLE, Verdict.INCONCLUSIVE, Verdict.OOM)
    if saving and verdict in (Verdict.NEW, Verdict.INCOMPARABLE, Verdict.OOM):
        return False
    return settings.check == "strict" and unjudged
