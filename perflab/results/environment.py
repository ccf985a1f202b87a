"""Names the machine and what is installed, and decides which environments can be compared."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import uuid
from importlib import metadata, util

import msgspec

from perflab.results.records import Environment, ExactEnvironment


def exact_environment(environment: Environment) -> ExactEnvironment:
    """Return the part of an environment on which exact quantities may depend."""
    on_cpu = environment.device == "cpu"
    return ExactEnvironment(
        device=environment.device,
        system=environment.system,
        # PyTorch's CPU and CUDA builds compute the same on a CPU.
        torch=environment.torch.partition("+")[0] if on_cpu else environment.torch,
        python=environment.python,
        threads=environment.threads,
        isa=environment.isa,
        features=environment.features if on_cpu else None,
        device_name=environment.device_name if not on_cpu else None,
        cuda=environment.cuda,
        triton=environment.triton if not on_cpu else None,
    )


def differing(before: Environment | ExactEnvironment, now: Environment | ExactEnvironment) -> dict[str, str]:
    """Return the fields in which two environments differ: ``{"torch": "torch 2.12.0 -> 2.13.0"}``; empty if in none.

    Times are compared only if no field differs: a time that changed with the driver or the thread count says nothing
    about the code.
    """
    old, new = msgspec.structs.asdict(before), msgspec.structs.asdict(now)
    return {key: f"{key.replace('_', ' ')} {old[key]} -> {new[key]}" for key in old if old[key] != new[key]}


def slug(environment: Environment) -> str:
    """Return the folder name for an environment's times: ``cpu-amd-epyc-25-17-2c-torch2.13-5f0c21d9``."""
    parts = [environment.device, re.sub(r"\b(family|model)\b", " ", environment.device_name)]
    if environment.device == "cpu":
        parts.append(f"{environment.cores}c")
    parts.append(f"torch{_minor(environment.torch)}")
    if environment.machine is not None:
        parts.append(environment.machine)
    return _joined(parts)


def whole_slug(environment: Environment) -> str:
    """Return a folder name that depends on every field, so that environments with incomparable times differ in it."""
    fields = msgspec.structs.asdict(environment)
    if environment.nccl is None:  # as in the names of folders that were made before there was this field
        del fields["nccl"]
    whole = repr(sorted(fields.items()))
    return _joined([slug(environment), f"{environment.threads}t", f"python{environment.python}", _short_hash(whole)])


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def exact_slug(environment: ExactEnvironment) -> str:
    """Return the folder name for exact quantities: ``exact-cpu-torch2.13``, ``exact-cuda-nvidia-h200-torch2.13``."""
    parts = [EXACT, environment.device, *filter(None, [environment.device_name])]
    return _joined([*parts, f"torch{_minor(environment.torch)}"])


EXACT = "exact"
"""The first word of the names of folders with exact quantities. No device has this name."""


def _minor(version: str) -> str:
    found = re.match(r"\d+\.\d+", version)
    return found[0] if found else version


def _joined(parts: list[str]) -> str:
    return "-".join(re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-") for part in parts)


@functools.cache
def this_machine() -> str:
    """Return a name for this machine: eight hexadecimal digits that stay the same and reveal nothing about it.

    The name is a hash of the system's own identifier, since host names change with networks. Copies of one image that
    kept the identifier are one machine. Without an identifier, as in most containers, it is a hash of the host's name
    and the network card's address; in a container both may change at each start, which ``is_fleeting`` reports.
    """
    identifier = machine_identifier()
    address = 0 if identifier else uuid.getnode()  # which may start a process
    if address & _MULTICAST:  # invented, and another one in each process
        address = 0
    parts = ["perflab", *([identifier] if identifier else [f"{address:012x}", platform.node()])]
    return _short_hash("\0".join(parts))


def stands_for_itself(machine: str) -> bool:
    """Whether ``machine`` has the form of ``this_machine``, and is not a user's name for a pool of machines."""
    return re.fullmatch(r"[0-9a-f]{8}", machine) is not None


def is_fleeting() -> bool:
    """Whether the name from ``this_machine`` may change at the next start, or equal another machine's."""
    in_container = any(os.path.exists(mark) for mark in ("/.dockerenv", "/run/.containerenv"))
    return in_container or not machine_identifier()


def machine_identifier() -> str:
    """Return the identifier that the system got at its installation or first start; empty if it has none."""
    for place in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            with open(place, encoding="ascii", errors="replace") as file:
                identifier = file.read().strip()
        except OSError:
            continue
        if identifier and identifier != "uninitialized":  # systemd's placeholder in images before their first start
            return identifier
    return ""


_MULTICAST = 1 << 40
"""The bit that is set in an address that belongs to no card (RFC 9562, 6.10)."""


def core_numbers() -> list[int]:
    """Return the numbers of the CPU cores that this process and its children may use; empty if they are unknown."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(core_numbers()) or os.cpu_count() or 1


def thread_count() -> int:
    """Return the number of threads that PyTorch's operators use; 0 without PyTorch, and if it cannot be imported."""
    if util.find_spec("torch") is None:
        return 0
    try:
        import torch
    except (ImportError, OSError):  # a library that it was built with is not there
        return 0
    return torch.get_num_threads()


@functools.cache
def cpu_name() -> str:
    """Return the processor's name, with family and model: virtual machines show one brand for several models."""
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
    """Return the version of an installed package, or None; the package is not imported."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@functools.cache
def features() -> str:
    """Return what selects PyTorch's and oneDNN's kernels in bf16 and fp16: ``amx_tile bf16 fp16, 48K 32K 2048K``.

    These are instructions of the processor and, on Linux, the sizes of its caches.
    """
    from perflab.internals.of_torch.machine import processor_features

    sizes = []
    with contextlib.suppress(OSError):  # another system, or no further cache
        for index in range(8):
            with open(f"/sys/devices/system/cpu/cpu0/cache/index{index}/size", encoding="ascii") as file:
                sizes.append(file.read().strip())
    return ", ".join([" ".join(processor_features()) or "none", " ".join(sizes)]).rstrip(", ")
