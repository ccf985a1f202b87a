"""Settling what stored numbers cannot tell: the case is measured in turns with the code that they were saved from."""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec
import pytest

from perflab.errors import RivalError
from perflab.gate.disturbance import disturbances, is_witnessed
from perflab.gate.judge import judge
from perflab.gate.paired import Stage, latency_findings
from perflab.gate.store import BaselineStore
from perflab.gate.unsettled import turns_policy
from perflab.measure.devices import release_memory
from perflab.plugin.case import CaseState
from perflab.plugin.commit import CodeOf, code_of, differs_from
from perflab.plugin.conclusions import in_turns, last_line, paired_of, phases_of
from perflab.plugin.progress import ProgressLine
from perflab.plugin.settings import Settings
from perflab.plugin.sides import turns_ns, two_sides, witness_of_host
from perflab.plugin.suspects import no_room
from perflab.plugin.total_budget import TotalBudget
from perflab.records import Anchor, Entry, Environment, Judgement, Policy, Record, Verdict
from perflab.rival.comparison import BASE, HEAD, Compared, Comparison, Limits, compare

PROCESSES = 3
"""That hold the case at once while it is confirmed, beside this one."""
CALLS_IN_A_PAIR = 16
"""Of a case whose call is long: two warm-ups, two blocks of four turns, memory's and the last one."""
LEAST_S = 10.0
"""What two pairs of processes take even of a quick case: mostly their start."""
_NO_TIME = "not enough time is left of --perf-total-budget"


def may_settle(judgement: Judgement, settings: Settings) -> bool:
    """Whether turns could change the verdict, and are wanted. A cold start cannot be taken in turns."""
    wanted = settings.settle == "on" and not settings.fresh_process
    return wanted and bool(judgement.unsettled) and judgement.verdict is not Verdict.REGRESSED


class Settling:
    """Settles one case at a time, right after its test."""

    def __init__(
        self, config: pytest.Config, store: BaselineStore, progress: ProgressLine, budget: TotalBudget
    ) -> None:
        self._config = config
        self._store = store
        self._progress = progress
        self._budget = budget
        self._code_of = functools.cache(code_of)  # git is asked once a date
        self._differs_from = functools.cache(differs_from)
        self._unusable: dict[tuple[str, str], str] = {}
        """Commits and files that do not run there, and why: they are not tried for every case again."""

    def settle(self, state: CaseState, record: Record, entry: Entry, judgement: Judgement) -> tuple[Record, Judgement]:
        """Measure the case in turns with the code of its baseline, of its anchor or of both, and judge it again.

        The record and the judgement stay what they are, with a reason if that matters, where this cannot be done.
        """
        policy, notes = state.settings.policy, []
        compared: dict[str, Comparison | str] = {}
        last: Compared | None = None
        for what in judgement.unsettled:
            saved = entry.anchor if what == "anchor" and entry.anchor is not None else entry
            code = self._code(what, saved)
            if code.commit is None:
                notes.append(code.told)
                continue
            there = f"{code.commit[:7]}, {code.told}"
            if code.commit not in compared:
                compared[code.commit] = self._in_turns(state, record, code.commit)
            found = compared[code.commit]
            if isinstance(found, str):
                notes.append(f"not settled in turns with {there}: {found}")
                continue
            last = found.cases[state.case]
            paired = paired_of(found, last, there, code.commit, _detectable(found, last, policy))
            field = "paired_to_anchor" if what == "anchor" else "paired"
            record = msgspec.structs.replace(record, **{field: paired})
            judgement = judge(record, entry, policy)
            if judgement.verdict is Verdict.REGRESSED:
                break
        if last is not None:
            judgement = _with_evidence(judgement, last, record.environment)
            notes += judgement.disturbed or []
        if judgement.verdict is Verdict.INCONCLUSIVE:  # others owe no explanation
            judgement = msgspec.structs.replace(judgement, reasons=[*judgement.reasons, *filter(None, notes)])
        return record, judgement

    def _code(self, what: str, saved: Entry | Anchor) -> CodeOf:
        """The commit to compare with, or why there is none."""
        root, baselines = self._config.rootpath.resolve(), self._store.directory
        code = self._code_of(what, root, baselines, saved.recorded, saved.commit)
        if code.commit is None:
            return CodeOf(None, f"not settled in turns: {code.told}" if code.told else "")
        if self._differs_from(code.commit, root, baselines):
            return code
        there = f"{code.commit[:7]}, {code.told}"
        return CodeOf(
            None, f"no file that git knows has changed since {there}: the machine may be slower, or what is installed"
        )

    def _in_turns(self, state: CaseState, record: Record, commit: str) -> Comparison | str:
        """A comparison that is decided, or why there is none."""
        assert state.device is not None
        release_memory(state.device)
        there = commit, state.case.split("::")[0]
        problem = self._unusable.get(there) or _too_long(record, state) or no_room(record, state.device, PROCESSES)
        if problem is not None:
            return problem
        found = Comparison()
        try:
            with self._budget.extra() as seconds_left:
                if (left_s := seconds_left()) is not None and left_s < LEAST_S:
                    return _NO_TIME
                self._compare(state, commit, seconds_left, found)
        except RivalError as error:
            self._unusable[there] = _in_short(error.problem, commit)
            return self._unusable[there]
        except OSError as error:  # the cache may be full, or another's: no reason to fail a test
            return str(error)
        one, policy = found.cases[state.case], turns_policy(state.settings.policy)
        why = why_not_settled(one, commit)
        undecided = why is not None or one.needs(policy, 1) in (Stage.UNSCREENED, Stage.OPEN)
        if undecided and found.out_of_time:
            return _NO_TIME
        return why or ("it measured nothing there" if undecided else found)

    def _compare(
        self, state: CaseState, commit: str, seconds_left: Callable[[], float | None], found: Comparison
    ) -> None:
        case, show = state.case, self._progress.show
        limits = Limits({case: turns_ns(state.settings)}, seconds_left, witness_of_host(), weighs=False)
        files, device = [case.split("::")[0]], str(state.device)
        with two_sides(self._config, commit, files, device, show) as (starts, _base):
            compare(
                [case],
                lambda side, cases: starts.start(side, cases or [case]),
                turns_policy(state.settings.policy),
                limits,
                lambda _case, what: show(f"in turns with {commit[:7]}: {what}"),
                into=found,
            )


def _too_long(record: Record, state: CaseState) -> str | None:
    """Why a case that takes its time is not settled unasked; None if it may be."""
    assert record.summary is not None
    if CALLS_IN_A_PAIR * record.summary.median_ns <= state.settings.budget_s * 1e9:
        return None
    return "a pair of processes would take longer than --perf-budget"


def why_not_settled(one: Compared, commit: str) -> str | None:
    """Why a case that was asked of both sides came from one, or from none; None if both gave it."""
    if one.lost is not None:
        return _in_short(one.lost, commit)
    head, base = one.ended.get(HEAD), one.ended.get(BASE)
    for ended, where in ((head, "here, in a fresh process"), (base, "there")):
        if ended is not None and ended.outcome != "passed":
            return f"{ended.outcome} {where} (see: --perf-against={commit[:7]})"
    if head is None:
        return "it was not collected again in a fresh process"
    return "it did not exist there" if base is None else None


def _in_short(problem: str, commit: str) -> str:
    """The line of a problem that says most, and how to see the rest: what a process said may be long."""
    first = problem.strip().partition("\n")[0]
    line = first.removesuffix("; it said:") if first.endswith("; it said:") else last_line(problem)
    return f"{line.removeprefix(f'{commit[:7]}: ')} (see: --perf-against={commit[:7]})"


def _with_evidence(judgement: Judgement, one: Compared, environment: Environment) -> Judgement:
    """Where in the case the difference lies, and what disturbed the processes that took turns."""
    processes = in_turns(one)
    disturbed = disturbances(processes, [], environment)
    witnessed = bool(disturbed) or is_witnessed(processes, environment)
    return msgspec.structs.replace(judgement, phases=phases_of(one), disturbed=disturbed if witnessed else None)


def _detectable(found: Comparison, one: Compared, policy: Policy) -> float | None:
    return latency_findings({one.case: one.logs}, found.control, turns_policy(policy))[one.case].detectable
