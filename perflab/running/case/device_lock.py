"""Locks that allow one measurement at a time on a device, across all processes of a user, in one run or several."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from perflab.base.errors import DeviceError
from perflab.measure.machine.devices import identities_of_all, identity_of
from perflab.processes.locks import held
from perflab.running.config.folder import file_name_for


def device_turn(
    device: str, waiting: Callable[[str], None], gives_up: Callable[[], bool] = lambda: False
) -> contextlib.AbstractContextManager[None]:
    """Hold the device's lock for the length of the block.

    If ``gives_up`` becomes true while waiting, the block runs without the lock, and must not measure.
    """
    return _turns([identity_of(device)], waiting, gives_up)


def machine_turn(
    waiting: Callable[[str], None], gives_up: Callable[[], bool] = lambda: False
) -> contextlib.AbstractContextManager[None]:
    """Hold the locks of every device, for work that keeps all cores busy and would disturb any measurement."""
    return _turns(identities_of_all(), waiting, gives_up)


@contextlib.contextmanager
def _turns(identities: list[str], waiting: Callable[[str], None], gives_up: Callable[[], bool]) -> Iterator[None]:
    """Hold the locks of all these devices. Every process takes locks in the same order, which prevents deadlocks.

    Raises:
        DeviceError: a lock file cannot be created.
    """
    owner = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
    with contextlib.ExitStack() as turns:
        for identity in sorted(identities):
            path = Path(tempfile.gettempdir(), f"perflab-{owner}-{file_name_for(identity)}.lock")
            try:
                turns.enter_context(held(path, "another measurement", waiting, gives_up))
            except OSError as error:
                raise DeviceError(
                    f"cannot take the device lock of {identity}: {path}: {error.strerror or error}",
                    "remove what stands at that path, or set TMPDIR to a directory where you can write",
                ) from error
        yield
