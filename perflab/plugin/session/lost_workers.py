"""Under pytest-xdist: reports the cases of a worker that crashed or was interrupted.

Cases that waited for a re-check in a worker that crashed are reported as failed; those of an interrupted one a
worker reports as it ends, when nobody listens any more. A worker that breaks with an internal error ends with the tests
that it had, and pytest-xdist takes what is left for the whole run.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from queue import Empty
from typing import Any

import pytest

_SAID = "its worker process crashed before its re-check"
_PATIENCE_S = 5.0
"""Workers that Ctrl-C has reached end within a moment; pytest-xdist kills others after twice as long."""


class LostWorkers:
    """In the controller: knows which tests each worker has begun and not ended, and reports those of one that is lost.

    Of the test that a worker crashed in, pytest-xdist tells.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._begun: dict[object, dict[str, tuple[str, int | None, str]]] = {}
        self._crashed: list[object] = []
        self._broken = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has begun, or ended."""
        begun = self._begun.setdefault(getattr(report, "node", None), {})
        if report.when == "setup":
            begun[report.nodeid] = report.location
        elif report.when != "call":  # its teardown, or a crash
            begun.pop(report.nodeid, None)

    def pytest_internalerror(self) -> None:
        """A worker has broken, or this process has."""
        self._broken = True

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """A worker has ended, by a crash if there is an error."""
        if error:
            self._crashed.append(node)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Once all workers have ended, report what was lost: before the exit status is known."""
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
        """Take the reports that workers give out because they were interrupted too."""
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
