"""``--perf-against``: measures the session's cases interleaved with another version, before any test is reported.

The bodies of perf cases do not run in this process: each side runs them in its own processes. The result of a case is
then reported through the case's own test reports, so that a regression fails the test that it belongs to.
"""

from __future__ import annotations

import functools
import math
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from perflab.base.data import changed, to_plain
from perflab.base.errors import PerflabError, UsageError
from perflab.base.identity import file_of
from perflab.devices.kinds import resolve_device
from perflab.judging.counts import exactly_worse
from perflab.judging.paired import PairedPolicy, Stage
from perflab.measured.run.recheck import size_of
from perflab.measured.run.state import no_graph_for
from perflab.noting import NOTES, AllNotes, case_id
from perflab.results.environment import differing
from perflab.results.records import Verdict
from perflab.results.result import Result
from perflab.running.case.locks import device_turn
from perflab.running.case.progress import ProgressLine
from perflab.running.case.verdicts import failure_of
from perflab.running.config.marker import for_case
from perflab.settings.settings import Settings, TotalBudget
from perflab.store.stale import moved_from
from perflab.turns import evidence
from perflab.turns.checkout import Tree
from perflab.turns.comparison import BASE, HEAD, WEIGHING_ROUNDS, Comparison, Limits, compare
from perflab.turns.conclusions import conclude, without_numbers
from perflab.turns.process import ANSWER_WITHIN_S
from perflab.turns.start_sides import Starts, turns_ns, two_sides, witness_of_host
from perflab.units import format_count, format_names, format_ns

PER_TURN, PER_CASE_S = 2.0, 1.0
"""The expected time of a case in a round: PER_TURN times the time of its turns, which includes set-up and warm-up,
plus PER_CASE_S seconds."""
WORTH_A_WORD = 1.5
"""The user is notified if the first round took more than this many times the expected time."""


class Against:
    """Compares the session's perf cases with another version, and reports each test with its result."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        notes = config.stash[NOTES]
        if not isinstance(notes, AllNotes):  # no option requests the comparison, so pytest-xdist was left enabled
            raise UsageError(
                "the ini key perf_against compares one case at a time, and pytest-xdist's workers run several",
                "add -m perf, or -n0",
            )
        self._notes = notes
        self._collected = notes.collect()
        self._progress = ProgressLine(config)
        self._results: dict[str, Result] = {}
        self._case_settings: dict[str, Settings] = {}
        self._left_out: dict[str, str] = {}
        """Cases that are not compared, and why."""
        self._budget = TotalBudget(settings.total_budget_s)
        self.notes: list[str] = []
        self._collected.preface = self.notes
        """The lines above the table: the labels of head and base, and the cases that only one side has."""

    def check(self, items: list[pytest.Item]) -> None:
        """Detect errors that would otherwise appear late: bad markers, no device.

        Raises:
            PerflabError: the first problem found.
        """
        for item in items:
            self._case_settings[case_id(item)] = for_case(self._settings, item)
        self._device = resolve_device(self._settings.device)
        for case, settings in self._case_settings.items():
            unmet = no_graph_for(case, settings, self._device)
            if unmet is not None or settings.fresh_process:
                self._left_out[case] = unmet or "cold starts are not compared by --perf-against"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Measure every case before the first test is reported, so that each test can report its result."""
        if not session.testsfailed:  # failures during collection
            items = [item for item in session.items if case_id(item) in self._case_settings]
            try:
                self._compare(items)
            except (PerflabError, KeyboardInterrupt) as error:
                for item in items:  # results so far are reported, not lost
                    if case_id(item) in self._results:
                        self.pytest_runtest_protocol(item)
                if isinstance(error, PerflabError):
                    raise pytest.UsageError(str(error)) from None
                raise
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Report a compared case with the setup, call and teardown phases of any test. All other tests run as usual."""
        if case_id(item) not in self._case_settings:
            return None
        settings = self._case_settings[case_id(item)]
        why = settings.time_is_over if self._budget.is_over() else "not measured: the comparison ended first"
        unmeasured = without_numbers(case_id(item), Verdict.SKIPPED, why)
        result = settings.told_in(self._results.get(case_id(item), unmeasured))
        self._results[case_id(item)] = result
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for when in ("setup", "call", "teardown"):  # nothing is set up here: the case ran elsewhere
            tell = partial(self._tell, case_id(item)) if when == "call" else lambda: None
            call = pytest.CallInfo.from_call(tell, when=when)
            report = item.ihook.pytest_runtest_makereport(item=item, call=call)
            if when == "call":
                report.perflab = to_plain(result)
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _tell(self, case: str) -> None:
        result, settings = self._results[case], self._case_settings[case]
        if result.failure is not None:
            pytest.fail(result.failure, pytrace=False)
        judgement = result.judgement
        failure = failure_of(self._config, result, settings)
        if failure is not None:
            pytest.fail(failure, pytrace=False)
        if judgement.verdict in (Verdict.SKIPPED, Verdict.OOM):
            pytest.skip("; ".join(judgement.reasons) or "out of memory")

    # --- comparing --------------------------------------------------------------------------------------

    def _compare(self, items: list[pytest.Item]) -> None:
        against = self._settings.against
        assert against is not None
        cases = [case_id(item) for item in items if case_id(item) not in self._left_out]
        policy = PairedPolicy(threshold=self._settings.against_threshold)
        found = Comparison(most_failures=self._config.getoption("maxfail", 0) or 0)
        device, waiting = str(self._device), self._progress.waiting
        self._progress.begin("")
        # Lock the device first, then the worktree: re-measuring a doubtful case takes the locks in the same order.
        with (
            device_turn(device, waiting, self._budget.is_over),
            two_sides(self._config, against, list(self._case_settings), device, waiting) as (
                starts,
                base,
            ),
        ):
            self.notes[:] = [f"head: {starts.head.label} · base: {base.label}"]
            budgets = {case: turns_ns(self._case_settings[case]) for case in cases}
            patience_s = max((self._case_settings[case].patience_s() for case in cases), default=ANSWER_WITHIN_S)
            floor_ns = {case: self._case_settings[case].floor_ns for case in cases}
            limits = Limits(
                budgets,
                self._budget.measuring_s,
                witness_of_host(),
                answer_within_s=patience_s,
                floor_ns=floor_ns,
                old_names=partial(old_names, starts.head.root, base.root),
            )
            if starts.only_here:
                self.notes.append(f"not in {base.label}: {format_names(starts.only_here)}")
            explained: dict[str, evidence.Found] = {}
            # Starting a round's processes takes about as much CPU time as this process has used so far.
            self._round_s = time.process_time() + sum(PER_TURN * ns / 1e9 + PER_CASE_S for ns in budgets.values())
            if cases:
                waiting(how_long(len(cases), base.label, policy, self._round_s, self._settings.total_budget_s))
            try:
                compare(
                    cases,
                    starts.start,
                    policy,
                    limits,
                    self._say,
                    into=found,
                    stands=lambda measured: self._stands(found, base, policy, measured),
                )
                limits = replace(limits, seconds_left=self._budget.left_s)
                self._explain(conclude(found, base, policy, self._case_settings), starts, limits, base, explained)
            finally:
                self._progress.clear()
                concluded = conclude(found, base, policy, self._case_settings)
                for case, why in explained.items():
                    if (record := concluded[case].record) is not None:
                        concluded[case] = changed(concluded[case], outcome=why.within(record))
                self._take(items, concluded)
                found.base_only = [case for case in found.base_only if case not in self._notes.cases]
                self.notes += _said_of(found)
                if limits.ancestry.refused is not None and found.judged:
                    self.notes.append(f"processes were started apart, not forked: {limits.ancestry.refused}")

    def _explain(
        self,
        concluded: Mapping[str, Result],
        starts: Starts,
        limits: Limits,
        base: Tree,
        into: dict[str, evidence.Found],
    ) -> None:
        """Examine the cases that became worse, the worst ones first, and put their explanations into ``into``."""
        worse = [one for one in concluded.values() if self._is_to_explain(one)]
        worse.sort(key=lambda one: size_of(one.judgement), reverse=True)
        enough = evidence.could_not(evidence.ENOUGH)
        into.update(
            {one.case: evidence.not_looked(one.judgement, base.label, enough) for one in worse[evidence.MOST :]}
        )
        asked = {
            one.case: evidence.Asked(one.judgement, self._case_settings[one.case]) for one in worse[: evidence.MOST]
        }
        name = base.commit or str(self._settings.against)
        for case, found in evidence.explained_by_turns(asked, starts.start, limits, base.label, name, self._say):
            into[case] = found

    def _is_to_explain(self, one: Result) -> bool:
        return evidence.is_to_explain(one.judgement) and self._case_settings[one.case].evidence == "on"

    def _stands(self, found: Comparison, base: Tree, policy: PairedPolicy, measured: Sequence[str]) -> None:
        """Journal the cases' intermediate results, in case this process is killed, and mark cases that fail already."""
        concluded = conclude(found, base, policy, self._case_settings)
        for case in measured:
            if case in concluded:
                self._collected.keep(self._case_settings[case].told_in(concluded[case]))
        took_s, expected_s, self._round_s = found.took.again_s(measured), self._round_s, math.inf
        if took_s > WORTH_A_WORD * expected_s:
            self._progress.waiting(f"the first round took {rounded(took_s)}, so this takes longer")
        for case, result in concluded.items():
            one, judgement = found.cases[case], result.judgement
            # A case that fails by counts or memory gets no more pairs if its cause is examined, which saves time for
            # the examination. If evidence is off, the case's time is measured to the end.
            by_exact = self._is_to_explain(result) and bool(exactly_worse(judgement))
            one.fails = result.failure is not None or (by_exact and len(one.weighed) >= WEIGHING_ROUNDS)
        suspects = found.in_stage(Stage.OPEN, policy)
        self._budget.causes_s = evidence.kept_s(
            one.judgement
            for case, one in concluded.items()
            if self._is_to_explain(one) or found.cases[case] in suspects
        )

    def _say(self, case: str, what: str) -> None:
        self._progress.label(case)
        self._progress.show(what)

    def _take(self, items: list[pytest.Item], concluded: Mapping[str, Result]) -> None:
        for item in items:
            result = concluded.get(case_id(item))
            if case_id(item) in self._left_out:
                result = without_numbers(case_id(item), Verdict.SKIPPED, self._left_out[case_id(item)])
            if result is not None:  # None: the comparison ended before it reached this case
                self._results[case_id(item)] = result


def how_long(cases: int, base: str, policy: PairedPolicy, round_s: float, total_s: float | None) -> str:
    """Return the message about a comparison's expected duration; the number of rounds depends on the results."""
    fewest, most = policy.screen_pairs, policy.looks[-1]
    limit = "" if total_s is None else f"; --perf-total-budget ends it after {format_ns(total_s * 1e9)}"
    return (
        f"A/B of {format_count(cases, 'case')} with {base}: about {rounded(fewest * round_s)} if nothing changed, in "
        f"{fewest} rounds; what may be slower takes up to {most - fewest} more{limit}"
    )


def rounded(seconds: float) -> str:
    """Format a roughly known time: in steps of 5 s, from two minutes on in minutes."""
    return f"{max(1, round(seconds / 5)) * 5} s" if seconds < 120 else f"{round(seconds / 60)} min"


def old_names(head_root: Path, base_root: Path, head: Sequence[str], base: Sequence[str]) -> dict[str, str]:
    """Return the base's names of cases whose tests were moved or renamed, by the head's names of the cases."""
    gone = {case: base_root for case in set(base) - set(head)}

    @functools.cache
    def text_of(case: str) -> str | None:
        path = gone.get(case, head_root) / file_of(case)
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None

    found = {case: moved_from(case, gone, text_of) for case in head if case not in base}
    times = Counter(found.values())
    return {case: was for case, was in found.items() if was is not None and times[was] == 1}


def _said_of(found: Comparison) -> list[str]:
    """Return the notes on a comparison that its table does not contain."""
    said = []
    if found.base_only:
        said.append(f"only in the base: {format_names(found.base_only)}")
    unlike: set[str] = set()
    for one in found.cases.values():
        if (before := one.turns(BASE)) and (now := one.turns(HEAD)):
            unlike |= {*differing(before[0].ready.environment, now[0].ready.environment).values()}
    if unlike:
        said.append(f"head and base differ in more than the code: {', '.join(sorted(unlike))}")
    if found.out_of_time:
        said.append("--perf-total-budget ended the comparison before all suspects were confirmed")
    return said


def run(config: pytest.Config, settings: Settings, items: list[pytest.Item]) -> list[pytest.Item]:
    """Compare these cases before any test is reported; return an empty list, since no case is left to run.

    Raises:
        PerflabError: the first error found that would otherwise appear late.
    """
    against = Against(config, settings)
    config.pluginmanager.register(against, "perflab-against")
    against.check([item for item in items if "perf" in getattr(item, "fixturenames", ())])
    return []
