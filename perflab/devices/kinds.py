"""Which devices there are: the table of their kinds, and what ``--perf-device`` means here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from perflab.base.errors import DeviceError
from perflab.devices.backend import Backend
from perflab.devices.cpu import Cpu
from perflab.devices.cuda import Cuda, Rocm
from perflab.devices.untried import Mps, Xpu

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
    count = _count(name, kind)
    if not count:
        raise DeviceError(
            f"--perf-device={name}, but PyTorch {torch.__version__} {kind_of(kind).absent(kind)}",
            "use --perf-device=cpu or auto, or check the driver (nvidia-smi, rocm-smi, xpu-smi) and PyTorch's build",
        )
    index = int(number) if number else worker % count
    if index >= count:
        raise DeviceError(
            f"--perf-device={name}, but the {_written(kind)} devices here are {kind}:0 to {kind}:{count - 1}",
            "name one of them, or look at CUDA_VISIBLE_DEVICES" if kind == "cuda" else "name one of them",
        )
    return torch.device(kind, index)


def _written(kind: str) -> str:
    return kind.upper() if kind in KINDS else kind


def _count(name: str, kind: str) -> int:
    """Return how many devices of this kind there are.

    Raises:
        DeviceError: PyTorch knows no such kind.
    """
    import torch

    try:
        if DEVICE_CHOICES.fullmatch(name) is None:
            raise RuntimeError("not the name of a device")
        torch.get_device_module(torch.device(kind))
    except (RuntimeError, AttributeError):
        raise DeviceError(f"{name!r} is not a device", f"use --perf-device={CHOICES}") from None
    return kind_of(kind).count(kind)


def all_devices() -> list[torch.device]:
    """Return every device that this process can use: the CPU first, then those of PyTorch's accelerator."""
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    kind = accelerator.type if accelerator is not None else ""
    count = kind_of(kind).count(kind) if kind else 0
    return [torch.device("cpu"), *(torch.device(kind, index) for index in range(count))]
