"""Fails a case that hangs, and lets the run go on; if the case cannot be interrupted, ends the process and keeps the
results.

``--perf-timeout`` limits the time without a sign of life: a reading, a sample, an update of the progress line, the end
of a phase of the test. ``measure.watchdog`` watches and interrupts the work.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from perflab.base.data import changed, to_json, to_plain
from perflab.measure.calls.strays import one_process
from perflab.measure.machine.watchdog import Watchdog
from perflab.noting import NOTES, AllNotes, case_id
from perflab.processes.channel import Alive, say, to_parent
from perflab.results.records import Judgement, Verdict
from perflab.results.result import Result
from perflab.running.case.last_words import LastWords
from perflab.running.config.kinds import is_perf_case
from perflab.running.config.marker import for_case
from perflab.running.config.reading import settings_of
from perflab.units import format_ns

if TYPE_CHECKING:
    from perflab.settings.settings import Settings
    from perflab.tiers.job import Job

GRACE_S = 30.0
"""The time in seconds that an interrupted case may take to end, for the clean-up of its fixtures and contexts."""
CALLGRIND_FACTOR = 4.0
"""The factor by which time limits are longer under callgrind, where a process is some fifty times slower, mostly in
imports before its first case."""
WATCH: pytest.StashKey[Watch] = pytest.StashKey()
_REMEDY = (
    "run it alone, and look at the stacks; if it needs that long, raise the limit: perf.requires(setup_seconds=...), "
    '@pytest.mark.perf(timeout="1h"), or --perf-timeout=1h'
)


def patience_of(config: pytest.Config, job: Job, settings: Settings | None = None) -> float:
    """Return the seconds that a case of a job may go without a sign of life."""
    patience_s = (settings or settings_of(config)).patience_s()
    return CALLGRIND_FACTOR * patience_s if job.under_callgrind else patience_s


def beat(config: pytest.Config) -> None:
    """Record a sign of life of the running case."""
    watch = config.stash.get(WATCH, None)
    if watch is not None:
        watch.beat()


def expect(config: pytest.Config, settings: Settings, set_up_s: float, call_s: float) -> None:
    """Extend the time limit of the running case by its claimed times of set-up and of a call, in seconds."""
    watch = config.stash.get(WATCH, None)
    if watch is not None:
        watch.extend(settings.patience_s(set_up_s, call_s))


@contextlib.contextmanager
def suspended(config: pytest.Config) -> Iterator[None]:
    """Suspend the running case's time limit for the block, which waits for something with its own limit."""
    watch = config.stash.get(WATCH, None)
    if watch is None:
        yield
        return
    watch.pause()
    try:
        yield
    finally:
        watch.resume()


def _watching_hook(phase: str) -> Callable[[Watch, pytest.Item], Generator[None, object, object]]:
    """Return a hook of ``Watch`` that watches this phase of a case."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def watch(self: Watch, item: pytest.Item) -> Generator[None, object, object]:
        with self.watching(item, phase):
            return (yield)

    return watch


class Watch:
    """Hooks around the perf cases of this process.

    Args:
        config: the session's configuration.
        job: the job of this process, if it measures for another process; else None.
    """

    def __init__(self, config: pytest.Config, job: Job | None) -> None:
        self._config = config
        self._job = job
        self._reports = job is not None and job.serve is None
        capture = config.pluginmanager.getplugin("capturemanager")
        with contextlib.nullcontext() if capture is None else capture.global_and_fixture_disabled():
            self._stderr = os.dup(2)
        self._words: LastWords | None = None
        self._running: tuple[pytest.Item, str] | None = None
        self._watchdog = Watchdog(GRACE_S, self._leave)
        self._limit_s = self._promised_s = 0.0
        config.stash[WATCH] = self

    def pause(self) -> None:
        """Suspend the running case's time limit until ``resume``."""
        if self._running is not None:
            self._watchdog.pause()

    def resume(self) -> None:
        """Restart the running case's time limit after ``pause``."""
        if self._running is not None:
            self._watchdog.resume()

    def beat(self) -> None:
        """Record a sign of life of the running case."""
        self._watchdog.beat()
        if time.monotonic() - self._promised_s > self._limit_s / 2:
            self._promise()

    def extend(self, limit_s: float) -> None:
        """Give the running case at least this many seconds from now on.

        Does nothing in a side's process, which the session that gives it turns watches.
        """
        if self._running is None:
            return
        self._limit_s = max(self._limit_s, limit_s)
        self._watchdog.extend(self._limit_s)
        self._promise()

    def _promise(self) -> None:
        """Tell the process that started this one how long a case may be silent, including the time to end the case."""
        self._promised_s = time.monotonic()
        if self._reports:
            with contextlib.suppress(OSError):  # the process that started this one has ended
                say(Alive(for_s=2 * (self._limit_s + GRACE_S)))

    pytest_runtest_setup = _watching_hook("set-up")
    pytest_runtest_call = _watching_hook("call")
    pytest_runtest_teardown = _watching_hook("teardown")

    pytest_enter_pdb, pytest_leave_pdb = pause, resume  # a debugger is open in between

    def pytest_unconfigure(self) -> None:
        """Close the file descriptor and the helper process that were opened."""
        if self._words is not None:
            self._words.close()
        os.close(self._stderr)

    @contextlib.contextmanager
    def watching(self, item: pytest.Item, phase: str) -> Iterator[None]:
        """Watch a phase of a test, if the test is a perf case."""
        if not is_perf_case(item):
            yield
            return
        with one_process(case_id(item)):
            if self._job is not None and self._job.serve is not None:
                yield  # a side waits for its turns, and the session that gives the turns limits the wait
                return
            settings = for_case(settings_of(self._config), item)
            self._limit_s = settings.patience_s()
            if self._job is not None:
                self._limit_s = patience_of(self._config, self._job, settings)

            def interrupt(stacks: str) -> NoReturn:
                # A rank's own report tells more, and comes soon; others wait for it in vain, but not for long.
                self._note_problem(item, says=self._job is None or self._job.place is None)
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
        """Send a hanging case's text and result to the helper process, which uses them if this process is stuck in C.

        The helper process acts after ``within_s`` seconds without another message; None: never.
        """
        from perflab.tiers.job import JobResult

        assert self._running is not None
        item, phase = self._running
        said = self._told(item, phase, "")
        ends = "C code keeps Python's lock, so nothing here can end it: this process is aborted, with its stacks"
        file, line, document = None, b"", None
        if self._job is not None:
            line = to_json(JobResult(case=case_id(item), problem=self._problem))
        elif self._notes is not None:
            file, document = self._notes.collect().places()
            line = to_json(changed(self._result(item), failure=said))
        self._words = self._words or LastWords(self._stderr, to_parent().fileno() if self._reports else None)
        self._words.leave(
            within_s, text=f"\nperf: {said}\nperf: {ends}", file=file, line=line.decode(), document=document
        )

    @property
    def _notes(self) -> AllNotes | None:
        """The notes of this process, if results arrive in it and cases are measured; else None."""
        notes = self._config.stash.get(NOTES, None)
        is_measured = self._job is None and not self._config.pluginmanager.hasplugin("perflab-untimed")
        return notes if isinstance(notes, AllNotes) and is_measured else None

    def _result(self, item: pytest.Item) -> Result:
        return Result(case=case_id(item), judgement=Judgement(verdict=Verdict.FAILED, reasons=[self._problem]))

    def _keep_what_there_is(self, item: pytest.Item, text: str) -> None:
        """Print why this process is about to end, since the case cannot be interrupted, and keep the results."""
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

    def _note_problem(self, item: pytest.Item, *, says: bool = True) -> None:
        from perflab.running.case.perf import STATE
        from perflab.tiers.job import JobResult

        if STATE in item.stash:
            item.stash[STATE].problem = self._problem
        if self._reports and says:
            with contextlib.suppress(OSError):  # the process that started this one has ended
                say(JobResult(case=case_id(item), problem=self._problem))
