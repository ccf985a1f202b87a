"""``--perf-instructions=callgrind``: counts the instructions of one call in a process under valgrind.

Other activity on the machine does not affect valgrind's simulated processor, so two runs of the same code agree closely
even if the hardware's counter is unavailable. Callgrind has limits:

- It is slow: some minutes a case, most of them for importing PyTorch.
- It has no AVX-512, so it counts PyTorch's AVX2 kernels.
- Its number differs from that of other counters, so it has a separate name: ``callgrind_instructions``.
- Its switch applies to the thread that toggles it, so the process runs one thread: others would not be counted.
"""

from __future__ import annotations

import gc
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from perflab.base.errors import FreshProcessError, SettingError
from perflab.processes.child import workplace
from perflab.processes.peer import Ending, How
from perflab.running.case.fresh_process import run_job
from perflab.tiers.job import Job

if TYPE_CHECKING:
    import torch

    from perflab.measure.calls.workload import Workload

WARM_CALLS = 2
"""Calls before the counted one: the first initialises libraries, the second frees the remains of the first."""
_FIXED = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_LAST_LINES = 3
_TOTAL = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)


def check_callgrind(device: torch.device) -> None:
    """Check early that callgrind can count.

    Raises:
        SettingError: valgrind is not installed, PyTorch was built without it, or the device is no CPU.
    """
    import torch

    from perflab.internals.of_torch.machine import answers_to_valgrind

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
    """Run a case in a process under callgrind, and return the instructions of one call of the measured callable.

    Raises:
        FreshProcessError: the process counted nothing; the error has the end of its output.
    """
    with workplace() as folder:
        counted = folder / "callgrind.out"
        _, ending = run_job(config, Job(cases=[case], under_callgrind=True), device, _wrapper(counted), _FIXED)
        found = total_of(counted.read_text(encoding="utf-8", errors="replace")) if counted.exists() else 0
    if ending.how is How.HUNG:
        raise FreshProcessError(
            f"callgrind {ending.told}{_last_words(ending)}",
            "run with --perf-instructions=auto; if it needs that long, raise --perf-timeout",
        )
    if ending.status != 0 or not found:
        raise FreshProcessError(
            f"callgrind counted nothing and {ending.told}{_last_words(ending)}",
            "run with --perf-instructions=auto, or report it to valgrind if it failed on an instruction",
        )
    return found


def _last_words(ending: Ending) -> str:
    lines = [line.strip() for line in ending.last_lines(2 * _LAST_LINES) if line.strip()]
    return f": {' / '.join(lines[-_LAST_LINES:])}" if lines else ""


def _wrapper(counted: Path) -> list[str]:
    """Return the command prefix of callgrind, which counts from the first toggle on.

    Addresses are not randomised if ``setarch`` is installed.
    """
    fixed = ["setarch", "-R"] if shutil.which("setarch") is not None else []
    return [*fixed, "valgrind", "--tool=callgrind", "--collect-atstart=no", f"--callgrind-out-file={counted}"]


def total_of(profile: str) -> int:
    """Return the number of instructions in a callgrind profile, 0 if it has none."""
    match = _TOTAL.search(profile)
    return int(match[1]) if match is not None else 0


def run_counted(workload: Workload) -> Any:
    """Call the workload in the process under callgrind; count the last call alone, and return its result."""
    from perflab.internals.of_torch.machine import toggle_callgrind

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
