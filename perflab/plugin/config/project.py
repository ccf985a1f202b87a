"""Reads a project's settings as pytest would, without running its tests."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from perflab.errors import SettingError
from perflab.plugin.config.settings import Settings
from perflab.plugin.stash import settings_of


@dataclass(frozen=True)
class Project:
    """What pytest would work with here."""

    settings: Settings
    root: Path
    import_path: list[str]
    """``sys.path`` as the ini key ``pythonpath`` has it."""


class _Reader:
    """A plugin that takes what it came for, and ends pytest before it collects anything."""

    found: Project | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int:
        config._do_configure()
        self.found = Project(settings_of(config), config.rootpath, list(sys.path))
        return 0


def read_project() -> Project:
    """The settings of the project that the current directory belongs to, wherever its configuration stands.

    Without its conftest files, which need not be importable to know this, and without ``addopts``, which may hold
    options that they declare.

    Raises:
        SettingError: pytest cannot read the configuration; what it said is in the error.
    """
    reader, said = _Reader(), io.StringIO()
    command = ["-p", "perflab.plugin", "-p", "no:cacheprovider", "--noconftest", "-o", "addopts="]
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        pytest.main(command, plugins=[reader])
    if reader.found is None:
        raise SettingError(f"pytest's configuration cannot be read: {said.getvalue().strip()}", "fix it; see pytest -h")
    return reader.found
