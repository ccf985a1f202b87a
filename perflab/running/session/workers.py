"""Under pytest-xdist: tells the controller which perf cases the workers collected.

Workers themselves send only the names of all selected tests. Through a file that the controller names, they also tell
which of the tests are perf cases, so that a case that crashes its worker still gets its line in the table. Controllers
load this module in runs without perf cases too.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from perflab.running.session.lost_workers import LostWorkers

if TYPE_CHECKING:
    from perflab.noting import AllNotes

_CASES_FILE = "perflab_cases"
"""The key in a worker's input of the path of the file of cases."""
_COLLECTION = "perflab_collection"
"""The key in a worker's output of its collection."""


def tell(config: pytest.Config, cases: list[str], seen: object, announced: list[str]) -> None:
    """Send a worker's perf cases to the controller, once it is decided which of them run.

    Args:
        config: the worker's configuration.
        cases: node ids of all perf cases, in order.
        seen: the worker's collection, as plain data. It is sent when the worker ends.
        announced: the lines to print before the first test.
    """
    config.workeroutput[_COLLECTION] = seen  # type: ignore[attr-defined]
    asked = config.workerinput.get(_CASES_FILE)  # type: ignore[attr-defined]
    if asked is None:
        return
    file = Path(asked)
    half = file.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):  # without the file, the table is in the order of arrival, but still correct
        half.write_text(json.dumps([cases, announced]), encoding="utf-8")
        half.replace(file)


class Workers:
    """The controller's hooks around its workers."""

    def __init__(self, config: pytest.Config, notes: AllNotes) -> None:
        self._config = config
        self._notes = notes
        self._file = Path(tempfile.gettempdir(), f"perflab-cases-{uuid.uuid4().hex}.json")

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give a starting worker the path of the file of cases, and register the plugin that detects lost workers."""
        if not node.config.pluginmanager.hasplugin("perflab-lost"):
            node.config.pluginmanager.register(LostWorkers(node.config), "perflab-lost")
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
            self._notes.cases, announced = json.loads(self._file.read_text(encoding="utf-8"))
        if self._notes.cases:
            self._notes.collect()
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        for line in announced if reporter is not None else ():
            reporter.ensure_newline()
            reporter.write_line(line)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Store a worker's collection; None for a worker that crashed."""
        self._notes.seen.append(getattr(node, "workeroutput", {}).get(_COLLECTION))

    def pytest_unconfigure(self) -> None:
        """Delete the file of cases."""
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)
