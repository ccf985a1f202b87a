"""Under pytest-xdist: reports the cases of a worker that crashed or was interrupted.

Cases that waited for a re-check in a crashed worker are reported as failed. An interrupted worker reports its waiting
cases as it ends, when pytest-xdist no longer reads reports, so this module reads them. A worker with an internal error
ends early, and pytest-xdist takes the remaining tests for the whole run, so this module ends the session with an error.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from queue import Empty
from typing import Any

import pytest

_SAID = "its worker process crashed before its re-check"
_PATIENCE_S = 5.0
"""The time in seconds to wait for interrupted workers, which end within a moment; pytest-xdist kills workers after
twice as long."""


class LostWorkers:
    """The controller's plugin that tracks the unfinished tests of each worker, and reports those of a lost worker.

    pytest-xdist itself reports the test in which a worker crashed.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._begun: dict[object, dict[str, tuple[str, int | None, str]]] = {}
        self._crashed: list[object] = []
        self._broken = False

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

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Note a worker that has ended by a crash: one that ended with an error."""
        if error:
            self._crashed.append(node)

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
