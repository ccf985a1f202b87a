"""Describes the machine, its device and its versions as they are now."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

from perflab.devices.kinds import backend_of
from perflab.results import environment as known
from perflab.results.records import Environment

if TYPE_CHECKING:
    import torch

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
