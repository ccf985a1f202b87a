"""Ends a session with the text of an error that occurs before any test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from perflab.errors import PerflabError
from perflab.plugin.stash import is_worker


@contextlib.contextmanager
def refusing(config: pytest.Config) -> Iterator[None]:
    """Have an error of the block end the session. A worker of pytest-xdist would take its other tests with it.

    Raises:
        pytest.UsageError: the error's text; in a worker each test says it instead.
    """
    try:
        yield
    except PerflabError as error:
        if not is_worker(config):
            raise pytest.UsageError(str(error)) from None
        config.pluginmanager.register(_Refusal(error), "perflab-refusal")


class _Refusal:
    """Fails the tests of this process before they are set up."""

    def __init__(self, error: PerflabError) -> None:
        self._error = error

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Raise the error."""
        raise self._error
