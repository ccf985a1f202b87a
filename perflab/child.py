"""Child processes with a time limit: they end by themselves, when they hang, or with their parent (``lifeline.py``).

Whatever ends a child, all that it has started ends with it; whatever ends this process but a kill, its temporary files
go. What a child was to do, and what its silence means, its caller knows. Children have sessions of their own, so which
processes are of this run is told by descent.
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
"""What a child that is asked to end may take to remove its files."""
_YEAR_S = 365 * 24 * 3600.0
_RUN_VARIABLE = "PERFLAB_RUN"
"""Tells a child the process that the run began in."""


@dataclass(frozen=True)
class Ended:
    """How a child came to its end."""

    status: int
    said: str
    """The last lines that it printed, on either stream."""
    hung_after_s: float | None = None
    """How long it had run, where it was ended because it gave no sign of life."""


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Have SIGTERM and SIGHUP, where they would end this process at once, interrupt the block as Ctrl-C does."""
    ends = {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
    can = threading.current_thread() is threading.main_thread()  # of others Python takes no handlers
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
    """A folder in TMPDIR for what this process and its children tell each other, removed after the block.

    It is locked as long as its owner lives: folders of killed owners are removed by whoever needs one next.
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
        directory: where it runs.
        environment: its variables.
        sign: a file; the child is alive at the time that stands there as the file's modification, which may be to come.
        patience_s: so long after that, and after its start, the child is ended.
        most_s: so long after its start it is ended in any case.
    """
    # No pipe, which would be held open by whatever the child leaves behind.
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
    """Until the process has ended, or been silent for too long. Nothing wakes up meanwhile: somebody may measure."""
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


def variables_of_a_child() -> dict[str, str]:
    """This process's environment for a child that runs pytest: it is no worker of pytest-xdist, and of this run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    return {**kept, _RUN_VARIABLE: str(run_process())}


def run_process() -> int:
    """The process that this run began in, of which all others descend: pytest, or the controller of its workers."""
    told = os.environ.get(_RUN_VARIABLE, "")
    if told.isdecimal() and int(told) in descent_of(os.getpid()):  # else it was inherited from a run that is over
        return int(told)
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


def descent_of(pid: int) -> list[int]:
    """A process, its parent, and so on, as far as the system tells."""
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
        return int(stat.rpartition(b")")[2].split()[1])  # behind the program's name, which may hold anything
    except (OSError, IndexError, ValueError):
        return 0  # ended meanwhile, not to be seen, or not Linux
