"""Reads a project's settings as pytest would, without running its tests."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from perflab.base.errors import SettingError
from perflab.running.config.reading import settings_of
from perflab.settings.settings import Settings


@dataclass(frozen=True)
class Project:
    """The configuration that pytest would use in the current directory."""

    settings: Settings
    root: Path
    import_path: list[str]
    """``sys.path`` after pytest has applied the ini key ``pythonpath``."""


class _Reader:
    """A plugin that reads the project's configuration, and ends pytest before it collects anything."""

    found: Project | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int:
        config._do_configure()
        self.found = Project(settings_of(config), config.rootpath, list(sys.path))
        return 0


def read_project() -> Project:
    """Return the settings of the project to which the current directory belongs, wherever its configuration file is.

    The project's conftest files are not loaded, since they need not be importable for this. ``addopts`` is ignored,
    since it may hold options that conftest files declare.

    Raises:
        SettingError: pytest cannot read the configuration; pytest's message is in the error.
    """
    reader, said = _Reader(), io.StringIO()
    command = ["-p", "perflab.plugin", "-p", "no:cacheprovider", "--noconftest", "-o", "addopts="]
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        pytest.main(command, plugins=[reader])
    if reader.found is None:
        raise SettingError(f"pytest's configuration cannot be read: {said.getvalue().strip()}", "fix it; see pytest -h")
    return reader.found
