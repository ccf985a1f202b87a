"""Ends a session with the text of an error that occurs before any test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from perflab.base.errors import PerflabError
from perflab.running.config.stash import is_worker


@contextlib.contextmanager
def refusing(config: pytest.Config) -> Iterator[None]:
    """End the session with an error of the block.

    In a worker of pytest-xdist each test fails with the error instead, since ending a worker would lose other tests.

    Raises:
        pytest.UsageError: the error's text; never in a worker.
    """
    try:
        yield
    except PerflabError as error:
        if not is_worker(config):
            raise pytest.UsageError(str(error)) from None
        config.pluginmanager.register(_Refusal(error), "perflab-refusal")


class _Refusal:
    """A plugin that fails every test of this process before its set-up."""

    def __init__(self, error: PerflabError) -> None:
        self._error = error

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Raise the error that refused the session."""
        raise self._error
