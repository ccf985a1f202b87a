"""Describes the machine, its device and its versions as they are now."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from perflab.devices.kinds import backend_of
from perflab.results import environment as known
from perflab.results.records import Environment

if TYPE_CHECKING:
    import torch


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
    )
