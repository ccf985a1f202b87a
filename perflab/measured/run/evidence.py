"""Explains why a measured case became worse, by its baseline's commit or by the profile stored with the baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from perflab.base.errors import FreshProcessError, RivalError
from perflab.base.git import CodeOf
from perflab.measure.machine.devices import release_memory
from perflab.measured.baselines import unpacked
from perflab.measured.run.settle import Saved, limits_of
from perflab.measured.run.verdict import Judged
from perflab.results.peak import PeakExplanation
from perflab.results.profile import Explanation, Profile
from perflab.running.case.fresh_process import measure_fresh
from perflab.running.case.progress import ProgressLine
from perflab.settings.settings import TotalBudget
from perflab.tiers.job import Job
from perflab.turns import evidence
from perflab.turns.conclusions import with_option
from perflab.turns.start_sides import two_sides

CodeFor = Callable[[str, Saved], CodeOf]
"""A function that returns the commit at which stored numbers were measured, if its code exists and differs."""


class Evidence:
    """Explains failing cases, up to a maximum number in a run."""

    def __init__(self, config: pytest.Config, code_for: CodeFor, progress: ProgressLine, budget: TotalBudget) -> None:
        self._config = config
        self._code_for = code_for
        self._progress = progress
        self._budget = budget
        self._left = evidence.MOST

    def wanted(self, one: Judged) -> bool:
        """Whether a case is to be explained, and there is a commit or a profile to compare it with.

        What ``--perf-update`` accepts fails no test, and is not looked into.
        """
        return self._asked(one) and not self._why_not_at_all(one)

    def of(self, one: Judged) -> Judged:
        """Return the case with an explanation of how it differs from its baseline, or why it has none."""
        if not self.wanted(one):
            return self.or_why_not(one)
        self._left -= 1
        found = self._in_turns(one) if self._has_code(one) else self._alone(one)
        return replace(one, record=found.within(one.record))

    def or_why_not(self, one: Judged) -> Judged:
        """Return the case, with the reason why it cannot be explained if there is one."""
        why = self._why_not_at_all(one) if self._asked(one) else ""
        if not why:
            return one
        return replace(
            one, record=evidence.not_looked(one.judgement, "its baseline", evidence.could_not(why)).within(one.record)
        )

    def _asked(self, one: Judged) -> bool:
        settings = one.settings
        return settings.evidence == "on" and not settings.update and evidence.is_to_explain(one.judgement)

    def _why_not_at_all(self, one: Judged) -> str:
        """Return why a case cannot be explained; empty if it can."""
        if one.record.paired_to_anchor is not None:
            return "it is worse than its anchor, and only the baseline's own commit is looked into"
        if not self._has_code(one) and self._stored(one) is None:
            stored = ", and no profile is stored with it" if evidence.asks_for_profiles(one.judgement) else ""
            return f"{self._why_no_code(one)}{stored}"
        return "" if self._left > 0 else evidence.ENOUGH

    def _code(self, one: Judged) -> CodeOf:
        """Return the commit of the numbers that the case is worse than: its times, or else its exact quantities."""
        if one.settings.fresh_process or one.settings.settle != "on":
            return CodeOf(None, "")
        exact, times, drift = one.baseline.exact, one.baseline.times, one.judgement.drift.get("memory")
        if "latency" in one.judgement.worse:
            return self._code_for("baseline", times) if times is not None else CodeOf(None, "")
        if exact is not None and exact.memory_anchor is not None and drift is not None and drift.decides:
            return self._code_for("anchor", exact.memory_anchor)
        saved = exact or times
        return self._code_for("baseline", saved) if saved is not None else CodeOf(None, "")

    def _has_code(self, one: Judged) -> bool:
        return self._code(one).commit is not None

    def _why_no_code(self, one: Judged) -> str:
        if one.settings.fresh_process:
            return "a case that has a process of its own cannot take turns with its baseline's commit"
        if one.settings.settle != "on":
            return "--perf-settle=off leaves the baseline's commit out"
        return self._code(one).told or "git does not know its baseline's commit here"

    def _stored(self, one: Judged) -> Profile | None:
        if not evidence.asks_for_profiles(one.judgement):
            return None
        times = one.baseline.times
        return unpacked(times.profile) if times is not None and times.profile is not None else None

    def _in_turns(self, one: Judged) -> evidence.Found:
        device, case, code = one.device, one.case, self._code(one)
        assert code.commit is not None
        release_memory(device)
        show = self._progress.show
        limits = limits_of(one, self._budget.left_s)
        against = f"{code.commit[:7]}, {code.told}"
        try:
            with two_sides(self._config, code.commit, [case], str(device), self._progress.waiting) as (starts, _base):
                asked = {case: evidence.Asked(one.judgement, one.settings)}
                return dict(
                    evidence.explained_by_turns(
                        asked, starts.start, limits, against, code.commit, lambda _case, what: show(what)
                    )
                )[case]
        except (RivalError, OSError) as error:
            said = with_option(error.in_short, code.commit) if isinstance(error, RivalError) else str(error)
            return evidence.not_looked(one.judgement, against, evidence.could_not(said))

    def _alone(self, one: Judged) -> evidence.Found:
        """Explain a case without its baseline's code, by the stored profile.

        The profile has time and calls only; for memory, return the reason why it is not explained.
        """
        why = self._why_no_code(one) if evidence.asks_for_peaks(one.judgement) else ""
        return evidence.Found(
            self._by_stored(one) if self._stored(one) is not None else None,
            PeakExplanation(base="its baseline", problem=evidence.could_not(why)) if why else None,
        )

    def _by_stored(self, one: Judged) -> Explanation:
        before, device = self._stored(one), one.device
        assert before is not None
        against = "the profile stored with its baseline"
        left_s, over = self._budget.left_s(), one.settings.over_before("it could be profiled")
        if left_s is not None and left_s < evidence.least_s(one.judgement):
            return Explanation(base=against, problem=over)
        release_memory(device)
        self._progress.show("profile in a fresh process")
        try:
            job, sizes = Job(cases=[one.case], profiled=[one.case]), {one.case: one.settings.world_size}
            alone = measure_fresh(self._config, job, str(device), world_sizes=sizes, left_s=left_s)
        except FreshProcessError as error:
            return Explanation(
                base=against, problem=over if self._budget.is_over() else evidence.could_not(error.problem)
            )
        found = alone[one.case].measurement
        if found is None or found.profile is None:
            why = found.not_profiled if found is not None else "a fresh process ran out of memory"
            return Explanation(base=against, problem=evidence.could_not(str(why)))
        return evidence.told_apart(before, found.profile, against, one.judgement)
