"""Which perf cases there are, and in which order: known where tests are collected, told to where results meet.

Under pytest-xdist the workers collect, and send no more than the names of all chosen tests. Which of them are perf
cases, so that one that takes its worker down still gets its line, they tell through a file that the controller names.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perflab.documents import weave

_FOUND = pytest.StashKey[list[str]]()
_ORDER = pytest.StashKey[list[str]]()
_KEY = "perflab_cases"


def note_found(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Before any are deselected: the perf cases among the items, which shards of a run have in common."""
    config.stash[_FOUND] = [item.nodeid for item in items if item.get_closest_marker("perf") is not None]


def tell_order(config: pytest.Config, chosen: Sequence[pytest.Item]) -> None:
    """Once it is settled which perf cases run, and in which order."""
    found: list[str] = config.stash.get(_FOUND, [])
    order = weave([[item.nodeid for item in chosen], found])
    config.stash[_ORDER] = order
    asked = getattr(config, "workerinput", {}).get(_KEY)
    if asked is None:
        return
    file = Path(asked)
    half = file.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):  # then the table is in the order of arrival, and no less true
        half.write_text(json.dumps(order), encoding="utf-8")
        half.replace(file)


class CaseList:
    """The collecting side's view of it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._file: Path | None = None
        self._told: list[str] = []

    def ask(self, node: Any) -> None:
        """Name the file to a worker that is being started."""
        if self._file is None:
            self._file = Path(tempfile.gettempdir(), f"perflab-cases-{uuid.uuid4().hex}.json")
        node.workerinput[_KEY] = str(self._file)

    def collected(self) -> list[str]:
        """Node ids of all perf cases, chosen or not; empty as long as nobody has collected."""
        if not self._told and self._file is not None:
            with contextlib.suppress(OSError):
                self._told = json.loads(self._file.read_text(encoding="utf-8"))
        return self._told or self._config.stash.get(_ORDER, [])

    def forget(self) -> None:
        """Leave no file behind."""
        if self._file is not None:
            self.collected()
            with contextlib.suppress(OSError):
                self._file.unlink(missing_ok=True)
