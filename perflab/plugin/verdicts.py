"""Which verdicts fail a test, and what is said of one that came to none."""

from __future__ import annotations

import pytest

from perflab.plugin.settings import Settings
from perflab.records import Judgement, Result, Verdict


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


def unmeasured(case: str, problem: str | None, report: pytest.TestReport) -> Result | None:
    """What a report says of a case that was not judged; None while it says nothing final."""
    if hasattr(report, "wasxfail"):
        expected = Judgement(verdict=Verdict.SKIPPED, reasons=[f"expected to fail: {report.wasxfail}".rstrip(": ")])
        return Result(case=case, record=None, judgement=expected)
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        judgement = Judgement(verdict=Verdict.SKIPPED, reasons=[reason.removeprefix("Skipped: ")])
        return Result(case=case, record=None, judgement=judgement)
    if report.failed:
        what = problem or ("set-up failed" if report.when == "setup" else "the test failed")
        return Result(case=case, record=None, judgement=Judgement(verdict=Verdict.FAILED, reasons=[what]))
    return None
