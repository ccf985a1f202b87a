"""Processes for stories that start with PyTorch and perflab imported: an executable that can be taken for Python.

Knows which server and launcher belong together; how a fork becomes a process is the server's (``warm_server.py``). A
process is as fresh as any: only what Python, pytest, PyTorch and perflab did to be imported was done before it. What
that cannot tell, such as what happens while PyTorch is imported and which modules a run loads, is told by stories whose
processes are Python's own. A process whose import path has another perflab than the tests' loads that one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import perflab
from tests.plugin.warm_launcher import COMPILER_START, LATER, START

HERE = Path(__file__).parent
PROJECT = Path(perflab.__file__).parents[1]
"""The folder of the perflab that these tests test: a worktree's, where the import path says so."""


@contextlib.contextmanager
def warm_python(*libraries: str, compiler: bool = False, without: str = "") -> Iterator[str]:
    """The path of an executable that runs modules and xdist's workers warm while the block lasts.

    ``libraries``: modules that are imported after PyTorch.

    ``compiler``: with PyTorch's compiler, and Triton with it, imported too; the first fake tensor would do it. And what
    counts FLOPs, for the modules of perflab that predict.

    ``without``: a variable of this process that the warm ones start without, and commands that have it too do not.

    It is Python itself where forking is not safe. Variables that are heeded when Python starts are this process's; a
    command with others is given to Python.
    """
    if sys.platform != "linux":  # forking after the system's own libraries have been used is not safe everywhere
        yield sys.executable
        return
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", without)
    }
    start = COMPILER_START if compiler or any(name.startswith("triton") for name in libraries) else START
    heeded = {name: value for name, value in environment.items() if name.startswith(start) and name not in LATER}
    modules = ["torch", *(["torch._dynamo", "torch.utils.flop_counter"] if compiler else []), *libraries]
    with tempfile.TemporaryDirectory(prefix="perflab-") as name:  # a socket's path must be short
        folder = Path(name)
        address, launcher = folder / "socket", folder / "python"
        ours, theirs = os.pipe()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(address))
            listener.listen(64)
            given = map(str, (HERE / "warm_server.py", listener.fileno(), ours, PROJECT, launcher))
            server = subprocess.Popen(
                [sys.executable, *given, *modules],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[listener.fileno(), ours],
                start_new_session=True,
            )
        os.close(ours)
        given = map(repr, (sys.executable, str(launcher), str(address), start, heeded))
        words = f"import sys\nsys.path.append({str(HERE)!r})\nimport warm_launcher\n"
        launcher.write_text(f"#!{sys.executable} -IS\n{words}warm_launcher.main({', '.join(given)})\n")
        launcher.chmod(0o755)
        try:
            yield str(launcher)
        finally:
            os.close(theirs)
            server.wait()
