"""Child processes with a time limit: they end by themselves, when they hang, or with their parent (``lifeline.py``).

When a child ends, all processes that it has started end too. When this process ends, except by a kill, its temporary
files are removed. The caller defines a child's task and the meaning of its silence. Children run in separate process
sessions, so the processes of this run are found by descent.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from perflab.files import abandoned, temporaries, try_lock
from perflab.lifeline import with_lifeline

_LINES_SHOWN = 15
_CLEANING_S = 5.0
"""Seconds that a child which is asked to end may take to remove its files."""
_YEAR_S = 365 * 24 * 3600.0
_RUN_VARIABLE = "PERFLAB_RUN"
"""Environment variable of a child: the id of the process in which the run began."""


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit status and last output."""

    status: int
    said: str
    """The last lines that the child printed, on either stream."""
    hung_after_s: float | None = None
    """Seconds that the child had run, if it was ended because it gave no sign of life; None otherwise."""


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP interrupt the block as Ctrl-C does, if they would end this process at once."""
    ends = {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
    can = threading.current_thread() is threading.main_thread()  # Python sets handlers only in the main thread
    taken = [number for number in ends if can and signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """Yield a folder in TMPDIR for files exchanged by this process and its children; remove it after the block.

    The folder is locked as long as its owner lives. The next caller removes folders of killed owners.
    """
    shared = Path(tempfile.gettempdir())
    for leftover in temporaries(shared, "perflab"):
        with abandoned(leftover) as is_free:
            if is_free:
                shutil.rmtree(leftover, ignore_errors=True)
    folder = shared / f".perflab.{secrets.token_hex(6)}.part"
    with interrupted_by_signals():
        folder.mkdir(mode=0o700)
        handle = os.open(folder if os.name == "posix" else os.devnull, os.O_RDONLY)
        try:
            try_lock(handle)
            yield folder
        finally:
            os.close(handle)
            shutil.rmtree(folder, ignore_errors=True)


def run_child(
    command: Sequence[str],
    *,
    directory: str | os.PathLike[str],
    environment: Mapping[str, str],
    sign: Path,
    patience_s: float,
    most_s: float = math.inf,
) -> Ended:
    """Run a command to its end.

    Args:
        command: program and arguments.
        directory: the working directory.
        environment: the environment variables.
        sign: a file whose modification time, which may lie in the future, is the child's last sign of life.
        patience_s: seconds after the last sign of life, or the start if later, after which the child is ended.
        most_s: seconds after its start after which the child is ended in any case.
    """
    # A file instead of a pipe: processes that the child leaves behind would keep a pipe open.
    with interrupted_by_signals(), tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            with_lifeline(command),
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            hung_after_s = _wait(process, sign, patience_s, most_s)
        except BaseException:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_CLEANING_S)
            raise
        finally:
            end_group(process)
        output.seek(0)
        lines = output.read().decode("utf-8", "replace").splitlines()
    return Ended(process.returncode, "\n".join(lines[-_LINES_SHOWN:]), hung_after_s)


def _wait(process: subprocess.Popen[bytes], sign: Path, patience_s: float, most_s: float) -> float | None:
    """Wait until the process has ended (return None) or been silent for too long (return the seconds it has run).

    Nothing polls meanwhile, since a measurement may be running.
    """
    ended = threading.Event()

    def wait() -> None:
        process.wait()
        ended.set()

    threading.Thread(target=wait, name="perflab-child", daemon=True).start()
    began_s = time.time()
    while True:
        left_s = min(max(began_s, _alive_at_s(sign)) + patience_s, began_s + most_s) - time.time()
        if left_s <= 0:
            return time.time() - began_s
        if ended.wait(min(left_s, threading.TIMEOUT_MAX)):
            return None


def _alive_at_s(sign: Path) -> float:
    with contextlib.suppress(OSError):
        return sign.stat().st_mtime
    return 0.0


def promise_life(sign: Path, for_s: float) -> None:
    """Set a child's sign of life ``for_s`` seconds into the future, so that its silence until then is accepted."""
    until_s = time.time() + min(for_s, _YEAR_S)
    with contextlib.suppress(OSError):  # the parent has ended, and removed the file
        os.utime(sign, (until_s, until_s))


class Process(Protocol):
    """The attributes of a child that ``end_group`` needs."""

    pid: int

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended."""

    def kill(self) -> None:
        """End the process at once."""


def end_group(process: Process) -> None:
    """End a process that was started in a separate session, and all processes that it has started there."""
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def variables_of_a_child() -> dict[str, str]:
    """Return the environment of a child that runs pytest: without xdist's variables, with this run's process id."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    return {**kept, _RUN_VARIABLE: str(run_process())}


def run_process() -> int:
    """Return the id of the process in which this run began, the ancestor of all others: pytest or its controller."""
    told = os.environ.get(_RUN_VARIABLE, "")
    if told.isdecimal() and int(told) in descent_of(os.getpid()):  # otherwise inherited from a run that has ended
        return int(told)
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


def descent_of(pid: int) -> list[int]:
    """Return the ids of a process, its parent, and so on, as far as the system reveals them."""
    found: list[int] = []
    while pid > 0 and pid not in found:
        found.append(pid)
        pid = _parent_of(pid)
    return found


def _parent_of(pid: int) -> int:
    if pid == os.getpid():
        return os.getppid()
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return int(stat.rpartition(b")")[2].split()[1])  # after the program's name, which may contain anything
    except (OSError, IndexError, ValueError):
        return 0  # ended meanwhile, not visible, or not Linux
