"""Starts processes that end with their parent (``lifeline.py``), and keeps their output.

When a child ends, all processes that it has started end too. When this process ends, except by a kill, its temporary
files are removed. Children run in separate process sessions, so the processes of this run are found by descent.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Protocol, Self

from perflab.base.files import abandoned, temporaries, try_lock
from perflab.processes.lifeline import with_lifeline

_CLEANING_S = 5.0
"""Seconds that a child may take to remove its files when this process is interrupted."""
_LONGEST_S = 2_000_000.0
"""The longest wait in seconds: poll(2) takes milliseconds in 32 bits."""
_MOST_OUTPUT = 1 << 26
"""Bytes of a child's output that are read, at most: the last ones."""
_RUN_VARIABLE = "PERFLAB_RUN"
"""Environment variable of a child: the id of the process in which the run began."""


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


@dataclass(frozen=True)
class Start:
    """The command, environment and directory with which a process is started."""

    role: str
    """The name of the process in messages, such as ``a fresh process`` or the label of a side."""
    command: Sequence[str]
    environment: Mapping[str, str]
    directory: Path


class Process(Protocol):
    """The part of ``subprocess.Popen``'s interface that ``Child`` needs of a process."""

    pid: int

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended, and return its exit status."""

    def kill(self) -> None:
        """End the process at once."""


Launch = Callable[[Start, int, Sequence[int]], Process]
"""A function that starts a process: the start, the descriptor that gets its output, and those that it inherits."""


def launch(start: Start, output: int, inherited: Sequence[int]) -> Process:
    """Start a fresh process in a process session of its own: Ctrl-C in the terminal reaches only this process.

    Raises:
        OSError: there is no such program or directory, or the system starts no more processes.
    """
    if sys.platform == "win32":
        raise OSError("on Windows perflab starts no processes of its own; it does in WSL 2")
    return subprocess.Popen(
        with_lifeline(start.command),
        cwd=start.directory,
        env=dict(start.environment),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=list(inherited),
        start_new_session=True,
    )


class Child:
    """A running process whose output is kept; a context manager, whose end ends all that the process started too."""

    def __init__(self, start: Start, inherited: Sequence[int] = (), launch: Launch = launch) -> None:
        """Start the process.

        Args:
            start: the command, environment and directory.
            inherited: file descriptors that the process inherits under the same numbers.
            launch: starts the process.

        Raises:
            OSError: the process cannot be started.
        """
        # A file instead of a pipe: processes that the child leaves behind would keep a pipe open.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        try:
            self._process = launch(start, self._output.fileno(), inherited)
        except BaseException:
            self._output.close()
            raise
        self._is_over = False
        self.pid = self._process.pid
        self.end_signal: int | None = None
        """A descriptor that is readable once the process has ended; None where the system has none."""
        with contextlib.suppress(AttributeError, OSError):  # not Linux, an old kernel, or a filter of system calls
            self.end_signal = os.pidfd_open(self.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not issubclass(kind, Exception):  # interrupted: the process may have files to remove
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGTERM)
            self.wait(_CLEANING_S)
        self.close()

    def wait(self, within_s: float | None = None) -> int | None:
        """Wait for the process's end, and return its exit status; None if it has not ended within these seconds."""
        # Popen's own wait with a limit polls, which would disturb a measurement.
        limit_s = None if within_s is None else min(within_s, _LONGEST_S)
        if limit_s is not None and self.end_signal is not None and not wait([self.end_signal], limit_s):
            return None
        try:
            return self._process.wait(within_s if self.end_signal is None else None)
        except subprocess.TimeoutExpired:
            return None

    def output(self) -> bytes:
        """Return what the process has printed so far, on either stream."""
        number = self._output.fileno()
        size = os.fstat(number).st_size
        return os.pread(number, _MOST_OUTPUT, max(0, size - _MOST_OUTPUT))  # the process shares the file's position

    def end(self) -> None:
        """End the process and all processes that it has started; its output stays readable until ``close``."""
        if os.name == "posix":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        else:
            self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the process and all processes that it has started, and forget its output."""
        if self._is_over:
            return
        self._is_over = True
        self.end()
        self._output.close()
        if self.end_signal is not None:
            os.close(self.end_signal)


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
