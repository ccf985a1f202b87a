"""Decides which verdicts fail a test, and makes the results of cases without numbers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from perflab.base.data import changed
from perflab.results.records import Judgement, Shortage, Verdict
from perflab.results.result import Result
from perflab.running.config.command_line import accept_command
from perflab.running.config.kinds import reason_of_skip
from perflab.settings.settings import Settings
from perflab.tiers.interface import tier_of
from perflab.units import format_bytes


def fails(judgement: Judgement, settings: Settings, *, saving: bool) -> bool:
    """Whether a verdict fails the test. A verdict that the run accepts by saving does not.

    ``--perf-check=strict`` requires that everything of a case is judged: its time, and each of its exact quantities.
    ``exact`` requires a baseline, whichever of its quantities can be compared on this machine.
    """
    verdict = judgement.verdict
    if settings.check == "off":
        return False
    if verdict is Verdict.FAILED:
        return True  # the case broke a rule that no baseline and no saving accepts
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
    """Return the judgement, changed to failed if the case broke a limit that no baseline allows.

    Args:
        judgement: the judgement by the case's baseline.
        settings: the case's own settings.
        peak_bytes: the case's peak, exact or not, which is compared with its memory limit; None: there is no peak.
        beyond: other broken limits, as sentences.
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
    """Return the judgement, without a verdict under ``--perf-check=off`` unless there was nothing to compare with."""
    if settings.check != "off" or judgement.verdict in (Verdict.OOM, Verdict.NEW, Verdict.INCOMPARABLE):
        return judgement
    return changed(judgement, verdict=Verdict.UNCHECKED, suspect=False)


def compared_with(judgement: Judgement, case: str | None) -> Judgement:
    """Return the judgement with the old name of the case, if the case was compared under an old name."""
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
    """Return the failure text of a case's test, as its tier explains it; None if the test passes.

    Args:
        config: the session's configuration.
        result: the case's result.
        settings: the case's own settings.
        saves: the verdict that accepting the case would settle, if it is not the result's own.
        moves_anchor: whether accepting the case has to move its anchor.
        broken: whether the case cannot run at all, so that no option lets it pass or accepts it.
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
    """Return the result of a case that was not judged, from a test report; None if the report is not final.

    ``short_of`` holds the resources that were insufficient, if the case was skipped for that.
    """
    if hasattr(report, "wasxfail"):
        expected = Judgement(verdict=Verdict.SKIPPED, reasons=[f"expected to fail: {report.wasxfail}".rstrip(": ")])
        return Result(case=case, judgement=expected)
    if report.skipped:
        skipped = Judgement(verdict=Verdict.SKIPPED, reasons=[reason_of_skip(report)], short_of=list(short_of))
        return Result(case=case, judgement=skipped)
    if report.failed:
        what = problem or ("set-up failed" if report.when == "setup" else "the test failed")
        return Result(case=case, judgement=Judgement(verdict=Verdict.FAILED, reasons=[what]))
    return None
