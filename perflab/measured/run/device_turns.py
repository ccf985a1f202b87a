"""Holds the device lock for a case, from before its fixtures until it is judged.

A case's preparation loads the machine as much as its measurement: it builds, trains and compiles models, and probes the
device's matmul rate. The case therefore holds the lock for all of it, and no case begins while another one runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

import pytest

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
