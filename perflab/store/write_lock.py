"""Locks a directory, so that one process writes at a time.

The package filelock, used elsewhere, does not fit: it leaves its lock file behind, and these directories are committed.
A lock file in the temporary folder does not fit either: batch systems give each job such a folder of its own, and
machines do not share it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from perflab.base.files import remove_if_abandoned

LOCK_NAME = ".lock"


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the directory, which must exist, for the length of the block; wait for the process that holds the lock.

    If the file system knows no locks, the block runs without one.

    Raises:
        OSError: the lock file cannot be made.
    """
    path = directory / LOCK_NAME
    handle = _acquire(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # while the lock is held: a waiting process finds the file gone, and begins anew
        os.close(handle)


def forget_dead_lock(directory: Path) -> None:
    """Remove the lock file that a killed process left, so that nobody commits it; a lock file that is held stays."""
    remove_if_abandoned(directory / LOCK_NAME, young_s=0.0)


def _acquire(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(handle)
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # the locked file is not the one that other processes see by now


def _lock(handle: int) -> None:
    if sys.platform != "win32":
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
