"""Forks the processes of a round from one ancestor, which has imported PyTorch, so that the processes differ by less.

Two fresh processes of the same code differ by several percent, because the interpreter and the libraries lie in
different pages of memory. Forked processes share these pages, so that only the code differs. Each round has its own
ancestor, so that pairs still sample the placement of pages. ``stirring.py`` randomises the placement of objects in each
process.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any

from perflab.child import end_group
from perflab.compared.sides import forking
from perflab.lifeline import with_lifeline

_PATIENCE_S = 120.0
"""The time in seconds that the ancestor may take to import PyTorch on a busy machine, or to fork."""
_COMMAND = ("-m", "pytest")
_READ_AT_IMPORT = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "VECLIB_", "NUMEXPR_", "DNNL_", "ONEDNN_"),
    *("TORCH", "PYTORCH_", "ATEN_", "C10_", "FX_", "KINETO_", "NPY_", "NUMPY_", "TRITON_", "MALLOC_", "GLIBC_", "LD_"),
    *("CUDA_", "CUBLAS", "CUDNN_", "NCCL_", "NVIDIA_", "NVPL_", "NVTX_", "HIP_", "HSA_", "ROCR_"),
)
"""Prefixes of environment variables that are read when PyTorch and its dependencies are loaded."""
_READ_LATER = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_MODULE_LOADING")
"""Variables with a prefix in _READ_AT_IMPORT that are read only after the import."""
_DAEMON = "KINETO_USE_DAEMON"
"""The environment variable that makes PyTorch's profiler start when PyTorch is loaded."""


class NotForkedError(Exception):
    """The ancestor cannot fork a process, which is then started as a separate fresh process."""


@dataclass(frozen=True)
class Start:
    """The command, environment and directory with which a side's process is started."""

    label: str
    command: Sequence[str]
    environment: Mapping[str, str]
    directory: Path


@dataclass
class Ancestry:
    """Decides whether the processes of a comparison's rounds have a common ancestor; remembers a reason against it."""

    refused: str | None = None
    """Why the processes are started separately; None if they are forked from an ancestor."""

    @contextlib.contextmanager
    def ancestor_of(self, starts: Sequence[Start]) -> Iterator[Ancestor | None]:
        """Provide an ancestor for these processes, for the length of the block; None if an ancestor is not possible."""
        self.refused = self.refused or _unlike(starts)
        ancestor = None
        with contextlib.ExitStack() as stack:
            if self.refused is None:
                try:
                    ancestor = stack.enter_context(Ancestor(starts))
                except NotForkedError as error:
                    self.refused = str(error)
            yield ancestor


def check_variables(start: Start, variables: Mapping[str, str] | None) -> None:
    """Check that a process's tests did not change the variables that PyTorch may read when it is loaded.

    Args:
        start: holds the variables that the process was started with.
        variables: the process's variables after its tests were imported; None if it runs an older perflab.

    Raises:
        NotForkedError: a variable was changed, which has no effect if an ancestor has already loaded PyTorch; or the
            process runs an older perflab.
    """
    if variables is None:
        raise NotForkedError(f"{start.label} has an older perflab")
    given = start.environment
    names = sorted(name for name in {*given, *variables} if given.get(name) != variables.get(name))
    early = [name for name in names if name.startswith(_READ_AT_IMPORT) and name not in _READ_LATER]
    if early:
        raise NotForkedError(f"the tests set {', '.join(early)}, which PyTorch may read when it is imported")


def _unlike(starts: Sequence[Start]) -> str | None:
    """Return why these processes cannot have a common ancestor; None if they can."""
    if not _watches_processes():
        return "only Linux, from 5.3 on, forks processes that have imported PyTorch"
    if {tuple(start.command[1:3]) for start in starts} != {_COMMAND} or len({one.command[0] for one in starts}) > 1:
        return "they run different programs"
    if any(_DAEMON in one.environment for one in starts):
        return f"{_DAEMON} is set"
    variables = [{name: value for name, value in one.environment.items() if name != "PYTHONPATH"} for one in starts]
    return None if all(one == variables[0] for one in variables) else "they have different variables"


@functools.cache
def _watches_processes() -> bool:
    """Whether this system can wait for a process that is not a child: an old kernel or a system-call filter refuses."""
    if sys.platform != "linux":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _path_of(start: Start) -> list[str]:
    return [entry for entry in start.environment.get("PYTHONPATH", "").split(os.pathsep) if entry]


class Ancestor:
    """A live process that forks the sides of a round, a context manager: leaving its block ends it and its forks."""

    def __init__(self, starts: Sequence[Start]) -> None:
        """Start the ancestor, and wait until it has imported PyTorch.

        Raises:
            NotForkedError: the ancestor cannot start or cannot import PyTorch.
        """
        first, *others = starts
        shared = [entry for entry in _path_of(first) if all(entry in _path_of(other) for other in others)]
        ours, theirs = socket.socketpair()
        self._control = Connection(ours.detach())
        with theirs:
            try:
                self._process = subprocess.Popen(
                    with_lifeline([first.command[0], forking.__file__, str(theirs.fileno())]),
                    cwd=first.directory,
                    env={**first.environment, "PYTHONPATH": os.pathsep.join(shared)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except OSError as error:
                self._control.close()
                raise NotForkedError(str(error)) from None
        try:
            self._heard()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Ancestor:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def fork(self, start: Start, socket_variable: str, side: int, output: int) -> Forked:
        """Fork a process for this start.

        Args:
            start: the command and the directory of the process.
            socket_variable: the environment variable that gives the process the number of its socket.
            side: the file descriptor of the process's end of the socket.
            output: the file descriptor that receives the process's output.

        Raises:
            NotForkedError: the process would differ from a fresh one, or cannot be forked.
        """
        asked = {
            "directory": str(start.directory),
            "environment": dict(start.environment),
            "module": start.command[2],
            "path": _path_of(start),
            "socket_variable": socket_variable,
            "words": list(start.command[3:]),
        }
        number = self._ask(asked, side, output)["pid"]
        try:
            return Forked(self, number, os.pidfd_open(number))
        except OSError as error:
            os.killpg(number, signal.SIGKILL)
            raise NotForkedError(f"a forked process cannot be watched: {error}") from None

    def status_of(self, number: int) -> int:
        """Return the exit status of a process that has ended; if a signal killed it, minus the signal's number."""
        try:
            return int(self._ask({"wait": number})["status"])
        except NotForkedError:
            return -signal.SIGKILL  # the ancestor was killed, and all that it had forked with it

    def close(self) -> None:
        """End the ancestor. The kernel then ends all processes that it has forked."""
        self._control.close()
        end_group(self._process)

    def _ask(self, asked: dict[str, Any], *descriptors: int) -> dict[str, Any]:
        try:
            self._control.send_bytes(json.dumps(asked).encode())
            for descriptor in descriptors:
                send_handle(self._control, descriptor, self._process.pid)
        except OSError as error:
            raise NotForkedError(f"their ancestor has ended: {error}") from None
        return self._heard()

    def _heard(self) -> dict[str, Any]:
        try:
            if not self._control.poll(_PATIENCE_S):
                end_group(self._process)  # a late answer would be taken for the answer to the next question
                raise NotForkedError(f"their ancestor did not answer within {_PATIENCE_S:g} s")
            answer: dict[str, Any] = json.loads(self._control.recv_bytes())
        except (EOFError, OSError) as error:
            raise NotForkedError("their ancestor has ended; does PyTorch import there?") from error
        if "problem" in answer:
            raise NotForkedError(answer["problem"])
        return answer


class Forked:
    """A process that an ancestor has forked, with the part of ``subprocess.Popen``'s interface that is used here."""

    def __init__(self, ancestor: Ancestor, number: int, descriptor: int) -> None:
        self.pid = number
        self.returncode: int | None = None
        self._ancestor = ancestor
        self._descriptor = descriptor

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended, and return its exit status.

        Raises:
            subprocess.TimeoutExpired: the process is still running.
        """
        if self.returncode is None:
            ended = select.poll()
            ended.register(self._descriptor, select.POLLIN)
            if not ended.poll(None if timeout is None else 1e3 * timeout):
                raise subprocess.TimeoutExpired("a side's process", timeout or 0.0)
            os.close(self._descriptor)
            self.returncode = self._ancestor.status_of(self.pid)
        return self.returncode

    def kill(self) -> None:
        """Kill the process at once."""
        os.kill(self.pid, signal.SIGKILL)
