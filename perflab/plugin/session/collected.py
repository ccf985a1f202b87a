"""Summarises what a process collected, to find stale baselines.

Under pytest-xdist the workers collect and not the controller; each sends it what it saw as plain data when it ends.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from perflab.plugin.config.kinds import is_perf_case
from perflab.plugin.noting import Notes, case_id
from perflab.store.case_files import module_of, name_of
from perflab.store.stale import Collection


def collection_of(config: pytest.Config, notes: Notes, baselines: Path) -> Collection:
    """What was seen of the files that have baselines."""
    files: dict[str, list[str]] = {path: [] for path in sorted(_whole_files(config, notes, baselines))}
    for item in notes.items:
        path = case_id(item).partition("::")[0]
        if path in files and is_perf_case(item):
            files[path].append(name_of(case_id(item)))
    return Collection(files=files)


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
