"""Restores the limit of open files after a test that lowered it: otherwise nothing could be re-measured or saved."""

from __future__ import annotations

import resource
from collections.abc import Generator

import pytest


class OpenFiles:
    """Hooks around every test of this process that check the limit of open files."""

    def __init__(self) -> None:
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Check the limit as soon as the test's body has ended, before judging the case opens files."""
        try:
            return (yield)
        finally:
            left, before = resource.getrlimit(resource.RLIMIT_NOFILE)[0], self._limits[0]
            if left < before:
                said = f"{item.nodeid} left the limit of open files (RLIMIT_NOFILE) at {left}"
                try:
                    resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)
                except ValueError:  # the hard limit was lowered too, and raising it needs privileges
                    pytest.exit(
                        f"{said} for good, so nothing more can be opened: have the test lower the soft one alone"
                    )
                item.warn(pytest.PytestWarning(f"{said}, and it was put back to {before}"))
