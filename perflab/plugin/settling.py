"""Settling what stored numbers cannot tell: the case is measured in turns with the code that they were saved from."""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec
import pytest

from perflab.errors import RivalError
from perflab.gate.judge import judge
from perflab.gate.paired import Stage
from perflab.gate.store import BaselineStore
from perflab.gate.unsettled import turns_policy
from perflab.measure.devices import release_memory
from perflab.plugin.case import CaseState
from perflab.plugin.commit import commit_of_baseline, differs_from, is_shallow
from perflab.plugin.conclusions import paired_of, phases_of
from perflab.plugin.progress import ProgressLine
from perflab.plugin.settings import Settings
from perflab.plugin.sides import turns_ns, two_sides, witness_of_host
from perflab.plugin.suspects import no_room
from perflab.records import Entry, Judgement, Record, Verdict
from perflab.rival.comparison import BASE, HEAD, Compared, Comparison, Limits, compare

SHALLOW = (
    "the commit that its baseline was saved at is not in this shallow clone; with it (git fetch --unshallow, in GitHub "
    "Actions fetch-depth: 0) this would be settled in turns"
)


def may_settle(judgement: Judgement, settings: Settings) -> bool:
    """Whether turns could change the verdict, and are wanted. A cold start cannot be taken in turns."""
    wanted = settings.settle == "on" and not settings.fresh_process
    return wanted and judgement.unsettled and judgement.verdict is not Verdict.REGRESSED


class Settling:
    """Settles one case at a time, right after its test."""

    def __init__(
        self,
        config: pytest.Config,
        store: BaselineStore,
        progress: ProgressLine,
        seconds_to_spare: Callable[[], float | None],
    ) -> None:
        self._config = config
        self._store = store
        self._progress = progress
        self._seconds_to_spare = seconds_to_spare
        self._commit_of = functools.cache(commit_of_baseline)  # git is asked once a file and date
        self._differs_from = functools.cache(differs_from)

    def settle(self, state: CaseState, record: Record, entry: Entry, judgement: Judgement) -> tuple[Record, Judgement]:
        """Measure the case in turns with the commit of its baseline, and judge it again.

        The record and the judgement stay what they are, with a reason if that matters, where this cannot be done.
        """
        anchor = entry.anchor
        by_anchor = anchor is not None and "latency" in judgement.drift and judgement.drift["latency"].decides
        saved = anchor if by_anchor and anchor is not None else entry
        root = self._config.rootpath.resolve()
        file = self._store.path_for(state.case, record.environment)
        commit = self._commit_of(root, file, saved.recorded, saved.commit)
        if commit is None:
            return record, _with_reason(judgement, SHALLOW) if is_shallow(root) else judgement
        there = f"{commit[:7]}, where its {'anchor' if by_anchor else 'baseline'} was saved"
        if not self._differs_from(commit, root, self._store.directory):
            why = f"no file of the project has changed since {there}: if it is slower, look at what is installed"
            return record, _with_reason(judgement, why)
        found = self._in_turns(state, record, commit)
        if isinstance(found, str):
            return record, _with_reason(judgement, f"not settled in turns with {there}: {found}")
        one = found.cases[state.case]
        record = msgspec.structs.replace(record, paired=paired_of(found, one, there, commit, None))
        settled = judge(record, entry, state.settings.policy)
        return record, msgspec.structs.replace(settled, phases=phases_of(one))

    def _in_turns(self, state: CaseState, record: Record, commit: str) -> Comparison | str:
        """A comparison that is decided, or why there is none."""
        assert state.device is not None
        case, found = state.case, Comparison()
        release_memory(state.device)
        problem = no_room(record, state.device, processes=2)
        if problem is not None:
            return problem
        policy = turns_policy(state.settings.policy)
        limits = Limits({case: turns_ns(state.settings)}, self._seconds_to_spare, witness_of_host())
        files, device = [case.split("::")[0]], str(state.device)
        try:
            with two_sides(self._config, commit, files, device, self._progress.show) as (starts, _base):
                compare(
                    [case],
                    lambda side, cases: starts.start(side, cases or [case]),
                    policy,
                    limits,
                    lambda _case, what: self._progress.show(f"in turns with {commit[:7]}: {what}"),
                    into=found,
                )
        except RivalError as error:
            return _in_short(error.problem, commit)
        one = found.cases[case]
        if one.lost is not None:
            return _in_short(one.lost, commit)
        if not one.comparable:
            return _missing(one, commit) or "not enough time is left of --perf-total-budget"
        undecided = one.needs(policy, 1) in (Stage.UNSCREENED, Stage.OPEN)
        return "not enough time is left of --perf-total-budget" if undecided else found


def _missing(one: Compared, commit: str) -> str | None:
    """Why a case that was asked of both sides came from one, or from none; None if neither was asked."""
    head, base = one.ended.get(HEAD), one.ended.get(BASE)
    if head is not None and base is None:
        return "it did not exist there"
    for ended, where in ((head, "here, in a fresh process"), (base, "there")):
        if ended is not None and ended.outcome != "passed":
            return f"{ended.outcome} {where} (see: --perf-against={commit[:7]})"
    return None


def _in_short(problem: str, commit: str) -> str:
    """The first line of a problem, and how to see the rest; what the process said may be long."""
    line = problem.strip().partition("\n")[0].removesuffix("; it said:")
    return f"{line.removeprefix(f'{commit[:7]}: ')} (see: --perf-against={commit[:7]})"


def _with_reason(judgement: Judgement, reason: str) -> Judgement:
    """Only a verdict that owes an explanation gets one."""
    if judgement.verdict is not Verdict.INCONCLUSIVE:
        return judgement
    return msgspec.structs.replace(judgement, reasons=[*judgement.reasons, reason])
