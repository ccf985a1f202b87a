"""The ancestor program of a round's processes: imports PyTorch once, and forks a process on each request.

The program is run by its path and imports nothing of perflab, because each side may have its own version of perflab. A
forked process continues as ``python -m MODULE`` would, in the side's folder and with the side's import path. If the
forked process would differ from a fresh one, the program forks nothing and answers with the reason. ``process.py``
sends the requests.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import tempfile
import warnings
from importlib.machinery import ModuleSpec, PathFinder
from multiprocessing import process
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

_LIFELINE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "processes", "lifeline.py")
_SOCKET_VARIABLE = "PERFLAB_SOCKET"
"""The environment variable with the number of the socket to the session, as ``processes/channel.py`` has it."""
_PRELOADED_VARIABLE = "PERFLAB_PRELOADED"
"""The environment variable with names of further modules that all forked processes share."""
_AT_START = ("sitecustomize", "usercustomize")
"""Modules that Python imports by itself when it starts."""


class _Missed:
    """The last finder on ``sys.meta_path``: records the top-level modules that imports looked for and did not find."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(self, name: str, path: object = None, _target: object = None) -> ModuleSpec | None:
        if path is None:
            self.names.add(name)
        return None


def main() -> None:
    """Serve the session until it closes the connection; in a forked process, run the side's command."""
    if not sys.flags.safe_path:
        del sys.path[0]  # modules beside this program must not be importable as top-level modules
    control = Connection(int(os.environ.pop(_SOCKET_VARIABLE)))
    os.set_inheritable(control.fileno(), False)
    of_ends = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it were ignored, exit statuses would be lost
    missed = _Missed()
    sys.meta_path.append(missed)
    importlib.import_module("torch")
    for name in filter(None, os.environ.pop(_PRELOADED_VARIABLE, "").split(",")):
        importlib.import_module(name)
    sys.meta_path.remove(missed)
    found = {
        name: _origin(module) for name, module in sys.modules.copy().items() if "." not in name and name != "__main__"
    }
    found = {**dict.fromkeys((*missed.names, *_AT_START)), **{name: file for name, file in found.items() if file}}
    given = {os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    own_path = [entry for entry in sys.path if entry not in given]
    gc.collect()
    gc.freeze()  # a collection would write to pages that all processes share, and so copy them
    _say(control, "Done")
    while True:
        try:
            asked = json.loads(control.recv_bytes())
        except EOFError:
            return
        if asked["type"] == "Wait":
            _, status = os.waitpid(asked["pid"], 0)
            _say(control, "Done", number=os.waitstatus_to_exitcode(status))
            continue
        side, output = recv_handle(control), recv_handle(control)
        here = os.path.realpath(asked["directory"])
        entries = [os.path.abspath(os.path.join(here, entry)) for entry in asked["path"]]
        path = list(dict.fromkeys([*([] if sys.flags.safe_path else [here]), *entries, *own_path]))
        problem = _found_elsewhere(found, path)
        number, problem = (None, problem) if problem is not None else _forked()
        if number == 0:
            control.close()
            signal.signal(signal.SIGCHLD, of_ends)
            _become(asked, path, side, output)
            runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
            return
        if problem is None:
            _say(control, "Done", number=number)
        else:
            _say(control, "Refused", problem=problem)
        os.close(side)
        os.close(output)


def _forked() -> tuple[int | None, str | None]:
    """Fork, and return the new process's number, 0 in the new process itself, or a reason why the fork failed.

    When the number is returned, the new process already leads its own process group, so that signals reach it.
    """
    ours, theirs = os.pipe()
    parent, end_with_parent = os.getpid(), runpy.run_path(_LIFELINE)["end_with_parent"]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of threads, which are counted below
            number = os.fork()
    except OSError as error:
        os.close(ours)
        os.close(theirs)
        return None, f"a process cannot be forked: {error}"
    if number == 0:
        os.close(ours)
        end_with_parent(parent)
        os.setsid()
        core = getattr(sys.modules["torch"], "_C", None)
        has_lost_cuda = bool(getattr(core, "_cuda_isInBadFork", bool)())
        os.write(theirs, b"CUDA was in use when PyTorch had been imported" if has_lost_cuda else b"")
        os.close(theirs)
        return 0, None
    os.close(theirs)
    with open(ours, "rb") as said:
        problem = said.read().decode() or None
    # OpenBLAS ends its thread for the fork and starts it again when needed. Any other thread is lost in a fork.
    if problem is None and len(os.listdir("/proc/self/task")) > 1:
        problem = "something that is imported with PyTorch, or before it, has started a thread"
    if problem is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
        return None, problem
    return number, None


def _become(asked: dict[str, Any], path: list[str], side: int, output: int) -> None:
    """Give this forked process the side's streams, folder, environment variables, arguments and import path."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, stream in enumerate((nothing, output, output)):
        os.dup2(stream, number)
    os.close(nothing)
    os.close(output)
    os.chdir(asked["directory"])
    process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]  # where spawned processes look for modules
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.environ[_SOCKET_VARIABLE] = str(side)
    sys.argv = ["-m", *asked["words"]]
    sys.orig_argv = [sys.executable, "-m", asked["module"], *asked["words"]]
    sys.path[:] = path
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()
    tempfile.tempdir = None  # an import may have cached the folder for temporary files
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()


def _origin(module: object) -> str | None:
    """Return the file of a module; None for a built-in or frozen module, which no folder can replace."""
    origin = getattr(getattr(module, "__spec__", None), "origin", None)
    return origin if origin is not None and os.path.isabs(origin) else None


def _found_elsewhere(found: dict[str, str | None], path: list[str]) -> str | None:
    """Return why a process with this import path would have imported other or more modules; None if it would not."""
    for name, here in sorted(found.items()):
        spec = PathFinder.find_spec(name, path)
        there = spec.origin if spec is not None else None
        if there is not None and there != here:
            return f"{name} is imported from {there} there"
        if there is None and here is not None and name in _AT_START:
            return f"{name} of {here} is not imported there"
    return None


def _say(control: Connection, kind: str, **fields: object) -> None:
    control.send_bytes(json.dumps({"type": kind, **fields}).encode())


if __name__ == "__main__":
    main()
