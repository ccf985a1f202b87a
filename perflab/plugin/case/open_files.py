"""Puts back the limit of open files where a test has lowered it: else no case is measured again, and nothing saved."""

from __future__ import annotations

import resource
from collections.abc import Generator

import pytest


class OpenFiles:
    """Hooks around all tests of this process."""

    def __init__(self) -> None:
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Look at the limit as soon as the test's body has ended: whoever judges it opens files."""
        try:
            return (yield)
        finally:
            left, before = resource.getrlimit(resource.RLIMIT_NOFILE)[0], self._limits[0]
            if left < before:
                said = f"{item.nodeid} left the limit of open files (RLIMIT_NOFILE) at {left}"
                try:
                    resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)
                except ValueError:  # the hard limit too, which few may raise
                    pytest.exit(
                        f"{said} for good, so nothing more can be opened: have the test lower the soft one alone"
                    )
                item.warn(pytest.PytestWarning(f"{said}, and it was put back to {before}"))
