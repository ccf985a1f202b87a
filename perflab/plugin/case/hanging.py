"""Fails a case that hangs and lets the run go on; if nothing interrupts it, ends the process and keeps the results.

``--perf-timeout`` bounds the time without a sign of life: a reading, a sample, whatever the progress line would tell,
the end of a phase of the test. How work is watched and interrupted, ``measure.watchdog`` knows.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from perflab.child import promise_life
from perflab.data import changed, to_json, to_plain
from perflab.measure.forks import one_process
from perflab.measure.watchdog import Watchdog
from perflab.plugin.case.last_words import LastWords
from perflab.plugin.config.kinds import is_perf_case
from perflab.plugin.config.marker import for_case
from perflab.plugin.noting import NOTES, AllNotes, case_id
from perflab.plugin.stash import settings_of
from perflab.records import Judgement, Verdict
from perflab.results import Result
from perflab.units import format_ns

if TYPE_CHECKING:
    from perflab.plugin.case.fresh_process import Job
    from perflab.plugin.config.settings import Settings

GRACE_S = 30.0
"""What a case may take to end once it was interrupted: its fixtures' and contexts' own endings."""
CALLGRIND_FACTOR = 4.0
"""Under callgrind a process is some fifty times slower, most of all in importing, before its first case."""
WATCH: pytest.StashKey[Watch] = pytest.StashKey()
_REMEDY = (
    "run it alone, and look at the stacks; if it needs that long, raise the limit: perf.requires(setup_seconds=...), "
    '@pytest.mark.perf(timeout="1h"), or --perf-timeout=1h'
)


def patience_of(config: pytest.Config, job: Job, settings: Settings | None = None) -> float:
    """How long a case of a job may go without a sign of life."""
    patience_s = (settings or settings_of(config)).patience_s()
    return CALLGRIND_FACTOR * patience_s if job.under_callgrind else patience_s


def beat(config: pytest.Config) -> None:
    """The case that is running gives a sign of life."""
    watch = config.stash.get(WATCH, None)
    if watch is not None:
        watch.beat()


def expect(config: pytest.Config, settings: Settings, set_up_s: float, call_s: float) -> None:
    """The case that is running says what it takes."""
    watch = config.stash.get(WATCH, None)
    if watch is not None:
        watch.extend(settings.patience_s(set_up_s, call_s))


@contextlib.contextmanager
def suspended(config: pytest.Config) -> Iterator[None]:
    """While the block waits for somebody who has a limit of its own, the case that is running has none."""
    watch = config.stash.get(WATCH, None)
    if watch is None:
        yield
        return
    watch.pause()
    try:
        yield
    finally:
        watch.resume()


class Watch:
    """Hooks around the perf cases of this process.

    Args:
        config: the session's configuration.
        job: in a process that measures for another one, its job.
    """

    def __init__(self, config: pytest.Config, job: Job | None) -> None:
        self._config = config
        self._job = job
        self._sign = Path(job.results) if job is not None and job.results is not None else None
        capture = config.pluginmanager.getplugin("capturemanager")
        with contextlib.nullcontext() if capture is None else capture.global_and_fixture_disabled():
            self._stderr = os.dup(2)
        self._words: LastWords | None = None
        self._running: tuple[pytest.Item, str] | None = None
        self._watchdog = Watchdog(GRACE_S, self._leave)
        self._limit_s = self._promised_s = 0.0
        config.stash[WATCH] = self

    def pause(self) -> None:
        """Give the case that is running no limit until ``resume``."""
        if self._running is not None:
            self._watchdog.pause()

    def resume(self) -> None:
        """Watch again."""
        if self._running is not None:
            self._watchdog.resume()

    def beat(self) -> None:
        """The case that is running gives a sign of life."""
        self._watchdog.beat()
        if time.monotonic() - self._promised_s > self._limit_s / 2:
            self._promise()

    def extend(self, limit_s: float) -> None:
        """The case that is running has at least so long from now on; a side is watched by whoever gives it turns."""
        if self._running is None:
            return
        self._limit_s = max(self._limit_s, limit_s)
        self._watchdog.extend(self._limit_s)
        self._promise()

    def _promise(self) -> None:
        """Tell whoever started this process how long a case may be silent, and what ending it may take."""
        self._promised_s = time.monotonic()
        if self._sign is not None:
            promise_life(self._sign, 2 * (self._limit_s + GRACE_S))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Watch the set-up of a case."""
        with self._watching(item, "set-up"):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Watch its body."""
        with self._watching(item, "call"):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Watch what its fixtures do afterwards."""
        with self._watching(item, "teardown"):
            return (yield)

    def pytest_enter_pdb(self) -> None:
        """Nobody hangs who is being looked at."""
        self.pause()

    def pytest_leave_pdb(self) -> None:
        """Watch again."""
        self.resume()

    def pytest_unconfigure(self) -> None:
        """Let go of what was opened."""
        if self._words is not None:
            self._words.close()
        os.close(self._stderr)

    @contextlib.contextmanager
    def _watching(self, item: pytest.Item, phase: str) -> Iterator[None]:
        if not is_perf_case(item):
            yield
            return
        with one_process(case_id(item)):
            if self._job is not None and self._job.serve is not None:
                yield  # it waits for its turns, and whoever gives them has a limit for it
                return
            settings = for_case(settings_of(self._config), item)
            self._limit_s = settings.patience_s()
            if self._job is not None:
                self._limit_s = patience_of(self._config, self._job, settings)

            def interrupt(stacks: str) -> NoReturn:
                self._note_problem(item)
                raise pytest.fail.Exception(self._told(item, phase, stacks), pytrace=False)

            def give_up(stacks: str) -> None:
                self._keep_what_there_is(item, self._told(item, phase, stacks))

            self._promise()
            self._running = item, phase
            with self._watchdog.watching(self._limit_s, interrupt, give_up):
                yield

    @property
    def _problem(self) -> str:
        return f"hung: no progress for {format_ns(1e9 * self._limit_s)}"

    def _told(self, item: pytest.Item, phase: str, stacks: str) -> str:
        where = f"\nwhere its threads were:\n{stacks}" if stacks else ""
        return f"{item.nodeid}: {self._problem}, in its {phase}\n  -> {_REMEDY}{where}"

    def _leave(self, within_s: float | None) -> None:
        """Leave word of what is watched, for another process to say and keep where no Python runs in this one."""
        from perflab.plugin.case.fresh_process import JobResult

        assert self._running is not None
        item, phase = self._running
        said = self._told(item, phase, "")
        ends = "C code keeps Python's lock, so nothing here can end it: this process is aborted, with its stacks"
        file, line, document = None, b"", None
        if self._job is not None:
            file, line = self._job.results, to_json(JobResult(case=case_id(item), problem=self._problem))
        elif self._notes is not None:
            file, document = self._notes.collect().places()
            line = to_json(changed(self._result(item), failure=said))
        self._words = self._words or LastWords(self._stderr)
        self._words.leave(
            within_s, text=f"\nperf: {said}\nperf: {ends}", file=file, line=line.decode(), document=document
        )

    @property
    def _notes(self) -> AllNotes | None:
        """Where results meet, if that is in this process and cases are measured."""
        notes = self._config.stash.get(NOTES, None)
        is_measured = self._job is None and not self._config.pluginmanager.hasplugin("perflab-untimed")
        return notes if isinstance(notes, AllNotes) and is_measured else None

    def _result(self, item: pytest.Item) -> Result:
        return Result(case=case_id(item), judgement=Judgement(verdict=Verdict.FAILED, reasons=[self._problem]))

    def _keep_what_there_is(self, item: pytest.Item, text: str) -> None:
        """Nothing interrupts the case, so the process is about to end: say why, and keep the results."""
        said = [f"\nperf: {text}", "perf: it could not be interrupted, so this process exits with status 1"]
        try:
            self._note_problem(item)
            if self._notes is not None:
                report: Any = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
                report.perflab = to_plain(self._result(item))
                held = self._config.pluginmanager.getplugin("perflab-held-reports")
                waiting = held.reports_as_they_are() if held is not None else []
                said += self._notes.collect().keep_at_the_end([*waiting, report])
        finally:
            os.write(self._stderr, ("\n".join(said) + "\n").encode("utf-8", "replace"))

    def _note_problem(self, item: pytest.Item) -> None:
        from perflab.plugin.case.fresh_process import JobResult, report_result
        from perflab.plugin.case.perf import STATE

        if STATE in item.stash:
            item.stash[STATE].problem = self._problem
        if self._sign is not None and self._job is not None:
            report_result(self._job, JobResult(case=case_id(item), problem=self._problem))
