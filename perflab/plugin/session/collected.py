"""Summarises what a process collected, to find stale baselines.

Under pytest-xdist the workers collect and not the controller; each sends it what it saw as plain data when it ends.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.compat import NOTSET

from perflab.plugin.noting import Notes
from perflab.store.case_files import module_of
from perflab.store.stale import Collection, Function


def collection_of(config: pytest.Config, notes: Notes, baselines: Path) -> Collection:
    """What was seen of the files that have baselines."""
    files: dict[str, dict[str, list[pytest.Item]]] = {path: {} for path in _whole_files(config, notes, baselines)}
    for item in notes.items:
        path, _, name = item.nodeid.partition("::")
        if path in files:
            files[path].setdefault(name.partition("[")[0], []).append(item)
    return Collection(
        files={
            path: {name: _as_function(items) for name, items in functions.items()} for path, functions in files.items()
        }
    )


def _whole_files(config: pytest.Config, notes: Notes, baselines: Path) -> set[str]:
    single = [argument.split("::", 1)[0] for argument in config.args if "::" in argument]
    if config.getoption("lf", False) or (single and config.getoption("pyargs", False)):
        return set()  # --lf leaves out tests while it collects
    picked = {(config.invocation_params.dir / path).resolve() for path in single}
    stored = {path.stem for path in baselines.glob("*/*.json")}
    return {
        path
        for path in notes.collected - notes.troubled
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
