"""Reads clocks, temperature, power, throttling and other processes of a GPU from NVML, amdsmi or Level Zero.

NVML comes by the module ``pynvml`` of the package nvidia-ml-py (``pip install 'perflab[nvml]'``), and is opened only
for a CUDA device; amdsmi and Level Zero are read by PyTorch. If they are missing, or a driver does not answer a query,
the value is None, and nothing is raised.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from perflab.processes.child import descent_of, run_process
from perflab.results.measurement import GpuState

if TYPE_CHECKING:
    import torch

REASONS = {
    0x001: "idle",
    0x002: "application clocks",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability",
}
"""Bits of NVML's clocks event reasons (nvml.h, nvmlClocksEventReason…)."""


def nvml_reader(device: torch.device) -> Callable[[], GpuState | None]:
    """Return a function that reads the state of a GPU from NVML; the function returns None if NVML is unavailable."""
    try:
        import pynvml
    except ImportError:
        return lambda: None
    try:
        pynvml.nvmlInit()  # calls after the first only count
        handle = _find(pynvml, device)
    except (pynvml.NVMLError, AttributeError):  # no driver, or another module of this name
        return lambda: None
    return lambda: read_nvml(pynvml, handle) if handle is not None else None


def read_nvml(nvml: Any, handle: Any) -> GpuState:
    """Return the GPU's state, asking for each figure by itself: GPUs differ in the figures that they report."""

    def ask(name: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, name)(handle, *arguments)
        except (nvml.NVMLError, AttributeError):
            return None

    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:  # drivers before 535 have the older name
        reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    power_mw = ask("nvmlDeviceGetPowerUsage")
    processes = ask("nvmlDeviceGetComputeRunningProcesses")
    return GpuState(
        sm_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        max_sm_clock_mhz=ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        memory_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        temperature_c=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        power_w=power_mw / 1000 if power_mw is not None else None,
        throttle=[name for bit, name in REASONS.items() if (reasons or 0) & bit],
        neighbours=count_others([process.pid for process in processes]) if processes is not None else None,
    )


def state_by_module(module: Any, device: torch.device) -> GpuState | None:
    """Return the GPU's state as the functions of ``torch.cuda`` or ``torch.xpu`` tell it; None if they tell nothing.

    They read amdsmi on an AMD GPU and Level Zero on an Intel one, both of which give watts, whatever the docstring of
    ``torch.cuda.power_draw`` says; PyTorch turns what amdsmi does not know into 0.
    """

    def ask(name: str) -> Any:
        try:
            return getattr(module, name)(device)
        except Exception:  # each library has error classes of its own
            return None

    clock_mhz, temperature_c, power = map(ask, ("clock_rate", "temperature", "power_draw"))
    # A text, which says so where amdsmi is missing.
    pids = [int(number) for number in re.findall(r"process\s+(\d+)", str(ask("list_gpu_processes")))]
    if clock_mhz is temperature_c is power is None and not pids:
        return None
    return GpuState(
        sm_clock_mhz=round(clock_mhz) if clock_mhz else None,
        temperature_c=round(temperature_c) if temperature_c else None,
        power_w=float(power) if power else None,
        neighbours=count_others(pids),
    )


def count_others(pids: Sequence[int]) -> int | None:
    """Count the processes that do not belong to this run.

    All processes of the run descend from the process in which the run began: fresh processes and sides of a
    comparison, each in a session of its own, and other workers, which hold memory on the GPU while they wait for their
    turn. None if this process itself is not among ``pids``: in a container the driver may number processes in another
    way, so the run's processes cannot be recognised.
    """
    if os.getpid() not in pids:
        return None
    ours = {os.getpid(), run_process()}
    return sum(ours.isdisjoint(descent_of(pid)) for pid in set(pids))


def _find(nvml: Any, device: torch.device) -> Any:
    """Return NVML's handle of a CUDA device, found by UUID or PCI bus id; None if NVML knows neither.

    CUDA_VISIBLE_DEVICES renumbers devices for CUDA alone, so device numbers cannot be used.
    """
    import torch

    properties: Any = torch.cuda.get_device_properties(device)
    uuid = str(getattr(properties, "uuid", ""))
    place: list[Any] = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    ways = [("nvmlDeviceGetHandleByUUID", name) for name in (uuid, f"GPU-{uuid}", f"MIG-{uuid}") if uuid]
    if None not in place:
        ways.append(("nvmlDeviceGetHandleByPciBusId", "{:08X}:{:02X}:{:02X}.0".format(*place)))
    for way, name in ways:
        try:
            return getattr(nvml, way)(name)
        except nvml.NVMLError:
            continue
    return None
