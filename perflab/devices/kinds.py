"""Which devices there are: the table of their kinds, what ``--perf-device`` means here, and a device's environment."""

from __future__ import annotations

import os
import platform
import re
from typing import TYPE_CHECKING

from perflab.base.errors import DeviceError
from perflab.devices.backend import Backend
from perflab.devices.cpu import Cpu
from perflab.devices.cuda import Cuda, Rocm
from perflab.devices.untried import Mps, Xpu
from perflab.results import environment as known
from perflab.results.records import Environment

if TYPE_CHECKING:
    import torch

KINDS: dict[str, type[Backend]] = {"cpu": Cpu, "cuda": Cuda, "mps": Mps, "xpu": Xpu}
"""The kinds of which perflab knows more than ``torch.accelerator`` says, by the type of ``torch.device``."""
DEVICE_CHOICES = re.compile(r"cpu|(?!cpu\b)[a-z][a-z_]*(:\d+)?")
"""The form of a device's name, ``auto`` among them; whether there is such a device only PyTorch knows."""
CHOICES = "auto, cpu, or an accelerator as PyTorch names it: cuda, mps, xpu, cuda:1"


def backend_of(device: torch.device) -> Backend:
    """Return the object that answers for a device, of whatever kind."""
    return kind_of(device.type)(device)


def kind_of(name: str) -> type[Backend]:
    """Return the class of a kind of device; ``Backend`` itself for a kind that is not in the table."""
    import torch

    return Rocm if name == "cuda" and torch.version.hip is not None else KINDS.get(name, Backend)


def block_bytes_on(name: str) -> int:
    """Return the size of which the allocator of this kind of device gives out multiples. PyTorch is not loaded."""
    return KINDS.get(name, Backend).block_bytes


def resolve_device(name: str, worker: int = 0) -> torch.device:
    """Return the device that ``name`` means: ``auto``, ``cpu``, or an accelerator, with a number or without.

    ``auto`` is PyTorch's current accelerator if it is there. If the name leaves the number open, parallel test workers
    spread over the devices of that kind.

    Raises:
        DeviceError: the name is no device, or the device does not exist.
    """
    import torch

    kind, _, number = name.partition(":")
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        kind = accelerator.type if accelerator is not None else "cpu"
    if kind == "cpu" and not number:
        return torch.device("cpu")
    try:
        if DEVICE_CHOICES.fullmatch(name) is None:
            raise RuntimeError("not the name of a device")
        torch.get_device_module(torch.device(kind))
    except (RuntimeError, AttributeError):
        raise DeviceError(f"{name!r} is not a device", f"use --perf-device={CHOICES}") from None
    count = kind_of(kind).count(kind)
    if not count:
        raise DeviceError(
            f"--perf-device={name}, but PyTorch {torch.__version__} {kind_of(kind).absent(kind)}",
            "use --perf-device=cpu or auto, or check the driver (nvidia-smi, rocm-smi, xpu-smi) and PyTorch's build",
        )
    index = int(number) if number else worker % count
    if index >= count:
        written = kind.upper() if kind in KINDS else kind
        raise DeviceError(
            f"--perf-device={name}, but the {written} devices here are {kind}:0 to {kind}:{count - 1}",
            "name one of them, or look at CUDA_VISIBLE_DEVICES" if kind == "cuda" else "name one of them",
        )
    return torch.device(kind, index)


def all_devices() -> list[torch.device]:
    """Return every device that this process can use: the CPU first, then those of PyTorch's accelerator."""
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    kind = accelerator.type if accelerator is not None else ""
    count = kind_of(kind).count(kind) if kind else 0
    return [torch.device("cpu"), *(torch.device(kind, index) for index in range(count))]


NCCL_VARIABLES = (
    *("NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
    *("NCCL_NTHREADS", "NCCL_BUFFSIZE", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_NVLS_ENABLE"),
    *("NCCL_CUMEM_ENABLE", "NCCL_NET"),
)
"""Variables that choose how NCCL sends: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"""


def current_environment(device: torch.device, machine: str | None = None) -> Environment:
    """Return the environment of measurements that this process takes on ``device``.

    Args:
        device: the device that is measured.
        machine: the name of the pool of machines to which this one belongs; None uses this machine's own identifier.
    """
    import torch

    backend = backend_of(device)
    return Environment(
        device=device.type,
        device_name=backend.name,
        cores=known.usable_cores(),
        threads=torch.get_num_threads(),
        isa=torch.backends.cpu.get_cpu_capability(),
        features=known.features(),
        system=f"{platform.system()} {platform.machine()}",
        python=".".join(platform.python_version_tuple()[:2]),
        torch=str(torch.__version__),  # a subclass of str, which msgspec cannot encode
        triton=known.installed_version("triton"),
        cuda=backend.runtime,
        driver=backend.driver,
        machine=machine or known.this_machine(),
        nccl=nccl() if device.type == "cuda" else None,
    )


def nccl() -> str | None:
    """Return NCCL's version and settings if this process is one of several ranks, which NCCL connects on CUDA."""
    import torch
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return None
    version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return " ".join([version, *(f"{name}={os.environ[name]}" for name in NCCL_VARIABLES if name in os.environ)])
