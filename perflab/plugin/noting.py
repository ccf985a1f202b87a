"""Notes what a run does until it is known whether the run has perf cases. Every run loads this module.

With the first perf case, ``session/starting.py`` and ``session/results.py`` read the notes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from perflab.plugin.session.results import Collected

UNTIMED = "perflab_untimed"
"""The attribute of reports that marks a case as not measured; pytest-xdist sends the attribute to its controller."""
CASE: pytest.StashKey[str] = pytest.StashKey()
"""A test's id before plugins changed the id, as pytest-xdist does in workers by appending ``@group``."""


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


class AllNotes(Notes):
    """The notes of the process in which results arrive: failures of other tests, and the workers' collections.

    Results of perf cases are passed on to ``Collected``.
    """

    def __init__(self, config: pytest.Config) -> None:
        super().__init__()
        self._config = config
        self._collected: Collected | None = None
        self.failures: dict[str, None] = {}
        """Node ids of failed tests and files that are not perf cases, in order."""
        self.untimed: dict[str, str] = {}
        """The status of each perf case that was not measured, by node id: ``ran``, or ``not`` and the tier's name."""
        self.cases: list[str] = []
        """Node ids of every perf case, selected or not, in order; empty unless some were selected."""
        self.seen: list[object] = []
        """The collection of each process, as plain data; None for a process that crashed."""

    def collect(self) -> Collected:
        """Return the object that collects results; load and register it at the first call.

        Raises:
            SettingError: a setting that cannot be used.
        """
        if self._collected is None:
            from perflab.plugin.session.results import Collected
            from perflab.plugin.stash import settings_of

            self._collected = Collected(self._config, settings_of(self._config), self)
            self._config.pluginmanager.register(self._collected, "perflab-collected")
        return self._collected

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file, and note a failure if the file cannot be collected."""
        super().pytest_collectreport(report)
        if report.failed:
            self.failures[report.nodeid] = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Pass on the results of perf cases; for other tests, note failures."""
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

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print that perf cases ran untimed, in whichever process they ran."""
        if self.untimed:
            from perflab.plugin.config.run_mode import untimed_line

            terminalreporter.ensure_newline()
            terminalreporter.write_line(untimed_line(self._config, self.untimed))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self) -> None:
        """Register the hooks around pytest-xdist's workers, before the first worker is started."""
        from perflab.plugin.session.workers import Workers

        self._config.pluginmanager.register(Workers(self._config, self), "perflab-workers")


NOTES: pytest.StashKey[Notes] = pytest.StashKey()
