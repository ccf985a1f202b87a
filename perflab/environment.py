"""What machine and versions this is, and whether numbers from two environments may be compared."""

from __future__ import annotations

import functools
import os
import platform
import re
import subprocess
from importlib import metadata
from typing import TYPE_CHECKING

import msgspec

from perflab.records import Environment

if TYPE_CHECKING:
    import torch


def current_environment(device: torch.device) -> Environment:
    """The environment of measurements that this process takes on ``device``."""
    import torch

    on_cuda = device.type == "cuda"
    return Environment(
        device=device.type,
        device_name=torch.cuda.get_device_name(device) if on_cuda else cpu_name(),
        cores=usable_cores(),
        threads=torch.get_num_threads(),
        isa=torch.backends.cpu.get_cpu_capability(),
        system=f"{platform.system()} {platform.machine()}",
        python=".".join(platform.python_version_tuple()[:2]),
        torch=str(torch.__version__),  # a subclass of str, which no encoder takes
        triton=installed_version("triton"),
        cuda=torch.version.cuda if on_cuda else None,
        driver=_nvidia_driver() if on_cuda else None,
    )


def differences(before: Environment, now: Environment) -> list[str]:
    """Why numbers from the two may not be compared, as ``torch 2.12.0 -> 2.13.0``; empty if they may.

    Everything counts: a number that moved with the driver or the thread count says nothing about code.
    """
    old, new = msgspec.structs.asdict(before), msgspec.structs.asdict(now)
    return [f"{key.replace('_', ' ')} {old[key]} -> {new[key]}" for key in old if old[key] != new[key]]


def slug(environment: Environment) -> str:
    """Folder name for an environment's baselines: ``cpu-amd-epyc-25-17-2c-torch2.13``."""
    version = re.match(r"\d+\.\d+", environment.torch)
    parts = [environment.device, re.sub(r"\b(family|model)\b", " ", environment.device_name)]
    if environment.device == "cpu":
        parts.append(f"{environment.cores}c")
    parts.append(f"torch{version[0] if version else environment.torch}")
    return "-".join(re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-") for part in parts)


def core_numbers() -> list[int]:
    """Numbers of the CPU cores that this process, and so its children, may run on; none where the system has no say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def usable_cores() -> int:
    """How many CPU cores this process may run on."""
    return len(core_numbers()) or os.cpu_count() or 1


@functools.cache
def cpu_name() -> str:
    """The processor's name. Virtual machines hide the model behind one brand, so family and model stand with it."""
    fields: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                fields.setdefault(key.strip(), value.strip())
    except OSError:
        return platform.processor() or platform.machine()  # not Linux
    name = re.sub(r"\((R|TM|tm)\)|\bCPU\b|\s+@.*|\b\d+-Core\b|\bProcessor\b", " ", fields.get("model name", ""))
    name = " ".join(name.split()) or platform.machine()
    if "CPU implementer" in fields:  # Arm: no model name, and every generation is called aarch64
        name += f" (implementer {fields['CPU implementer']}, part {fields.get('CPU part', '?')})"
    if "cpu family" in fields and "model" in fields:
        name += f" (family {fields['cpu family']}, model {fields['model']})"
    return name


def installed_version(package: str) -> str | None:
    """Version of an installed package, or None; the package is not imported."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@functools.cache
def _nvidia_driver() -> str | None:
    try:
        with open("/proc/driver/nvidia/version", encoding="ascii", errors="replace") as file:
            match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", file.readline())
            return match[1] if match else None
    except OSError:
        pass
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        lines = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    return lines[0].strip() if lines else None
