"""Under pytest-xdist: tells the controller which perf cases the workers collected.

Of themselves they send no more than the names of all chosen tests. Which of them are perf cases, so that one that takes
its worker down still gets its line, they tell through a file that the controller names. Controllers load this module in
runs without perf cases too.
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

from perflab.plugin.session.lost_workers import LostWorkers

if TYPE_CHECKING:
    from perflab.plugin.noting import AllNotes

_CASES_FILE = "perflab_cases"
"""Key of a worker's input."""
_COLLECTION = "perflab_collection"
"""Key of a worker's output."""


def tell(config: pytest.Config, cases: list[str], seen: object, announced: list[str]) -> None:
    """In a worker, once it is settled which perf cases run.

    Args:
        config: of the worker.
        cases: node ids of all perf cases, in order.
        seen: what was collected, as plain data. It is sent when the worker ends.
        announced: what is to be said before the first test.
    """
    config.workeroutput[_COLLECTION] = seen  # type: ignore[attr-defined]
    asked = config.workerinput.get(_CASES_FILE)  # type: ignore[attr-defined]
    if asked is None:
        return
    file = Path(asked)
    half = file.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):  # then the table is in the order of arrival, and no less true
        half.write_text(json.dumps([cases, announced]), encoding="utf-8")
        half.replace(file)


class Workers:
    """In the controller: hooks around its workers."""

    def __init__(self, config: pytest.Config, notes: AllNotes) -> None:
        self._config = config
        self._notes = notes
        self._file = Path(tempfile.gettempdir(), f"perflab-cases-{uuid.uuid4().hex}.json")

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Name the file to a worker that is being started, and see whether it crashes with one of them."""
        if not node.config.pluginmanager.hasplugin("perflab-lost"):
            node.config.pluginmanager.register(LostWorkers(node.config), "perflab-lost")
        node.workerinput[_CASES_FILE] = str(self._file)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """Take the list, and say what becomes of the cases.

        The collecting side is loaded now if there are any: later that would disturb one of them.
        """
        if self._notes.cases:  # each worker has ended collecting, and they tell the same
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
        """Take what a worker has collected; one that crashed cannot say."""
        self._notes.seen.append(getattr(node, "workeroutput", {}).get(_COLLECTION))

    def pytest_unconfigure(self) -> None:
        """Leave no file behind."""
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)
