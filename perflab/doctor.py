"""``perflab doctor``: lists what can be measured here and what is missing, with remedies."""

from __future__ import annotations

import math
import os
import shutil
from importlib import util
from importlib.metadata import PackageNotFoundError, version

from perflab.results.environment import cpu_name, thread_count, usable_cores
from perflab.units import format_count

_PARTS = (
    ("torch", "torch", "what is measured"),
    ("triton", "triton", "the lab's Triton kernels: pip install 'perflab[triton]'"),
    ("pytest-benchmark", "pytest_benchmark", "results in its session and files: pip install 'perflab[benchmark]'"),
    ("pytest-xdist", "xdist", "-n: pip install 'perflab[xdist]'"),
    ("nvidia-ml-py", "pynvml", "clocks and throttling of a GPU as evidence: pip install 'perflab[nvml]'"),
)
_PROGRAMS = (
    ("git", "--perf-against=COMMIT: install git"),
    ("valgrind", "--perf-instructions=callgrind: install valgrind"),
)


def checkup() -> list[str]:
    """Return one line for each part: found, or its purpose and its installation; and what each accelerator reports."""
    lines = [f"processor: {cpu_name()}, {format_count(usable_cores(), 'core')}"]
    lines += [_part(*part) for part in _PARTS]
    lines += [f"{name}: {shutil.which(name) or f'missing ({use})'}" for name, use in _PROGRAMS]
    lines.append(f"CUDA device files: {'found' if os.path.exists('/dev/nvidiactl') else 'none'}")
    return lines + _accelerators() + _load()


def _part(package: str, module: str, use: str) -> str:
    if util.find_spec(module) is None:
        return f"{package}: missing ({use})"
    try:
        return f"{package}: {version(package)}"
    except PackageNotFoundError:
        return f"{package}: found"


def _accelerators() -> list[str]:
    if util.find_spec("torch") is None:
        return []
    try:
        import torch
    except (ImportError, OSError) as error:
        return [f"accelerator: unknown (PyTorch cannot be imported: {error})"]
    from perflab.devices.backend import Quantity
    from perflab.devices.kinds import all_devices, backend_of
    from perflab.measure.clocks.device_clock import events_fail

    found = all_devices()[1:]
    if not found:
        return [f"accelerator: none (PyTorch {torch.__version__})"]
    alike: dict[tuple[str, ...], list[str]] = {}
    for device in found:
        backend, untrue = backend_of(device), events_fail(device)
        missing = backend.missing() | ({Quantity.EVENTS: untrue} if untrue is not None else {})
        lines = (f"{backend.name}", *(f"  no {quantity}: {why}" for quantity, why in missing.items()))
        alike.setdefault(lines, []).append(str(device))
    return [
        line
        for (name, *rest), devices in alike.items()
        for line in (f"accelerator: {', '.join(devices)}, {name}", *rest)
    ]


def _load() -> list[str]:
    try:
        one, five, fifteen = os.getloadavg()
    except (OSError, AttributeError):
        return ["load: unknown"]
    cores, told = usable_cores(), f"load: {one:.2f}, {five:.2f}, {fifteen:.2f} over 1, 5 and 15 minutes"
    if one <= 0.5 * cores:
        return [told]
    lines, threads = [f"{told} (other processes are running: numbers will be noisy)"], thread_count()
    if threads > 1 and threads + one > cores:  # some have to wait for a core
        lines.append(
            f"threads: PyTorch uses {threads} on {format_count(cores, 'core')} while others are busy: "
            "each operator waits for all\n"
            f"  -> use fewer, before anything else: OMP_NUM_THREADS={max(1, cores - math.ceil(one))}"
        )
    return lines
