"""The program that the processes of a round are forked from: imports PyTorch once, and forks whenever it is asked.

It is run by its path and imports nothing of perflab, of which every side may have a version of its own. What it forks
goes on as ``python -m MODULE`` would, in the side's folder and with its import path. ``ancestor.py`` asks.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import tempfile
import warnings
from importlib.machinery import PathFinder
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>


def main() -> None:
    """Serve the session until it is gone; in what was forked, run the side's command."""
    if sys.path and sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]  # what lies beside this program is not to be imported as if it were installed
    control = Connection(int(sys.argv[1]))
    _end_with_parent()
    importlib.import_module("torch")
    loaded = {name: module for name, module in sys.modules.items() if "." not in name and name != "__main__"}
    installed = {name: module for name, module in loaded.items() if name not in sys.stdlib_module_names}
    given = {os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    own_path = [entry for entry in sys.path if entry not in given]
    gc.collect()
    gc.freeze()  # a collection would write to what all share, and so copy it
    _say(control, {"ready": True})
    while True:
        try:
            asked = json.loads(control.recv_bytes())
        except EOFError:
            return
        if "wait" in asked:
            _, status = os.waitpid(asked["wait"], 0)
            _say(control, {"status": os.waitstatus_to_exitcode(status)})
            continue
        side, output = recv_handle(control), recv_handle(control)
        here = os.path.realpath(asked["directory"])
        path = list(dict.fromkeys([here, *(os.path.join(here, entry) for entry in asked["path"]), *own_path]))
        problem = _found_elsewhere(installed, path)
        if problem is not None:
            _say(control, {"problem": problem})
        elif _fork(control):
            control.close()
            _become(asked, path, side, output)
            runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
            return
        os.close(side)
        os.close(output)


def _fork(control: Connection) -> bool:
    """Fork, and tell the new process's number; whether this is the new one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads: there are none but OpenBLAS's, which knows how to fork
        number = os.fork()
    if number:
        _say(control, {"pid": number})
    return number == 0


def _become(asked: dict[str, Any], path: list[str], side: int, output: int) -> None:
    """Take a side's place: its terminal, streams, folder, variables, arguments and import path."""
    _end_with_parent()
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, stream in enumerate((nothing, output, output)):
        os.dup2(stream, number)
    os.close(nothing)
    os.close(output)
    os.chdir(asked["directory"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.environ[asked["socket_variable"]] = str(side)
    sys.argv = ["-m", *asked["words"]]
    sys.orig_argv = [sys.executable, "-m", asked["module"], *asked["words"]]
    sys.path[:] = path
    sys.path_importer_cache.clear()
    tempfile.tempdir = None  # an import may have looked it up
    importlib.invalidate_caches()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def _found_elsewhere(installed: dict[str, Any], path: list[str]) -> str | None:
    """Why a process with this import path would have imported something else."""
    for name, module in sorted(installed.items()):
        here = getattr(getattr(module, "__spec__", None), "origin", None)
        there = PathFinder.find_spec(name, path)
        if here is not None and there is not None and there.origin != here:
            return f"{name} is imported from {there.origin} there"
    return None


def _say(control: Connection, message: dict[str, Any]) -> None:
    control.send_bytes(json.dumps(message).encode())


if __name__ == "__main__":
    main()
