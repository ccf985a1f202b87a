"""Asks a measured case's baseline: settles an unsettled case, and explains one that became worse.

Both measure the case interleaved with the baseline's commit where git has it. Without that commit, the profile that is
stored with the baseline may explain a case that became slower.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from perflab.base.data import changed
from perflab.base.errors import FreshProcessError, RivalError
from perflab.base.git import CodeOf, code_of, differs_from
from perflab.base.identity import file_of
from perflab.judging.finding import turns_policy
from perflab.judging.paired import Stage, latency_findings
from perflab.measure.machine.devices import release_memory
from perflab.measured.baselines import unpacked
from perflab.measured.run.replicates import looks_faster, no_room
from perflab.measured.run.verdict import Judged
from perflab.results.measured import Anchor, Entry, Exact, MemoryAnchor
from perflab.results.peak import PeakExplanation
from perflab.results.profile import Explanation, Profile
from perflab.results.records import Verdict
from perflab.running.case.fresh_process import measure_fresh
from perflab.running.case.progress import ProgressLine
from perflab.settings.settings import TotalBudget
from perflab.tiers.job import Job
from perflab.turns import evidence
from perflab.turns.comparison import BASE, HEAD, Compared, Comparison, Limits, compare
from perflab.turns.conclusions import paired_of, timed_otherwise, with_evidence, with_option, with_outputs
from perflab.turns.start_sides import turns_ns, two_sides, witness_of_host

Saved = Entry | Anchor | Exact | MemoryAnchor
PROCESSES = 3
"""Number of processes, beside this one, that hold the case at once while its change is confirmed."""
CALLS_IN_A_PAIR = 16
"""Number of calls of a slow case in a pair of processes: two warm-ups, two blocks of four turns, memory, the last."""
LEAST_S = 10.0
"""Seconds that two pairs of processes take even for a quick case: mostly their start."""


@dataclass(frozen=True)
class NoTurns:
    """The reason why a case was not interleaved with its baseline's code."""

    told: str
    out_of_time: bool = False
    """Whether the only reason was that the run's time was over."""


def may_settle(one: Judged) -> bool:
    """Whether an interleaved run is wanted and could change the verdict. A cold start cannot be interleaved."""
    return _is_wanted(one) and bool(one.judgement.unsettled) and one.judgement.verdict is not Verdict.REGRESSED


def _is_wanted(one: Judged) -> bool:
    return one.settings.settle == "on" and not one.settings.fresh_process and one.baseline.times is not None


class Settling:
    """Settles cases, one at a time."""

    def __init__(self, config: pytest.Config, baselines: Path, progress: ProgressLine, budget: TotalBudget) -> None:
        self._config = config
        self._directory = baselines
        self._progress = progress
        self._budget = budget
        self._code_of = functools.cache(code_of)  # git is asked once for each date
        self._differs_from = functools.cache(differs_from)
        self._unusable: dict[tuple[str, str], str] = {}
        """(commit, test file) -> why it cannot run there, so that it is not tried again for every case."""

    def has_code(self, one: Judged) -> bool:
        """Whether there is a commit with which a case could be interleaved."""
        entry = one.baseline.times
        return entry is not None and _is_wanted(one) and self.code_of("baseline", entry).commit is not None

    def settle(self, one: Judged) -> Judged:
        """Interleave the case with the code of its baseline, of its anchor or of both, and judge it again.

        If that is impossible, the verdict stays, with a reason if the case is inconclusive.
        """
        entry, policy = one.baseline.times, turns_policy(one.settings.policy)
        assert entry is not None, "what is unsettled was compared with stored times"
        notes: list[str] = []
        compared: dict[str, Comparison | NoTurns] = {}
        last: Compared | None = None
        same_code = False
        for what in one.judgement.unsettled:
            saved = entry.anchor if what == "anchor" and entry.anchor is not None else entry
            code = self.code_of(what, saved)
            if code.commit is None:
                notes.append(code.told if code.is_here or not code.told else f"no A/B re-run: {code.told}")
                same_code |= code.is_here
                continue
            there = f"{code.commit[:7]}, {code.told}"
            if code.commit not in compared:
                compared[code.commit] = self._in_turns(one, code.commit)
            found = compared[code.commit]
            if isinstance(found, NoTurns):
                notes.append(found.told if found.out_of_time else f"no A/B re-run with {there}: {found.told}")
                continue
            last = found.cases[one.case]
            said = latency_findings({one.case: last.logs}, found.controls, policy)[one.case]
            paired = paired_of(found, last, there, code.commit, said.detectable)
            field = "paired_to_anchor" if what == "anchor" else "paired"
            one = one.anew(changed(one.record, **{field: paired}))
            if one.judgement.verdict is Verdict.REGRESSED:
                break
        judgement = one.judgement
        if looks_faster(judgement) and same_code:
            judgement = changed(judgement, verdict=Verdict.INCONCLUSIVE)
        if last is not None:
            judgement = with_outputs(with_evidence(judgement, last, one.record.environment), last)
            notes += judgement.disturbed or []
        if judgement.verdict is Verdict.INCONCLUSIVE:  # other verdicts need no reason
            judgement = changed(judgement, reasons=[*judgement.reasons, *filter(None, notes)])
        return replace(one, judgement=judgement)

    def code_of(self, what: str, saved: Saved) -> CodeOf:
        """Return the commit to compare with, or the reason why there is none."""
        root, baselines = self._config.rootpath.resolve(), self._directory
        code = self._code_of(what, root, baselines, saved.recorded, saved.commit)
        if code.commit is None or self._differs_from(code.commit, root, baselines):
            return code
        there = f"{code.commit[:7]}, {code.told}"
        told = f"no tracked file has changed since {there}: the machine or an installed package may have changed"
        return CodeOf(None, told, is_here=True)

    def _in_turns(self, one: Judged, commit: str) -> Comparison | NoTurns:
        """Interleave the case with the commit; return the comparison if it is decided, else the reason why not."""
        release_memory(one.device)
        there, left_s = (commit, file_of(one.case)), self._budget.measuring_s()
        problem = self._unusable.get(there) or _too_long(one) or no_room(one.record, one.device, PROCESSES)
        if problem is not None:
            return NoTurns(problem)
        if left_s is not None and left_s < LEAST_S:
            return _no_time(one)
        found = Comparison()
        try:
            self._compare(one, commit, found)
        except RivalError as error:
            self._unusable[there] = with_option(error.in_short, commit)
            return NoTurns(self._unusable[there])
        except OSError as error:  # the cache may be full or owned by another user: no reason to fail a test
            return NoTurns(str(error))
        compared, policy = found.cases[one.case], turns_policy(one.settings.policy)
        why = why_not_settled(compared, commit)
        open_ones = found.in_stage(Stage.UNSCREENED, policy) + found.in_stage(Stage.OPEN, policy)
        undecided = why is not None or compared in open_ones
        if undecided and found.out_of_time:
            return _no_time(one)
        return NoTurns(why or "the case measured nothing there") if undecided else found

    def _compare(self, one: Judged, commit: str, found: Comparison) -> None:
        case, moved, show = one.case, one.old_name, self._progress.show
        device = str(one.device)
        with two_sides(self._config, commit, [case], device, self._progress.waiting) as (starts, _base):
            compare(
                [case],
                lambda side, cases: starts.start(side, cases or [case if side == HEAD else moved.get(case, case)]),
                turns_policy(one.settings.policy),
                limits_of(one, self._budget.measuring_s),
                lambda _case, what: show(f"A/B with {commit[:7]}: {what}"),
                into=found,
            )


def limits_of(one: Judged, seconds_left: Callable[[], float | None]) -> Limits:
    """Return the limits of interleaving a case with its baseline's commit."""
    return Limits(
        {one.case: turns_ns(one.settings)},
        seconds_left,
        witness_of_host(),
        weighs=False,
        answer_within_s=one.settings.patience_s(),
        floor_ns={one.case: one.settings.floor_ns},
        moved=one.old_name,
    )


def _no_time(one: Judged) -> NoTurns:
    return NoTurns(one.settings.over_before("it could be re-run A/B with its baseline's commit"), out_of_time=True)


def _too_long(one: Judged) -> str | None:
    """Return why a slow case is not settled automatically; None if it may be."""
    summary = one.record.summary
    assert summary is not None
    if CALLS_IN_A_PAIR * summary.median_ns <= one.settings.budget_s * 1e9:
        return None
    return "a pair of processes would take longer than --perf-budget"


def why_not_settled(one: Compared, commit: str) -> str | None:
    """Return why not both sides measured a case in the same way; None if both did."""
    if one.lost is not None:
        return with_option(one.lost, commit)
    head, base = one.ended.get(HEAD), one.ended.get(BASE)
    for ended, where in ((head, "here, in a fresh process"), (base, "there")):
        if ended is not None and ended.outcome != "passed":
            return f"{ended.outcome} {where} (see: --perf-against={commit[:7]})"
    if head is None:
        return "the case was not collected again in a fresh process"
    if base is None:
        return "the case did not exist there"
    return f"{timed_otherwise(one)} there" if one.modes else None


class Evidence:
    """Explains failing cases, up to a maximum number in a run."""

    def __init__(self, config: pytest.Config, settling: Settling, progress: ProgressLine, budget: TotalBudget) -> None:
        self._config = config
        self._code_for = settling.code_of
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
            return f"{self._told(one)}{stored}"
        return "" if self._left > 0 else evidence.ENOUGH

    def _code(self, one: Judged) -> CodeOf:
        """Return the commit of the numbers that the case is worse than: its times, or else its exact quantities."""
        if one.settings.fresh_process:
            return CodeOf(None, "a case that has a process of its own cannot take turns with its baseline's commit")
        if one.settings.settle != "on":
            return CodeOf(None, "--perf-settle=off leaves the baseline's commit out")
        exact, times, drift = one.baseline.exact, one.baseline.times, one.judgement.drift.get("memory")
        saved = times if "latency" in one.judgement.worse else exact or times
        if saved is exact and exact is not None and exact.memory_anchor is not None and drift and drift.decides:
            return self._code_for("anchor", exact.memory_anchor)
        return self._code_for("baseline", saved) if saved is not None else CodeOf(None, "")

    def _has_code(self, one: Judged) -> bool:
        return self._code(one).commit is not None

    def _told(self, one: Judged) -> str:
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
        why = self._told(one) if evidence.asks_for_peaks(one.judgement) else ""
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
