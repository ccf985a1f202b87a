"""Holds the device lock for a case, from before its fixtures until it is judged.

What a case does before it measures loads the machine as much as what is measured: it builds and trains models, compiles
them, and probes the device's matmul rate. So all of it belongs to the case's turn, and no case begins beside another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch

Take = Callable[["torch.device"], contextlib.AbstractContextManager[object]]
"""Holds a device, so that nobody else measures on it."""

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


class CaseTurns:
    """Hooks that hold the device around the cases of this process.

    Args:
        device_of: the device that a test is going to be measured on; None where it is not measured.
        take: holds it.
    """

    def __init__(self, device_of: Callable[[pytest.Item], torch.device | None], take: Take) -> None:
        self._device_of = device_of
        self._take = take
        self._device: torch.device | None = None
        self._held = contextlib.ExitStack()

    def hold(self, device: torch.device) -> None:
        """Hold this device, and no other: who held one and waited for another could wait for ever."""
        if device == self._device:
            return
        self._release()
        self._held.enter_context(self._take(device))
        self._device = device

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Take the device before pytest makes fixtures, and after it has skipped what it skips by marks."""
        device = self._device_of(item)
        if device is not None:
            self.hold(device)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """Keep it until the case is judged: a re-check at once needs it too."""
        try:
            return (yield)
        finally:
            self._release()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        """Give it back where setting up has failed."""
        self._release()

    def _release(self) -> None:
        self._device = None
        self._held.close()
