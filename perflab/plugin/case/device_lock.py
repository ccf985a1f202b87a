"""One measurement at a time on a device, for all processes of a user: workers of one run, and different runs."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from perflab.errors import DeviceError
from perflab.measure.devices import identities_of_all, identity_of
from perflab.plugin.session.folder import file_name_for

_PATIENCE_S = 2.0


@contextlib.contextmanager
def device_turn(device: str, waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold the device for the length of the block; ``waiting`` is told if somebody else has it.

    Raises:
        DeviceError: there can be no lock file.
    """
    with _turns([identity_of(device)], waiting):
        yield


@contextlib.contextmanager
def machine_turn(waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold every device: for work that keeps all cores busy, and would disturb a measurement on any of them.

    Raises:
        DeviceError: there can be no lock file.
    """
    with _turns(identities_of_all(), waiting):
        yield


@contextlib.contextmanager
def _turns(identities: list[str], waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold them all. Taken in one order by everybody, so that no two processes wait for each other."""
    with contextlib.ExitStack() as held:
        for identity in sorted(identities):
            held.enter_context(_turn(identity, waiting))
        yield


@contextlib.contextmanager
def _turn(identity: str, waiting: Callable[[str], None]) -> Iterator[None]:
    owner = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
    path = Path(tempfile.gettempdir(), f"perflab-{owner}-{file_name_for(identity)}.lock")
    lock = FileLock(path)
    try:
        lock.acquire(timeout=_PATIENCE_S)
    except Timeout:
        waiting("waiting for another measurement")
        lock.acquire()
    except OSError as error:
        raise DeviceError(
            f"cannot take the device lock of {identity}: {path}: {error.strerror or error}",
            "remove what stands at that path, or set TMPDIR to a directory where you can write",
        ) from error
    try:
        yield
    finally:
        lock.release()
