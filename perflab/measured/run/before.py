"""Hooks around a case: they skip one that is too late, hold the device until it is judged, and tell subtests apart.

A case's preparation loads the machine as much as its measurement: it builds, trains and compiles models, and probes the
device's matmul rate. The case therefore holds the lock for all of it, and no case begins while another one runs.

Subtests are parts of a test that pytest's ``subtests`` or ``unittest``'s ``subTest`` report while the test runs. pytest
makes their reports with the same hook that makes the reports on the test's three phases, and logs them itself. So a
call of that hook while a phase of the test is running is about a subtest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

import pytest

from perflab.running.case.perf import STATE
from perflab.settings.settings import GRACE_S, TotalBudget

if TYPE_CHECKING:
    import torch

Take = Callable[["torch.device"], contextlib.AbstractContextManager[object]]
"""A function whose context manager holds a device, so that no other process measures on it."""

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


class CaseTurns:
    """Hooks that hold the device around the cases of this process.

    Args:
        device_of: returns the device that will measure a test; None if the test is not measured.
        take: holds a device.
    """

    def __init__(self, device_of: Callable[[pytest.Item], torch.device | None], take: Take) -> None:
        self._device_of = device_of
        self._take = take
        self._device: torch.device | None = None
        self._held = contextlib.ExitStack()

    def hold(self, device: torch.device) -> None:
        """Hold this device and release any other: holding one while waiting for another could deadlock."""
        if device == self._device:
            return
        self._release()
        self._held.enter_context(self._take(device))
        self._device = device

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Take the device before pytest makes fixtures, and after it has skipped tests by their marks."""
        device = self._device_of(item)
        if device is not None:
            self.hold(device)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """Keep the device until the case is judged: an immediate re-check needs it too."""
        try:
            return (yield)
        finally:
            self._release()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        """Release the device if the set-up failed."""
        self._release()

    def _release(self) -> None:
        self._device = None
        self._held.close()


class Before:
    """Skips a case that is too late before anything of it is set up.

    ``Cases`` cannot: its hook is a wrapper, and an exception before a wrapper yields keeps other hooks from their
    teardown.
    """

    def __init__(self, budget: TotalBudget) -> None:
        self._budget = budget

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip a case that would begin when the run's time is long over.

        If the run's time is over by little, the test itself handles it: the test may state its cost (perf.requires). A
        test that does much work before that, or never states its cost, must not delay the end of the run.
        """
        state, left_s = item.stash.get(STATE, None), self._budget.measuring_s()
        if state is not None and left_s is not None and left_s < -GRACE_S:
            state.skip_for_time()


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
