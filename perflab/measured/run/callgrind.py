"""``--perf-instructions=callgrind``: counts the instructions of one call in a process under valgrind.

Nothing that goes on elsewhere on the machine reaches that processor, so two runs of the same code agree closely even
where the hardware's counter is not to be had. It is slow, some minutes a case, most of them for importing PyTorch; it
knows no AVX-512, so PyTorch's AVX2 kernels are what is counted; and its number is no other counter's, so it
has a name of its own: ``callgrind_instructions``. Its switch holds for the thread that turns it, so the process is
given one thread, or part of the work would be missing.
"""

from __future__ import annotations

import gc
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from perflab.child import workplace
from perflab.errors import FreshProcessError, SettingError
from perflab.plugin.case.fresh_process import Job, run_job
from perflab.units import format_ns

if TYPE_CHECKING:
    import torch

    from perflab.measure.workload import Workload

WARM_CALLS = 2
"""Calls before the one that is counted: the first sets libraries up, the second frees what the first one left."""
_FIXED = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_LAST_LINES = 3
_TOTAL = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)


def check_callgrind(device: torch.device) -> None:
    """See early that it can work.

    Raises:
        SettingError: valgrind is not installed, PyTorch was built without it, or the device is no CPU.
    """
    import torch

    from perflab.torch_internals.machine import answers_to_valgrind

    given = "--perf-instructions=callgrind"
    if device.type != "cpu":
        raise SettingError(
            f"{given} counts the work of a CPU, but the device is {device}", "leave it out, or measure on cpu"
        )
    if shutil.which("valgrind") is None:
        raise SettingError(
            f"{given}, but valgrind is not installed",
            "install it (apt-get install valgrind), or use --perf-instructions=auto",
        )
    if not answers_to_valgrind():
        raise SettingError(
            f"{given}, but PyTorch {torch.__version__} was built without valgrind's requests",
            "use a build for Linux, or --perf-instructions=auto",
        )


def count_under_callgrind(config: pytest.Config, case: str, device: str) -> int:
    """Run a case in a process under callgrind, and return the instructions of one call of what it measures.

    Raises:
        FreshProcessError: nothing was counted there; the end of the process's output is in the error.
    """
    with workplace() as folder:
        counted = folder / "callgrind.out"
        job = Job(cases=[case], results=str(folder / "results.jsonl"), under_callgrind=True)
        ended = run_job(config, job, device, folder, _wrapper(counted), _FIXED)
        found = total_of(counted.read_text(encoding="utf-8", errors="replace")) if counted.exists() else 0
    if ended.hung_after_s is not None:
        raise FreshProcessError(
            f"callgrind made no progress and was stopped after {format_ns(1e9 * ended.hung_after_s)}"
            f"{_last_words(ended.said)}",
            "run with --perf-instructions=auto; if it needs that long, raise --perf-timeout",
        )
    if ended.status != 0 or not found:
        raise FreshProcessError(
            f"callgrind counted nothing (exit status {ended.status}){_last_words(ended.said)}",
            "run with --perf-instructions=auto, or report it to valgrind if it failed on an instruction",
        )
    return found


def _last_words(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f": {' / '.join(lines[-_LAST_LINES:])}" if lines else ""


def _wrapper(counted: Path) -> list[str]:
    """Callgrind, silent until it is toggled; addresses are not randomised, where that can be had."""
    fixed = ["setarch", "-R"] if shutil.which("setarch") is not None else []
    return [*fixed, "valgrind", "--tool=callgrind", "--collect-atstart=no", f"--callgrind-out-file={counted}"]


def total_of(profile: str) -> int:
    """Instructions that a callgrind profile holds, 0 if it holds none."""
    match = _TOTAL.search(profile)
    return int(match[1]) if match is not None else 0


def run_counted(workload: Workload) -> Any:
    """Run in the process under callgrind: call the workload, count its last call alone, and return its result."""
    from perflab.torch_internals.machine import toggle_callgrind

    for _ in range(WARM_CALLS):
        workload.run()
    workload.make_ready(1)
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    toggle_callgrind()
    try:
        return workload.run()
    finally:
        toggle_callgrind()
        if was_on:
            gc.enable()
