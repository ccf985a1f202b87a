"""A pool of compiler processes, as many as cores, started when first needed.

If a process dies while compiling a kernel (compilers do), or hangs, that is the kernel's result, and another process
replaces it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from perflab.child import end_group, workplace
from perflab.compiled.compiler.resources import useful_lines
from perflab.compiled.compiler.worker import Answer, Request
from perflab.compiled.records import CompiledKernel
from perflab.environment import usable_cores
from perflab.errors import KernelError
from perflab.lifeline import with_lifeline
from perflab.units import format_ns

MOST = 8
"""The largest number of processes: each holds torch and triton in memory."""
PATIENCE_S = 600.0
"""The time in seconds after which a process counts as hanging. A kernel takes seconds, and loading torch and triton on
a busy machine a minute; the limit is ten times as much."""
_LAST_S = 10.0
"""The time in seconds that a process may take to end after it has closed its output."""


class CompilerPool:
    """A pool of processes that compile registered kernels. Close the pool, or use it as a context manager.

    The pool has ``processes`` processes; None: as many as cores, at most ``MOST``. A process may take ``patience_s``
    seconds for an answer; None: ``PATIENCE_S``.
    """

    def __init__(self, processes: int | None = None, patience_s: float | None = None) -> None:
        self._patience_s = patience_s
        self._number = processes or max(1, min(MOST, usable_cores()))
        self._threads = ThreadPoolExecutor(self._number, thread_name_prefix="perflab-compile")
        self._ending = contextlib.ExitStack()
        self._folder = self._ending.enter_context(workplace())
        self._idle: queue.LifoQueue[_Process] = queue.LifoQueue()
        self._all: list[_Process] = []
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> CompilerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start all processes in advance, so that they load before there are kernels for each of them."""
        for _ in range(self._number - len(self._all)):
            self._idle.put(self._started())

    def names(self, registration: str, archs: Iterable[int]) -> dict[int, list[str]]:
        """Return the names of the registered kernels, by architecture.

        Raises:
            KernelError: the registration cannot be used.
        """
        return {arch: self._ask(Request(registration=registration, arch=arch)).names or [] for arch in archs}

    def submit(self, registration: str, name: str, arch: int) -> Future[CompiledKernel]:
        """Compile one kernel as soon as a process is free, and return the future of the result."""
        return self._threads.submit(self._compile, registration, name, arch)

    def close(self) -> None:
        """End all processes, even while they are compiling."""
        with self._lock:
            self._closed = True
        try:
            for process in self._all:
                process.kill()
            self._threads.shutdown(wait=True, cancel_futures=True)
            for process in self._all:
                process.clear()
        finally:
            self._ending.close()

    def _compile(self, registration: str, name: str, arch: int) -> CompiledKernel:
        request = Request(registration=registration, name=name, arch=arch)
        try:
            compiled = self._ask(request).compiled
        except _EndedError as death:
            from perflab.environment import installed_version

            triton = installed_version("triton") or "unknown"
            return CompiledKernel(registration=registration, name=name, arch=arch, triton=triton, problem=str(death))
        assert compiled is not None
        return compiled

    def _ask(self, request: Request) -> Answer:
        try:
            process = self._idle.get_nowait()
        except queue.Empty:
            process = self._started()
        answer = process.ask(
            request, PATIENCE_S if self._patience_s is None else self._patience_s
        )  # if the process died, this raises, and the process is not put back
        self._idle.put(process)
        if answer.problem is not None:
            raise KernelError(answer.problem, answer.remedy or "fix it")
        return answer

    def _started(self) -> _Process:
        with self._lock:
            if self._closed:
                raise _EndedError("compiling was interrupted")
            process = _Process(self._folder / f"{len(self._all)}.log")
            self._all.append(process)
            return process


class _EndedError(KernelError):
    """A compiler process ended before it answered a request."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, "compile the kernel alone, and read its output")

    def __str__(self) -> str:
        return self.problem


class _Process:
    """One compiler process of a pool."""

    def __init__(self, log: Path) -> None:
        self._log = log
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)  # this process's own path
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                with_lifeline([sys.executable, "-m", "perflab.compiled.compiler.worker", str(log)]),
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # so that its own child processes, such as an assembler, end with it
            )

    def ask(self, request: Request, patience_s: float) -> Answer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        said_before = self._log.stat().st_size
        line = b""
        hung = threading.Event()

        def end() -> None:
            hung.set()
            self.kill()

        timer = threading.Timer(min(patience_s, threading.TIMEOUT_MAX), end)
        timer.daemon = True
        timer.start()
        with contextlib.suppress(OSError, ValueError):  # the process is gone: the answer then stays empty
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        timer.cancel()
        if hung.is_set():
            raise _EndedError(f"compiling it hung: no answer for {format_ns(1e9 * patience_s)}, so it was stopped")
        if not line.endswith(b"\n"):
            status = self._ended()
            with contextlib.suppress(OSError):
                said = useful_lines(self._log.read_bytes()[said_before:].decode("utf-8", "replace"))
                raise _EndedError(f"the compiling process ended with status {status}; its output:\n{said}")
            raise _EndedError(f"the compiling process ended with status {status}")
        return msgspec.json.decode(line, type=Answer)

    def _ended(self) -> int:
        """Wait for the process to end, and return its exit status; kill it if it takes longer than ``_LAST_S``."""
        try:
            return self._process.wait(_LAST_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()

    def kill(self) -> None:
        end_group(self._process)

    def clear(self) -> None:
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError, ValueError):
                    pipe.close()
