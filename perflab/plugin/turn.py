"""One measurement at a time on a device, for all processes of a user: workers of one run, and different runs."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from perflab.plugin.folder import file_name_for

_PATIENCE_S = 2.0


@contextlib.contextmanager
def device_turn(device: str, waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold the device for the length of the block; ``waiting`` is told if somebody else has it."""
    owner = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
    lock = FileLock(Path(tempfile.gettempdir(), f"perflab-{owner}-{file_name_for(device)}.lock"))
    try:
        lock.acquire(timeout=_PATIENCE_S)
    except Timeout:
        waiting("waiting for another measurement")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
