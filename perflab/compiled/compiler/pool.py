"""A pool of compiler processes, as many as cores, started when first needed.

If a process dies while compiling a kernel (compilers do), or hangs, that is the kernel's result, and another process
replaces it.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from perflab.base.errors import KernelError
from perflab.base.gpu_names import Arch
from perflab.compiled.compiler.resources import useful_lines
from perflab.compiled.compiler.worker import ANSWERS, Answer, Request
from perflab.processes.child import Start
from perflab.processes.peer import Ending, Peer
from perflab.results import environment
from perflab.results.compiled import CompiledKernel

MOST = 8
"""The largest number of processes: each holds torch and triton in memory."""
PATIENCE_S = 600.0
"""The time in seconds after which a process counts as hanging. A kernel takes seconds, and loading torch and triton on
a busy machine a minute; the limit is ten times as much."""
_STACK_LINES = 8
_Compiler = Peer[Request, Answer]


class CompilerPool:
    """A pool of processes that compile registered kernels. Close the pool, or use it as a context manager.

    The pool has ``processes`` processes; None: as many as cores, at most ``MOST``. A process may take ``patience_s``
    seconds for an answer; None: ``PATIENCE_S``.
    """

    def __init__(self, processes: int | None = None, patience_s: float | None = None) -> None:
        self._patience_s = patience_s
        self._number = processes or max(1, min(MOST, environment.usable_cores()))
        self._threads = ThreadPoolExecutor(self._number, thread_name_prefix="perflab-compile")
        self._idle: queue.LifoQueue[_Compiler] = queue.LifoQueue()
        self._all: list[_Compiler] = []
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

    def names(self, registration: str, archs: Iterable[Arch]) -> dict[Arch, list[str]]:
        """Return the names of the registered kernels, by architecture.

        Raises:
            KernelError: the registration cannot be used.
        """
        return {arch: self._ask(Request(registration=registration, arch=arch)).names or [] for arch in archs}

    def submit(self, registration: str, name: str, arch: Arch) -> Future[CompiledKernel]:
        """Compile one kernel as soon as a process is free, and return the future of the result."""
        return self._threads.submit(self._compile, registration, name, arch)

    def close(self) -> None:
        """End all processes, even while they are compiling."""
        with self._lock:
            self._closed = True
        for process in self._all:
            process.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for process in self._all:
            process.close()

    def _compile(self, registration: str, name: str, arch: Arch) -> CompiledKernel:
        request = Request(registration=registration, name=name, arch=arch)
        try:
            compiled = self._ask(request).compiled
        except _EndedError as death:
            triton = environment.installed_version("triton") or "unknown"
            return CompiledKernel(registration=registration, name=name, arch=arch, triton=triton, problem=str(death))
        assert compiled is not None
        return compiled

    def _ask(self, request: Request) -> Answer:
        try:
            process = self._idle.get_nowait()
        except queue.Empty:
            process = self._started()
        process.ask(request)
        answer = process.answer()  # if the process died, this raises, and the process is not put back
        self._idle.put(process)
        if answer.problem is not None:
            raise KernelError(answer.problem, answer.remedy or "fix it")
        return answer

    def _started(self) -> _Compiler:
        with self._lock:
            if self._closed:
                raise _EndedError("compiling was interrupted")
            environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
            environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)  # this process's own path
            command = [sys.executable, "-m", "perflab.compiled.compiler.worker"]
            start = Start("the compiling process", command, environment, Path.cwd())
            silent_s = PATIENCE_S if self._patience_s is None else self._patience_s
            process = _Compiler(start, ANSWERS, _error, silent_s=silent_s)
            self._all.append(process)
            return process


class _EndedError(KernelError):
    """A compiler process ended before it answered a request."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, "compile the kernel alone, and read its output")

    def __str__(self) -> str:
        return self.problem


def _error(ending: Ending) -> Exception:
    """Return the error for a compiler process with which the conversation has ended."""
    said = useful_lines(ending.latest.decode("utf-8", "replace"))
    stacks = ending.stacks.decode("utf-8", "replace").splitlines()[:_STACK_LINES]
    return _EndedError("\n".join([f"the compiling process {ending.told}; its output:", said, *stacks]))
