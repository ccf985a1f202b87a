"""Notes what a run does, until it is known whether there are perf cases. Every run loads this module.

With the first perf case, ``session/starting.py`` and ``session/results.py`` read the notes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from perflab.plugin.session.results import Collected

UNTIMED = "perflab_untimed"
"""An attribute of the reports of cases that were not measured, which pytest-xdist carries to its controller."""
CASE: pytest.StashKey[str] = pytest.StashKey()
"""On a test: its id before plugins changed it, as pytest-xdist's workers do that add ``@group``."""


def case_id(item: pytest.Item) -> str:
    """The id that names a test in results, baselines and other processes; reports to pytest bear ``item.nodeid``."""
    return item.stash.get(CASE, item.nodeid)


class Notes:
    """Of a process that collects: the files that were collected, and all of their tests."""

    def __init__(self) -> None:
        self.collected: set[str] = set()
        self.troubled: set[str] = set()
        """Files that were skipped or failed to be collected, or a class in them: they were not seen whole."""
        self.items: list[pytest.Item] = []
        """All tests, before -k, -m and others choose; until collecting has ended."""
        self.shown: list[str] = []
        """Perf cases in the order in which they are shown, where they are measured in another one."""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file, or that it is in trouble."""
        path = report.nodeid.split("::", 1)[0]
        if not report.passed:
            self.troubled.add(path)
        elif path == report.nodeid:
            self.collected.add(path)


class AllNotes(Notes):
    """Where results meet: what failed beside perf cases too, and what pytest-xdist's workers say. Results go on."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__()
        self._config = config
        self._collected: Collected | None = None
        self.failures: dict[str, None] = {}
        """Node ids of what failed and is no perf case, in order."""
        self.untimed: dict[str, str] = {}
        """What became of perf cases that were not measured, by node id."""
        self.cases: list[str] = []
        """Node ids of all perf cases, chosen or not, in order; empty unless some were chosen."""
        self.seen: list[object] = []
        """What each process has collected, as plain data; None: one that crashed cannot say."""

    def collect(self) -> Collected:
        """Load the collecting side, if that has not been done.

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
        """Note a file, and that the run fails for it if it cannot be collected."""
        super().pytest_collectreport(report)
        if report.failed:
            self.failures[report.nodeid] = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Hand on what is said of a perf case; of other tests, note failures."""
        if report.when == "setup":  # a test that is run again begins anew
            self.failures.pop(report.nodeid, None)
        if hasattr(report, UNTIMED):
            self.untimed[report.nodeid] = getattr(report, UNTIMED)
        crashed = report.when not in ("setup", "call", "teardown")
        if hasattr(report, "perflab") or (crashed and self.case_of(report) in self.cases):
            self.collect().take(report)
        elif report.failed:
            self.failures[report.nodeid] = None

    def case_of(self, report: pytest.TestReport) -> str:
        """The case of a report that names its test alone: pytest-xdist's of a crash, which may end in ``@group``."""
        plain = report.nodeid.rpartition("@")[0]
        return plain if report.nodeid not in self.cases and plain in self.cases else report.nodeid

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say that perf cases ran untimed, wherever they ran."""
        if self.untimed:
            from perflab.plugin.config.run_mode import untimed_line

            terminalreporter.ensure_newline()
            terminalreporter.write_line(untimed_line(self._config, self.untimed))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self) -> None:
        """Listen to pytest-xdist's workers, from before the first is started."""
        from perflab.plugin.session.workers import Workers

        self._config.pluginmanager.register(Workers(self._config, self), "perflab-workers")


NOTES: pytest.StashKey[Notes] = pytest.StashKey()
