"""Lock files that name their holder, so that a waiting process can show it; and the locks of devices.

They allow one measurement at a time on a device, across all processes of a user, in one run or several.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from perflab.base.errors import DeviceError
from perflab.base.files import read_regular
from perflab.measure.machine.devices import identities_of_all, identity_of
from perflab.running.config.folder import file_name_for

PATIENCE_S = 2.0
_SAID_EVERY = 8


@contextlib.contextmanager
def held(
    path: Path, what: str, waiting: Callable[[str], None], gives_up: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Hold a lock file for the duration of the block; a note beside it names the holder.

    While another process holds the lock, ``waiting`` receives a text that names it from time to time, except for a
    worker of the same run: workers alternate all the time. ``gives_up`` is called every two seconds; if it returns
    True, the block runs without the lock.

    Raises:
        OSError: the lock file cannot be created.
    """
    lock, note, waited = FileLock(path), path.with_suffix(".holder"), 0
    while not lock.is_locked:
        try:
            lock.acquire(timeout=PATIENCE_S)
        except Timeout:
            if gives_up():
                yield
                return
            holder = _holder(note) if waited % _SAID_EVERY == 0 else None
            waited += 1
            if holder is not None:
                waiting(f"waiting for {what}{holder}")
    # The note may be in a folder where others can write, so neither links nor pipes are opened.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with contextlib.suppress(OSError), os.fdopen(os.open(note, flags, 0o600), "wb") as file:
        file.write(os.fsencode(f"{os.getpid()}\n{_run()}\n{os.getcwd()}"))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # another user's note, in a folder where only owners may remove
            note.unlink()
        lock.release()


def _run() -> str:
    """Return the id of the run whose worker this process is; empty for any other process."""
    return os.environ.get("PYTEST_XDIST_TESTRUNUID", "")


def _holder(note: Path) -> str | None:
    """Return a text that names the lock's holder, empty if unknown; None for another worker of the same run."""
    try:
        pid, run, folder = read_regular(note).decode("utf-8", "replace").split("\n", 2)
        for_s = max(0.0, time.time() - note.stat().st_mtime)
    except (OSError, ValueError):
        return ""
    said = f": process {pid} in {folder}, for {for_s:.0f} s"
    return None if run and run == _run() else "".join(letter if letter.isprintable() else "?" for letter in said)


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
