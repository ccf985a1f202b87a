"""``perflab attention``: the suite for a kernel of any project, in a pytest of its own.

Neither the project's pytest configuration nor its ``conftest.py`` is used: the verdict is the suite's alone.
The current directory stands first on the import path, as under ``python -m pytest``.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from perflab.base.errors import UsageError
from perflab.processes.lifeline import with_lifeline

_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""Device files of NVIDIA's driver, on Linux and under Windows (WSL): asking PyTorch would take seconds."""


def attention_command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Test an attention kernel against the float64 definition: output, log-sum-exp and gradients.

    Runs the attention suite with pytest, on a GPU if there is one. On a CPU, Triton kernels run in Triton's
    interpreter. Exits with pytest's status: 0 if all cases are right, 1 if one is wrong.
    """
    parser.add_argument(
        "candidates",
        metavar="NAME[,NAME...]",
        help="package.module:function, a callable f(q, k, v, *, is_causal, scale); or a variant of perflab.lab",
    )
    parser.add_argument("--case", metavar="EXPRESSION", help="run only cases whose name matches, as with pytest -k")
    parser.add_argument(
        "--pytest", default="", metavar="OPTIONS", help='options for pytest, such as --pytest="-x --perf-device=cpu"'
    )

    def run(given: argparse.Namespace) -> int:
        chosen = ["-k", given.case] if given.case is not None else []
        try:
            options = shlex.split(given.pytest)
        except ValueError as error:
            raise UsageError(f"--pytest={given.pytest}: {error}", 'quote it as a shell would: --pytest="-x"') from None
        return _run_pytest([f"--attention={given.candidates}", *chosen, *options])

    return run


def _run_pytest(options: Sequence[str]) -> int:
    """Run the suite with these options, and return its exit status."""
    here = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-p", "perflab.plugin", "-p", "no:cacheprovider"]
    command += [f"--config-file={os.devnull}", f"--rootdir={here}", f"--confcutdir={here}", "--import-mode=importlib"]
    environment = dict(os.environ)
    if not any(driver.exists() for driver in _DRIVERS):
        environment.setdefault("TRITON_INTERPRET", "1")
    with subprocess.Popen(with_lifeline([*command, *options, str(here / "suite.py")]), env=environment) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # pytest gets the interrupt as well: it shows its results so far, and ends
                continue
