"""Decides which verdicts fail a test, and makes the results of cases without numbers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from perflab.data import changed
from perflab.plugin.config.accept_command import accept_command
from perflab.plugin.config.settings import Settings
from perflab.records import Judgement, Shortage, Verdict
from perflab.results import Result
from perflab.tiers import tier_of
from perflab.units import format_bytes


def fails(judgement: Judgement, settings: Settings, *, saving: bool) -> bool:
    """Whether a verdict fails the test. What is being accepted does not.

    ``--perf-check=strict`` wants all of a case judged: its time, and each of its exact quantities. ``exact`` wants a
    baseline, and leaves it to the machine which of its quantities can be compared.
    """
    verdict = judgement.verdict
    if settings.check == "off":
        return False
    if verdict is Verdict.FAILED:
        return True  # by what it may not do at all, which nothing accepts
    if settings.update:
        return False
    if verdict is Verdict.REGRESSED or (verdict is Verdict.IMPROVED and settings.policy.fail_improved):
        return True
    unjudged = verdict in (Verdict.NEW, Verdict.INCOMPARABLE, Verdict.INCONCLUSIVE, Verdict.OOM)
    if saving and verdict in (Verdict.NEW, Verdict.INCOMPARABLE, Verdict.OOM):
        return False
    if settings.check == "exact":
        return unjudged
    missed = any(not (saving and one.can_be_saved) for one in judgement.not_compared)
    without_times = judgement.time_not_judged is not None and not saving
    return settings.check == "strict" and (unjudged or missed or without_times)


def unless_beyond(
    judgement: Judgement, settings: Settings, peak_bytes: int | None, beyond: Sequence[str] = ()
) -> Judgement:
    """The judgement, or that the case failed by what no baseline allows.

    Args:
        judgement: what its baseline says of it.
        settings: the case's own.
        peak_bytes: its peak, exact or not, beside the limit that it was given; None: there is none.
        beyond: what else it may not do, as sentences.
    """
    limit = settings.memory_limit_bytes
    said = list(beyond)
    if limit is not None and peak_bytes is not None and peak_bytes > limit:
        peak = f"a peak of {format_bytes(peak_bytes)} is above the limit of {format_bytes(limit)}"
        said = [f"{peak} (by {format_bytes(peak_bytes - limit)})", *said]
    if not said:
        return judgement
    reasons = [*said, *(judgement.reasons if judgement.verdict is not Verdict.NEW else [])]
    return changed(judgement, verdict=Verdict.FAILED, reasons=reasons, suspect=False, unsettled=[])


def unless_unchecked(judgement: Judgement, settings: Settings) -> Judgement:
    """The judgement as ``--perf-check=off`` has it: no verdict, unless there was nothing to compare with."""
    if settings.check != "off" or judgement.verdict in (Verdict.OOM, Verdict.NEW, Verdict.INCOMPARABLE):
        return judgement
    return changed(judgement, verdict=Verdict.UNCHECKED, suspect=False)


def compared_with(judgement: Judgement, case: str | None) -> Judgement:
    """The judgement with the old name of the case, if that is what it was compared with."""
    if case is None:
        return judgement
    return changed(judgement, moved_from=case, reasons=[f"compared with {case}, moved", *judgement.reasons])


def failure_of(
    config: pytest.Config,
    result: Result,
    settings: Settings,
    *,
    saves: Verdict | None = None,
    moves_anchor: bool = False,
    broken: bool = False,
) -> str | None:
    """What the test of a case fails with, in the words of its tier; None if it passes.

    Args:
        config: the session's configuration.
        result: the case.
        settings: its own.
        saves: the verdict that accepting it is about, if not its own.
        moves_anchor: accepting it has to move its anchor.
        broken: whether it cannot run at all, which no option lets pass, and nothing accepts.
    """
    saving = settings.update or settings.update_new
    if not broken and not fails(result.judgement, settings, saving=saving):
        return None
    can_be_accepted = not broken and settings.against is None and result.judgement.verdict is not Verdict.FAILED
    verdict = saves or result.judgement.verdict
    accept = accept_command(config, result.case, verdict, moves_anchor=moves_anchor) if can_be_accepted else None
    return tier_of(result).explain(result, accept)


def unmeasured(
    case: str, problem: str | None, report: pytest.TestReport, short_of: Sequence[Shortage] = ()
) -> Result | None:
    """What a report says of a case that was not judged; None while it says nothing final.

    ``short_of``: what it had too little of, if it was skipped for that.
    """
    if hasattr(report, "wasxfail"):
        expected = Judgement(verdict=Verdict.SKIPPED, reasons=[f"expected to fail: {report.wasxfail}".rstrip(": ")])
        return Result(case=case, judgement=expected)
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        judgement = Judgement(
            verdict=Verdict.SKIPPED, reasons=[reason.removeprefix("Skipped: ")], short_of=list(short_of)
        )
        return Result(case=case, judgement=judgement)
    if report.failed:
        what = problem or ("set-up failed" if report.when == "setup" else "the test failed")
        return Result(case=case, judgement=Judgement(verdict=Verdict.FAILED, reasons=[what]))
    return None
