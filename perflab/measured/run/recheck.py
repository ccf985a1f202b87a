"""Re-checks cases after all tests, and holds back their reports until then.

A test's call phase is over by then, and its fixtures are torn down; a re-check needs neither, since other processes run
it. So no case waits for its first measurement because another one looks slow. All suspects are re-measured in fresh
processes before any unsettled case is interleaved with its baseline's commit, which takes longer. In both steps, the
largest change comes first: the rest of a run's time goes to the worst cases.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from perflab.base.data import changed
from perflab.judging.counts import exactly_worse
from perflab.measured.run.before import Take, is_of_a_subtest
from perflab.measured.run.replicates import Remeasuring
from perflab.measured.run.settle import Evidence, Settling, may_settle
from perflab.measured.run.verdict import Judged, failure_of
from perflab.results.records import Judgement, Verdict
from perflab.running.case.crash_place import name_the_test
from perflab.running.case.progress import ProgressLine
from perflab.running.config.kinds import is_worker
from perflab.settings.settings import TotalBudget
from perflab.turns.evidence import kept_s

_ENDED = "the run ended before it was measured again"
_STAND_ASIDE = ("_pytest.runner", "pytest_rerunfailures")
"""Modules whose test protocol this one may replace: pytest's, and a plugin that acts only on tests to rerun."""


def needs_recheck(one: Judged) -> bool:
    """Whether re-measuring the case may change its verdict."""
    if one.settings.check == "off" or one.settings.update:
        return False
    return one.judgement.suspect or may_settle(one)


def size_of(judgement: Judgement) -> tuple[bool, float]:
    """Return a key that sorts suspects and unsettled cases by size.

    Cases that fail even without a re-check come first: by memory or exact counts. The second key is the ratio of the
    latency, divided by its limit.
    """
    change = judgement.latency
    over = change.ratio / change.limit if change is not None and change.limit is not None else 0.0
    return bool(exactly_worse(judgement)), over


def without_recheck(one: Judged) -> Judged:
    """Return a case that was not re-checked before the run ended: its first reading decides, with a reason."""
    if one.judgement.suspect:
        return one.not_rechecked(_ENDED)
    if one.judgement.verdict is not Verdict.INCONCLUSIVE:  # other verdicts need no reason
        return one
    return replace(one, judgement=changed(one.judgement, reasons=[*one.judgement.reasons, _ENDED]))


class Recheck:
    """Re-checks cases; remembers which kinds of re-check were useless in this run."""

    def __init__(
        self, config: pytest.Config, baselines: Path, progress: ProgressLine, budget: TotalBudget, turn: Take
    ) -> None:
        self._remeasuring = Remeasuring(config, progress, budget)
        self._settling = Settling(config, baselines, progress, budget)
        self.evidence = Evidence(config, self._settling, progress, budget)
        self._progress = progress
        self._budget = budget
        self._turn = turn

    def at_once(self, one: Judged) -> Judged:
        """Re-check one case whose test holds the device."""
        if one.judgement.suspect:
            one = self._remeasuring.again(one, settles=self._settling.has_code(one))
        return self.evidence.of(self._settling.settle(one) if may_settle(one) else one)

    def after_all(
        self,
        cases: Sequence[Judged],
        done: Callable[[int, Judged], None],
        learned: Callable[[int, Judged], None],
    ) -> None:
        """Re-check all cases that were held back.

        Args:
            cases: the cases.
            done: receives each case with its index in ``cases``, as soon as nothing more is to be done for it.
            learned: receives a case with its index as soon as its verdict is known, if that is earlier.
        """

        def largest_first(chosen: dict[int, Judged]) -> Iterator[tuple[int, Judged]]:
            return iter(sorted(chosen.items(), key=lambda pair: size_of(pair[1].judgement), reverse=True))

        suspects = {place: one for place, one in enumerate(cases) if one.judgement.suspect}
        unsettled = {place: one for place, one in enumerate(cases) if not one.judgement.suspect and may_settle(one)}
        failing = {place: one for place, one in enumerate(cases) if place not in suspects and place not in unsettled}

        def known(place: int, one: Judged) -> None:
            if self.evidence.wanted(one):
                failing[place] = one  # explained when all verdicts are known
                learned(place, one)
            else:
                done(place, self._explained(one))

        waiting = len(suspects)
        for place, suspect in largest_first(suspects):
            self._budget.causes_s = kept_s(one.judgement for one in (*failing.values(), suspect))
            with self._looking_at(suspect):
                one = self._remeasuring.again(suspect, waiting, settles=self._settling.has_code(suspect))
            waiting -= 1
            if may_settle(one):
                unsettled[place] = one
            else:
                known(place, one)
        for place, doubt in largest_first(unsettled):
            self._budget.causes_s = kept_s(one.judgement for one in failing.values())
            with self._looking_at(doubt):
                one = self._settling.settle(doubt)
            known(place, one)
        for place, one in largest_first(failing):
            done(place, self._explained(one))

    def _explained(self, one: Judged) -> Judged:
        """Return the case, with an explanation of its difference from before if one is wanted."""
        if not self.evidence.wanted(one):
            return self.evidence.or_why_not(one)
        with self._looking_at(one):
            return self.evidence.of(one)

    @contextlib.contextmanager
    def _looking_at(self, one: Judged) -> Iterator[None]:
        self._progress.begin(one.case)
        try:
            with self._turn(one.device):
                yield
        finally:
            self._progress.clear()


@dataclass(eq=False)
class _Held:
    """A test whose reports are held back."""

    item: pytest.Item
    judged: Judged
    reports: list[pytest.TestReport] = field(default_factory=list)


class HeldReports:
    """Runs the perf cases of this process, and holds back the reports of cases that need a re-check.

    Args:
        config: the session's configuration.
        recheck: re-checks the cases.
        conclude: receives the judged case before its reports are logged.
        attach: attaches a case's result to its report.
    """

    def __init__(
        self,
        config: pytest.Config,
        recheck: Recheck,
        conclude: Callable[[pytest.Item, Judged], None],
        attach: Callable[[pytest.Item, pytest.TestReport], None],
    ) -> None:
        self._config = config
        self._recheck = recheck
        self._conclude = conclude
        self._attach = attach
        self._stops_early = bool(config.getoption("maxfail", 0))
        self._running: pytest.Item | None = None
        self._now: _Held | None = None
        """The running test, once its reports are held back."""
        self._held: list[_Held] = []

    # --- while tests run ------------------------------------------------------------------------------------

    def hold(self, item: pytest.Item, judged: Judged) -> bool:
        """Hold back the reports of the running test; return False if the test must be re-checked now.

        It must be if another plugin runs the test, to rerun a failure; if the test is expected to fail; and if failures
        end the run (-x), since the first one must end it before another test begins.
        """
        if item is not self._running or item.get_closest_marker("xfail") is not None or self._stops_early:
            return False
        judged.state.exploration = None  # made by the case's own code, and may refer to a model
        self._now = _Held(item, judged)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a perf case as pytest does, except that its reports may be held back."""
        if item.get_closest_marker("perf") is None or _is_run_by_another(item):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        self._running = item
        try:
            runtestprotocol(item, nextitem=nextitem, log=False)  # pytest_runtest_makereport logs
        finally:
            held, self._running, self._now = self._now, None, None
            if held is not None:
                self._held.append(held)
                # The test's outcome gets another line than the one that ``-v`` has begun.
                reporter = self._config.pluginmanager.getplugin("terminalreporter")
                if reporter is not None and reporter.verbosity > 0:
                    reporter.write("WAITS (re-checked after all tests)")
        if held is None:
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Log a report at once, as pytest does, unless it is held back.

        This wrapper is the outermost one, so that the report is complete here.
        """
        report = yield
        if item is self._running and not is_of_a_subtest(item):
            if self._now is not None and report.when == "call" and not report.passed:
                self._now = None  # the test failed for another reason, which has precedence
            if self._now is None:
                item.ihook.pytest_runtest_logreport(report=report)
            else:
                self._now.reports.append(report)
        return report

    # --- when they have run ---------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Re-check once all tests have run; if the run ends before, log the held reports all the same."""
        try:
            outcome = yield
            _stop_if_asked(session)  # a worker of pytest-xdist leaves its loop without an exception
            self._check_again(session)
        finally:
            for held in self._held:
                self._give_out(held, without_recheck(held.judged))
        return outcome

    def reports_as_they_are(self) -> list[pytest.TestReport]:
        """Return the held tests' call reports with the results so far, for a process that ends before the re-check."""
        found = []
        for held in self._held:
            self._conclude(held.item, without_recheck(held.judged))
            for report in held.reports:
                if report.when == "call":
                    self._attach(held.item, report)
                    found.append(report)
        return found

    def _check_again(self, session: pytest.Session) -> None:
        held = list(self._held)

        def done(place: int, judged: Judged) -> None:
            self._held.remove(held[place])
            self._give_out(held[place], judged)
            _stop_if_asked(session)

        def learned(place: int, judged: Judged) -> None:
            held[place].judged = judged  # the result to report if the run ends before the case is explained

        self._recheck.after_all([one.judged for one in held], done, learned)

    def _give_out(self, held: _Held, judged: Judged) -> None:
        item = held.item
        self._conclude(item, judged)
        failure = failure_of(self._config, judged)
        with self._as_running(item):
            for report in held.reports:
                if report.when == "call":
                    if failure is not None:
                        # As if the test had called ``pytest.fail(failure, pytrace=False)``.
                        call = pytest.CallInfo.from_call(lambda: pytest.fail(failure, pytrace=False), when="call")
                        assert call.excinfo is not None
                        report.outcome, report.longrepr = "failed", item.repr_failure(call.excinfo)
                        name_the_test(item, call.excinfo, report)
                    self._attach(item, report)
                item.ihook.pytest_runtest_logreport(report=report)
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    @contextlib.contextmanager
    def _as_running(self, item: pytest.Item) -> Iterator[None]:
        """Mark a test as the running one: a worker of pytest-xdist sends reports under the running test's number."""
        workers = [one for one in self._config.pluginmanager.get_plugins() if hasattr(one, "item_index")]
        if is_worker(self._config):
            for worker in workers:
                worker.item_index = item.session.items.index(item)
        yield


def _stop_if_asked(session: pytest.Session) -> None:
    """End the session if -x, --maxfail or a plugin asked for it, as pytest's own loop does after each test.

    Raises:
        session.Failed: ``session.shouldfail`` is set.
        session.Interrupted: ``session.shouldstop`` is set.
    """
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)


def _is_run_by_another(item: pytest.Item) -> bool:
    """Whether another plugin runs the test itself, for example to rerun a failure: it needs the verdict at once."""
    for one in item.ihook.pytest_runtest_protocol.get_hookimpls():
        if one.hookwrapper or one.wrapper or isinstance(one.plugin, HeldReports):
            continue
        if one.function.__module__ not in _STAND_ASIDE:
            return True
    return bool(item.config.getoption("reruns", None)) or item.get_closest_marker("flaky") is not None
