"""Child processes with a time limit: they end by themselves, when they hang, or with their parent.

Whatever ends a child, all that it has started ends with it. What it was to do, and what its silence means, its caller
knows.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_LINES_SHOWN = 15
_YEAR_S = 365 * 24 * 3600.0


@dataclass(frozen=True)
class Ended:
    """How a child came to its end."""

    status: int
    said: str
    """The last lines that it printed, on either stream."""
    hung_after_s: float | None = None
    """How long it had run, where it was ended because it gave no sign of life."""


def run_child(
    command: Sequence[str],
    *,
    directory: str | os.PathLike[str],
    environment: Mapping[str, str],
    sign: Path,
    patience_s: float,
) -> Ended:
    """Run a command to its end.

    Args:
        command: program and arguments.
        directory: where it runs.
        environment: its variables.
        sign: a file; the child is alive at the time that stands there as the file's modification, which may be to come.
        patience_s: so long after that, and after its start, the child is ended.
    """
    with tempfile.TemporaryFile() as output:  # a pipe would be held open by whatever the child leaves behind
        process = subprocess.Popen(
            list(command),
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            hung_after_s = _wait(process, sign, patience_s)
        finally:
            end_group(process)
        output.seek(0)
        lines = output.read().decode("utf-8", "replace").splitlines()
    return Ended(process.returncode, "\n".join(lines[-_LINES_SHOWN:]), hung_after_s)


def _wait(process: subprocess.Popen[bytes], sign: Path, patience_s: float) -> float | None:
    """Until the process has ended, or been silent for too long. Nothing wakes up meanwhile: somebody may measure."""
    ended = threading.Event()

    def wait() -> None:
        process.wait()
        ended.set()

    threading.Thread(target=wait, name="perflab-child", daemon=True).start()
    began_s = time.time()
    while True:
        left_s = max(began_s, _alive_at_s(sign)) + patience_s - time.time()
        if left_s <= 0:
            return time.time() - began_s
        if ended.wait(min(left_s, threading.TIMEOUT_MAX)):
            return None


def _alive_at_s(sign: Path) -> float:
    with contextlib.suppress(OSError):
        return sign.stat().st_mtime
    return 0.0


def promise_life(sign: Path, for_s: float) -> None:
    """In a child: say by its file that silence means nothing for so long."""
    until_s = time.time() + min(for_s, _YEAR_S)
    with contextlib.suppress(OSError):  # whoever started this process is gone, and took the file along
        os.utime(sign, (until_s, until_s))


class Process(Protocol):
    """What is needed of a child to end it."""

    pid: int

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended."""

    def kill(self) -> None:
        """At once."""


def end_group(process: Process) -> None:
    """End a process that was started in a session of its own, and all that it has started there."""
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def end_with_parent() -> None:
    """In a child: end at once if the thread that started this process ends, by a SIGKILL too. Linux alone does that."""
    if sys.platform == "linux":
        import ctypes

        set_parent_death_signal = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
