"""Subtests: what a test reports of its parts while it runs, of pytest's ``subtests`` or ``unittest``'s ``subTest``.

pytest makes such a report from one of the whole test, by the hook that makes the test's own three, and logs it itself.
So what that hook is asked while a phase of the test runs is not about the phase.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

_RUNS = pytest.StashKey[bool]()


class Phases:
    """Notes which test is in one of its phases."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Each phase, since fixtures may have subtests too."""
        item.stash[_RUNS] = True
        try:
            return (yield)
        finally:
            item.stash[_RUNS] = False

    pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup


def is_of_a_subtest(item: pytest.Item) -> bool:
    """Whether a report that is made now is one of a subtest's, and none of the test's own."""
    return item.stash.get(_RUNS, False)
