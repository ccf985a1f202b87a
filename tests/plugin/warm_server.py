"""A process that has imported PyTorch and perflab, and becomes a story's by forking: imports are most of a start.

Knows one thing: how to make of a fork what ``python -m module``, or ``-u -c code``, would have been: its arguments,
environment, import path, working directory and open files, and the status that it ends with. Only its memory is left to
the system, where Python would take it apart. Whether a command may be
run like this its launcher decides (``warm_launcher.py``). PyTorch, pytest and modules of perflab are all that is
shared, as they are once imported: nothing has been computed (but Triton's hash of itself, where kernels are compiled),
no thread has been started. A process that would find
another perflab, by its import path, has none of it.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import fcntl
import gc
import importlib
import importlib.util
import io
import marshal
import os
import random
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

_MANY = 64
"""Files that a command may inherit."""
_APART = 512
"""Numbers from here on are nobody's: where received files wait until they get the numbers that they had."""
LEFT_OUT = (
    # their assertions are rewritten, and pytest says so where it comes too late
    "perflab.attention.plugin",
    "perflab.attention.suite",
    # users import them, and they what a run does not: Triton's kernels, snapshots
    "perflab.lab",
    "perflab.correctness",
    "nocuda",
    # it brings Triton; a process that has the compiler has it too
    "torch.utils.flop_counter",
    # it holds by name what stories replace (test_warm.py)
    "perflab.instruments",
    # run with -m
    "perflab.__main__",
)
"""What is not imported beforehand, with all below, nor whatever imports one of these."""


def serve(listener: socket.socket, lifeline: int) -> dict[str, Any]:
    """Fork for every request, and tell each launcher how its process ended. Returns in the forked processes alone.

    A process ends with its launcher, and all of them with whoever holds the other end of ``lifeline``.
    """
    ended, ending = os.pipe()
    os.set_blocking(ending, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ending)
    launchers: dict[int, socket.socket | None] = {}
    while True:
        waiting = {launcher: process for process, launcher in launchers.items() if launcher is not None}
        ready, _, _ = select.select([listener, lifeline, ended, *waiting], [], [])
        if lifeline in ready:
            for process in launchers:
                _kill(process)
            os._exit(0)
        if ended in ready:
            os.read(ended, 4096)
            _tell_ends(launchers)
        for launcher in waiting.keys() & set(ready):  # it has nothing more to say: this is its end
            if waiting[launcher] in launchers:
                _kill(waiting[launcher])
                launcher.close()
                launchers[waiting[launcher]] = None
        if listener in ready:
            launcher, _ = listener.accept()
            request, files = _received(launcher)
            if request is None:
                launcher.close()
                continue
            process = os.fork()
            if process == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.setsid()
                for ours in (listener, launcher, *waiting):  # before their numbers become others'
                    ours.close()
                for number in (ended, ending, lifeline):
                    os.close(number)
                _place(files, request["files"])
                return request
            for number in files:
                os.close(number)
            launchers[process] = launcher


def _kill(process: int) -> None:
    """A process and what it has started; it may have no session of its own yet, or be gone."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(process, signal.SIGKILL)


def _tell_ends(launchers: dict[int, socket.socket | None]) -> None:
    while launchers:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process == 0:
            return
        launcher = launchers.pop(process)
        if launcher is not None:
            with contextlib.suppress(OSError), launcher:
                launcher.send(str(os.waitstatus_to_exitcode(status)).encode())


def _received(launcher: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """What is to be run, and its files; None of a launcher that was killed before it had said all."""
    sent = array.array("i")
    first, ancillary, _, _ = launcher.recvmsg(8, socket.CMSG_LEN(_MANY * sent.itemsize))
    for _, _, numbers in ancillary:
        sent.frombytes(numbers)
    length = int.from_bytes(first, "big")
    with launcher.makefile("rb") as stream:
        said = stream.read(length)
    if len(first) < 8 or len(said) < length:
        return None, []
    return marshal.loads(said), list(sent)


def _place(files: list[int], numbers: list[int]) -> None:
    """Give received files the numbers that they had."""
    apart = [fcntl.fcntl(file, fcntl.F_DUPFD, _APART) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(apart, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


class _LeftOut:
    """Finds that there is no such module."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if any(name == left_out or name.startswith(f"{left_out}.") for left_out in LEFT_OUT):
            raise ImportError(f"{name} is left out")


def load(folder: str, executable: str) -> None:
    """Import the perflab of a folder, as far as it may be. ``executable``: what its processes take for Python."""
    files = sorted(Path(folder, "perflab").rglob("*.py"))
    names = [".".join(file.relative_to(folder).with_suffix("").parts).removesuffix(".__init__") for file in files]
    sys.path.insert(0, folder)
    sys.meta_path.insert(0, _LeftOut)
    own, sys.executable = sys.executable, executable  # a default of a module's may be taken from it
    for name in names:
        with contextlib.suppress(Exception):  # left out, or broken: a story's own import says so
            importlib.import_module(name)
    sys.modules["perflab.plugin"].__doc__ = "PYTEST_DONT_REWRITE"  # else it says that it comes too late to
    sys.meta_path.remove(_LeftOut)
    sys.path.remove(folder)
    sys.executable = own


def forget_unless_found(package: str) -> None:
    """Unload a package where this process's import path has another one, or none.

    And where pytest looks for installed plugins: it rewrites the assertions of all that was installed with one.
    """
    loaded = sys.modules.pop(package)
    found = importlib.util.find_spec(package) if "PYTEST_DISABLE_PLUGIN_AUTOLOAD" in os.environ else None
    if found is not None and found.origin == loaded.__file__:
        sys.modules[package] = loaded
        return
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        del sys.modules[name]


def become(request: dict[str, Any]) -> None:
    """Make this process what Python would be before it runs the module."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    first = os.getcwd() if request["code"] is None else ""
    if request["program"] is not None:
        first = os.path.dirname(request["program"])
    sys.path[:] = dict.fromkeys([first, *(os.path.abspath(place) for place in given if place), *sys.path])
    forget_unless_found("perflab")
    sys.executable = request["executable"]
    sys.orig_argv = [sys.executable, *request["arguments"]]
    sys.argv = request["module"] if request["code"] is None else ["-c"]
    tempfile.tempdir = None  # looked up by an import, in another environment
    random.seed()
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()


def unbuffer() -> None:
    """What ``-u`` does."""
    for name in ("stdout", "stderr"):
        old = getattr(sys, name)
        raw = io.FileIO(old.fileno(), "w", closefd=False)
        new = io.TextIOWrapper(raw, old.encoding, old.errors, write_through=True)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def end(status: object) -> NoReturn:
    """End as Python does, but leave the memory to the system: to take PyTorch apart is most of what an end costs."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as Python does
    atexit._run_exitfuncs()
    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none, or nobody reads it any more
            stream.flush()
    os._exit((status or 0) & 0xFF)


if __name__ == "__main__":
    del sys.path[0]  # this file's folder
    gc.disable()
    plugins = importlib.import_module("_pytest.config").default_plugins
    for module in (*sys.argv[5:], "pytest", "pdb", *(f"_pytest.{plugin}" for plugin in plugins)):
        importlib.import_module(module)
    load(sys.argv[3], sys.argv[4])
    if "triton" in sys.argv[5:]:  # compiles kernels: the first one has Triton hash all of itself
        importlib.import_module("triton.runtime.cache").triton_key()
    for cleaning in weakref.finalize._registry:  # type: ignore[attr-defined]
        cleaning.atexit = False  # PyTorch takes its operators' registrations back: a tenth of a story's time
    gc.collect()
    gc.freeze()  # the collector of a fork would copy every page that it looks at
    frozen = gc.get_freeze_count()
    gc.get_freeze_count = lambda: frozen  # to count takes longer than to fork
    gc.enable()
    with socket.socket(fileno=int(sys.argv[1])) as listening:
        asked = serve(listening, int(sys.argv[2]))
    become(asked)
    try:
        if asked["program"] is not None:
            runpy.run_path(asked["program"], run_name="__main__")
        elif asked["code"] is None:
            runpy.run_module(asked["module"][0], run_name="__main__", alter_sys=True)
        else:
            unbuffer()
            sys.modules["__main__"] = main = ModuleType("__main__")
            exec(asked["code"], main.__dict__)
    except SystemExit as ending:
        end(ending.code)
    end(0)
