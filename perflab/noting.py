"""Notes what a run does until it is known whether the run has perf cases. Every run loads this module.

With the first perf case, ``session/starting.py`` and ``session/results.py`` read the notes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perflab.results.result import Result

UNTIMED = "perflab_untimed"
"""The attribute of reports that marks a case as not measured; pytest-xdist sends the attribute to its controller."""
CASE: pytest.StashKey[str] = pytest.StashKey()
"""A test's id before plugins changed the id, as pytest-xdist does in workers by appending ``@group``."""

SAVES_NOTHING: pytest.StashKey[bool] = pytest.StashKey()
"""Set to True in a job of a sweep that leaves results to its session, as a worker of pytest-xdist does. A job is no
worker: other plugins expect of a worker what they have sent to it from its controller."""


def case_id(item: pytest.Item) -> str:
    """Return a test's id in results, baselines and other processes; pytest's reports use ``item.nodeid``."""
    return item.stash.get(CASE, item.nodeid)


class Notes:
    """The notes of a process that collects: the files that were collected, and all of their tests."""

    def __init__(self) -> None:
        self.collected: set[str] = set()
        self.troubled: set[str] = set()
        """Files that were partly or wholly skipped, or not collected for an error, so that some tests are unknown."""
        self.items: list[pytest.Item] = []
        """Every collected test, before -k, -m and others deselect some; emptied when the collection has ended."""
        self.shown: list[str] = []
        """Perf cases in the order in which they are shown, if they are measured in another order; else empty."""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note that a file was collected, or that some or all of it was not."""
        path = report.nodeid.split("::", 1)[0]
        if not report.passed:
            self.troubled.add(path)
        elif path == report.nodeid:
            self.collected.add(path)


class Collects(Protocol):
    """The object that collects the results of perf cases; it is loaded with the first of them."""

    preface: list[str] | None
    """The lines above the table of a run that compares with another version instead of baselines; else None."""

    def take(self, report: pytest.TestReport) -> None:
        """Take a perf case's result from its report."""

    def keep(self, result: Result) -> None:
        """Append a result to the journal, in which the last result of a case counts."""

    def keep_at_the_end(self, reports: Sequence[pytest.TestReport]) -> list[str]:
        """Take what a hanging run leaves, and write its files; return lines that say where they are."""

    def places(self) -> tuple[str | None, str | None]:
        """Return the paths of the journal and of the results file; None for a file that the run does not have."""


class AllNotes(Notes):
    """The notes of the process in which results arrive: failures of other tests, and the workers' collections.

    Results of perf cases are passed on to the object that collects them.
    """

    def __init__(self, config: pytest.Config, make: Callable[[pytest.Config, AllNotes], Collects]) -> None:
        """Prepare to note what happens; ``make`` loads and makes the object that collects results."""
        super().__init__()
        self._config = config
        self._make = make
        self._collected: Collects | None = None
        self.failures: dict[str, None] = {}
        """Node ids of failed tests and files that are not perf cases, in order."""
        self.untimed: dict[str, str] = {}
        """The status of each perf case that was not measured, by node id: ``ran``, or ``not`` and the tier's name."""
        self.cases: list[str] = []
        """Node ids of every perf case, selected or not, in order; empty unless some were selected."""
        self.selected: list[str] = []
        """Node ids of the perf cases that are to run, in order."""
        self._begun: set[str] = set()
        """Node ids of all tests that have begun, perf cases or not; pytest-xdist may add ``@group`` to one."""
        self.seen: list[object] = []
        """The collection of each process, as plain data; None for a process that crashed."""

    def collect(self) -> Collects:
        """Return the object that collects results; load and register it at the first call.

        Raises:
            SettingError: a setting that cannot be used.
        """
        if self._collected is None:
            self._collected = self._make(self._config, self)
            self._config.pluginmanager.register(self._collected, "perflab-collected")
        return self._collected

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file, and note a failure if the file cannot be collected."""
        super().pytest_collectreport(report)
        if report.failed:
            self.failures[report.nodeid] = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Pass on the results of perf cases; for other tests, note failures."""
        self._begun.add(report.nodeid)
        if report.when == "setup":  # a test that is run again: its earlier failure no longer counts
            self.failures.pop(report.nodeid, None)
        if hasattr(report, UNTIMED):
            self.untimed[report.nodeid] = getattr(report, UNTIMED)
        crashed = report.when not in ("setup", "call", "teardown")
        if hasattr(report, "perflab") or (crashed and self.case_of(report) in self.cases):
            self.collect().take(report)
        elif report.failed:
            self.failures[report.nodeid] = None

    def case_of(self, report: pytest.TestReport) -> str:
        """Return the case of a report whose node id may end in ``@group``, as in pytest-xdist's reports of crashes."""
        plain = report.nodeid.rpartition("@")[0]
        return plain if report.nodeid not in self.cases and plain in self.cases else report.nodeid

    def unreached(self) -> list[str]:
        """Return the selected perf cases that have not begun."""
        begun = self._begun | {name.rpartition("@")[0] for name in self._begun}
        return [case for case in self.selected if case not in begun]


NOTES: pytest.StashKey[Notes] = pytest.StashKey()
