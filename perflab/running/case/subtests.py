"""Subtests: reports on parts of a test while the test runs, by pytest's ``subtests`` or ``unittest``'s ``subTest``.

pytest makes a subtest's report with the same hook that makes the reports on the test's three phases, and logs the
report itself. So a call of that hook while a phase of the test is running is about a subtest.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

_RUNS = pytest.StashKey[bool]()


class Phases:
    """A plugin that notes whether a phase of a test is running."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Note that a phase of the test is running: set-up, call or teardown, since fixtures may have subtests too."""
        item.stash[_RUNS] = True
        try:
            return (yield)
        finally:
            item.stash[_RUNS] = False

    pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup


def is_of_a_subtest(item: pytest.Item) -> bool:
    """Whether a report that is made now is about a subtest, and not about a phase of the test."""
    return item.stash.get(_RUNS, False)
