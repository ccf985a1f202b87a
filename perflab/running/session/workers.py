"""Receives what other processes ran: pytest-xdist's workers, and tests whose reports are logged as if they ran here.

Workers themselves send only the names of all selected tests. Through a file that the controller names, they also tell
which of the tests are perf cases, so that a case that crashes its worker still gets its line in the table. Controllers
load this module in runs without perf cases too.

Cases that waited for a re-check in a crashed worker are reported as failed. An interrupted worker reports its waiting
cases as it ends, when pytest-xdist no longer reads reports, so this module reads them. A worker with an internal error
ends early, and pytest-xdist takes the remaining tests for the whole run, so this module ends the session with an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
import uuid
from collections.abc import Generator, Iterable
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from perflab.noting import AllNotes

_CASES_FILE = "perflab_cases"
"""The key in a worker's input of the path of the file of cases."""
_COLLECTION = "perflab_collection"
"""The key in a worker's output of its collection."""
_SAID = "its worker process crashed before its re-check"
_PATIENCE_S = 5.0
"""The time in seconds to wait for interrupted workers, which end within a moment; pytest-xdist kills workers after
twice as long."""


def tell(config: pytest.Config, cases: list[str], selected: list[str], seen: object, announced: list[str]) -> None:
    """Send a worker's perf cases to the controller, once it is decided which of them run.

    Args:
        config: the worker's configuration.
        cases: node ids of all perf cases, in order.
        selected: those that are to run.
        seen: the worker's collection, as plain data. It is sent when the worker ends.
        announced: the lines to print before the first test.
    """
    if not hasattr(config, "workerinput"):  # a job, whose session has collected all itself
        return
    config.workeroutput[_COLLECTION] = seen  # type: ignore[attr-defined]
    asked = config.workerinput.get(_CASES_FILE)
    if asked is None:
        return
    file = Path(asked)
    half = file.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):  # without the file, the table is in the order of arrival, but still correct
        half.write_text(json.dumps([cases, selected, announced]), encoding="utf-8")
        half.replace(file)


class Workers:
    """The controller's hooks around its workers."""

    def __init__(self, config: pytest.Config, notes: AllNotes) -> None:
        self._config = config
        self._notes = notes
        self._file = Path(tempfile.gettempdir(), f"perflab-cases-{uuid.uuid4().hex}.json")
        self._begun: dict[object, dict[str, tuple[str, int | None, str]]] = {}
        """The unfinished tests of each worker; pytest-xdist itself reports the test in which a worker crashed."""
        self._crashed: list[object] = []
        self._broken = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give a starting worker the path of the file of cases."""
        node.workerinput[_CASES_FILE] = str(self._file)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """Read the list of perf cases, and print the announcement about them.

        If there are perf cases, the code that collects results is loaded now; loading it later would disturb a case.
        """
        if self._notes.cases:  # already read: each worker finishes collecting, and all report the same cases
            return
        announced: list[str] = []
        with contextlib.suppress(OSError):
            self._notes.cases, self._notes.selected, announced = json.loads(self._file.read_text(encoding="utf-8"))
        if self._notes.cases:
            self._notes.collect()
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        for line in announced if reporter is not None else ():
            reporter.ensure_newline()
            reporter.write_line(line)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Store a worker's collection, None for a worker that crashed: one that ended with an error."""
        self._notes.seen.append(getattr(node, "workeroutput", {}).get(_COLLECTION))
        if error:
            self._crashed.append(node)

    def pytest_unconfigure(self) -> None:
        """Delete the file of cases."""
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note that a test has begun or ended."""
        begun = self._begun.setdefault(getattr(report, "node", None), {})
        if report.when == "setup":
            begun[report.nodeid] = report.location
        elif report.when != "call":  # the test's teardown, or a crash
            begun.pop(report.nodeid, None)

    def pytest_internalerror(self) -> None:
        """Note that a worker or this process had an internal error."""
        self._broken = True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Report the lost tests once all workers have ended, before the exit status is determined."""
        try:
            outcome = yield
        except KeyboardInterrupt:
            self._hear_workers_out()
            raise
        finally:
            for node in self._crashed:
                for case, location in self._begun.pop(node, {}).items():
                    report = pytest.TestReport(case, location, {}, "failed", f"{case}: {_SAID}", "???")  # type: ignore[arg-type]
                    report.node = node  # type: ignore[attr-defined]
                    self._config.hook.pytest_runtest_logreport(report=report)
        if self._broken:
            pytest.exit("a worker stopped with an internal error: tests are missing", pytest.ExitCode.INTERNAL_ERROR)
        return outcome

    def _hear_workers_out(self) -> None:
        """Process the reports that interrupted workers still send, for at most ``_PATIENCE_S``."""
        xdist: Any = self._config.pluginmanager.getplugin("dsession")
        talking, deadline = set(self._begun), time.monotonic() + _PATIENCE_S
        talking.discard(None)
        while talking and time.monotonic() < deadline:
            try:
                event, said = xdist.queue.get(timeout=0.1)
            except Empty:
                continue
            if event == "testreport":
                xdist.worker_testreport(**said)
            elif event in ("workerfinished", "errordown"):
                talking.discard(said["node"])


def log_reports(item: pytest.Item, reports: Iterable[pytest.TestReport]) -> None:
    """Log the reports of a test that ran in another process, as if it had run here."""
    hooks = item.ihook
    hooks.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in reports:
        hooks.pytest_runtest_logreport(report=report)
    hooks.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def report_of(config: pytest.Config, plain: Any) -> pytest.TestReport:
    """Return a report that another process has sent as plain data."""
    report = config.hook.pytest_report_from_serializable(config=config, data=plain)
    assert isinstance(report, pytest.TestReport)
    return report


def report_of_lost(item: pytest.Item, text: str, reason: str, place: str | None = None) -> pytest.TestReport:
    """Return the failed report of a test whose process ended before the test did.

    Args:
        item: the test.
        text: the report's text.
        reason: the short reason that a perf case's result has.
        place: the place of a perf case's result, if it is predicted.
    """
    from perflab.base.data import changed, to_plain
    from perflab.noting import case_id
    from perflab.running.case.crash_place import as_text
    from perflab.running.case.verdicts import unmeasured
    from perflab.running.config.kinds import is_perf_case

    shown = as_text(item, text)
    report = pytest.TestReport(item.nodeid, item.location, {name: 1 for name in item.keywords}, "failed", shown, "call")
    result = unmeasured(case_id(item), reason, report) if is_perf_case(item) else None
    if result is not None:
        report.perflab = to_plain(changed(result, place=place))  # type: ignore[attr-defined]
    return report
