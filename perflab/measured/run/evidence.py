"""Why a measured case became worse: profiled beside its baseline's commit, or held against the stored profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from perflab.compared.comparison import Limits
from perflab.compared.run.conclusions import in_short
from perflab.compared.run.evidence import MOST, change_of, explained_by_turns, is_to_explain, least_s
from perflab.compared.run.start_sides import two_sides, witness_of_host
from perflab.errors import FreshProcessError, RivalError
from perflab.measure.devices import release_memory
from perflab.measured.records import Anchor, Entry, Exact
from perflab.measured.run.verdict import Judged
from perflab.plugin.case.fresh_process import measure_fresh
from perflab.plugin.case.progress import ProgressLine
from perflab.plugin.case.total_budget import TotalBudget
from perflab.plugin.session.commit import CodeOf
from perflab.profiles.difference import explain
from perflab.profiles.records import Explanation, Profile

CodeFor = Callable[[str, Entry | Anchor | Exact], CodeOf]
"""The commit that something stored was measured at, if its code is there and differs."""


class Evidence:
    """Looks into cases that fail, as many as are worth it in a run."""

    def __init__(self, config: pytest.Config, code_for: CodeFor, progress: ProgressLine, budget: TotalBudget) -> None:
        self._config = config
        self._code_for = code_for
        self._progress = progress
        self._budget = budget
        self._left = MOST

    def wanted(self, one: Judged) -> bool:
        """Whether a case is to be looked into, and something is there to hold it against."""
        if (
            not (one.settings.evidence == "on" and is_to_explain(one.judgement))
            or one.record.paired_to_anchor is not None
        ):
            return False
        return self._left > 0 and (self._commit(one) is not None or self._stored(one) is not None)

    def of(self, one: Judged) -> Judged:
        """The case with what it does otherwise than its baseline did."""
        if not self.wanted(one):
            return one
        self._left -= 1
        commit = self._commit(one)
        explained = self._in_turns(one, commit) if commit is not None else self._by_stored(one)
        return replace(one, record=msgspec.structs.replace(one.record, explained=explained))

    def _saved(self, one: Judged) -> Entry | Exact | None:
        """What the case became worse than: its times, or else what it needs exactly."""
        return one.baseline.times if "latency" in one.judgement.worse else one.baseline.exact or one.baseline.times

    def _commit(self, one: Judged) -> str | None:
        saved = self._saved(one)
        if saved is None or one.settings.fresh_process or one.settings.settle != "on":
            return None
        return self._code_for("baseline", saved).commit

    def _stored(self, one: Judged) -> Profile | None:
        return one.baseline.times.profile if one.baseline.times is not None else None

    def _in_turns(self, one: Judged, commit: str) -> Explanation:
        device, case = one.state.device, one.case
        assert device is not None
        release_memory(device)
        files, show = [case.split("::")[0]], self._progress.show
        limits = Limits(
            {case: 0.0}, self._budget.left_s, witness_of_host(), weighs=False, answer_within_s=one.settings.patience_s()
        )
        against = f"{commit[:7]}, where its baseline was saved"
        try:
            with two_sides(self._config, commit, files, str(device), show) as (starts, _base):
                return explained_by_turns(
                    case, one.judgement, one.settings, starts.start, limits, against, commit, show
                )
        except (RivalError, OSError) as error:
            said = in_short(error.problem, commit) if isinstance(error, RivalError) else str(error)
            return Explanation(base=against, problem=f"could not look, because {said}")

    def _by_stored(self, one: Judged) -> Explanation:
        before, device = self._stored(one), one.state.device
        assert before is not None
        assert device is not None
        against = "the profile stored with its baseline"
        left_s = self._budget.left_s()
        if left_s is not None and left_s < least_s(one.judgement):
            return Explanation(base=against, problem=one.settings.over_before("it could be profiled"))
        release_memory(device)
        self._progress.show("profile in a fresh process")
        try:
            found = measure_fresh(self._config, [one.case], str(device), profile=True)[one.case].measurement
        except FreshProcessError as error:
            return Explanation(base=against, problem=f"could not look, because {error.problem}")
        if found is None or found.profile is None:
            why = found.not_profiled if found is not None else "a fresh process ran out of memory"
            return Explanation(base=against, problem=f"could not look, because {why}")
        return explain(before, found.profile, against, *change_of(one.judgement))
