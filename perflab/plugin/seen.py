"""What this process collects, noted before anything is deselected: stale baselines are told by it.

Under pytest-xdist the workers collect and not the controller; each sends it what it saw as plain data when it ends.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest
from _pytest.compat import NOTSET

from perflab.gate.case_files import module_of
from perflab.gate.stale import Collection, Function
from perflab.plugin.settings import Settings
from perflab.plugin.stash import is_worker
from perflab.records import to_plain

SEEN_BY_WORKER = "perflab_collection"
"""Key of a worker's output."""


SEEN = pytest.StashKey["Seen"]()


class Seen:
    """Notes which files were collected without a problem, and all of their tests."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._collected: set[str] = set()
        self._troubled: set[str] = set()
        self._items: list[pytest.Item] = []
        self.collection: Collection | None = None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that was skipped or failed to be collected, or a class in it, was not seen whole."""
        path = report.nodeid.split("::", 1)[0]
        if not report.passed:
            self._troubled.add(path)
        elif path == report.nodeid:
            self._collected.add(path)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """All tests, before -k, -m and others choose."""
        self._items = list(items)
        yield

    def conclude(self) -> None:
        """Boil down what was seen, for files that have baselines. Called if the session has to do with them."""
        files: dict[str, dict[str, list[pytest.Item]]] = {path: {} for path in self._whole_files()}
        for item in self._items:
            path, _, name = item.nodeid.partition("::")
            if path in files:
                files[path].setdefault(name.partition("[")[0], []).append(item)
        self._items = []
        self.collection = Collection(
            files={
                path: {name: _as_function(items) for name, items in functions.items()}
                for path, functions in files.items()
            }
        )
        if is_worker(self._config):
            self._config.workeroutput[SEEN_BY_WORKER] = to_plain(self.collection)  # type: ignore[attr-defined]

    def _whole_files(self) -> set[str]:
        config = self._config
        single = [argument.split("::", 1)[0] for argument in config.args if "::" in argument]
        if config.getoption("lf", False) or (single and config.getoption("pyargs", False)):
            return set()  # --lf leaves out tests while it collects
        picked = {(config.invocation_params.dir / path).resolve() for path in single}
        stored = {path.stem for path in self._settings.baselines.glob("*/*.json")}
        return {
            path
            for path in self._collected - self._troubled
            if module_of(path) in stored and (config.rootpath / path).resolve() not in picked
        }


def _as_function(items: list[pytest.Item]) -> Function:
    marked: set[str] = set()
    given: dict[str, object] = {}
    arguments: set[str] = set()
    for item in items:
        for mark in item.iter_markers("parametrize"):
            names = mark.args[0] if mark.args else mark.kwargs.get("argnames", ())
            marked |= {name.strip() for name in (names.split(",") if isinstance(names, str) else names)}
        callspec = getattr(item, "callspec", None)
        given |= dict(callspec.params) if callspec is not None else {}
        arguments |= set(getattr(item, "fixturenames", ()))
    return Function(
        cases=[item.nodeid for item in items],
        marked=sorted(marked),
        generated=sorted(set(given) - marked),
        arguments=sorted(arguments),
        is_complete=all(value is not NOTSET for value in given.values()),
    )
