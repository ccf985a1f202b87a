"""Kinds of GPU on which no perflab has run: Apple's by ``torch.mps``, and Intel's by ``torch.xpu``."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from perflab.devices.backend import Backend, Quantity, Single
from perflab.devices.gpu_state import state_by_module
from perflab.results.measurement import GpuState

_POWER = ("pmset", "-g")
"""macOS's command that prints the settings of power management in use, ``lowpowermode`` among them (man pmset)."""
_HEAT = ("pmset", "-g", "therm")
"""The same command's report on heat: ``CPU_Speed_Limit`` is below 100 while the machine slows itself down."""


class Mps(Single):
    """The GPU of an Apple machine, which shares the host's memory.

    The functions of ``torch.mps`` take no device: there is one. Its events are not used: before PyTorch 2.14 they may
    hang or run backwards (https://github.com/pytorch/pytorch/issues/196395).
    """

    MISSING = {
        **Backend.MISSING,
        Quantity.EVENTS: "before PyTorch 2.14 they may hang or run backwards (pytorch#196395)",
        Quantity.PEAK: "before PyTorch 2.14 its allocator keeps none: the most at the ends of phases, not compared",
        Quantity.ALLOCATIONS: "before PyTorch 2.14 its allocator does not count them",
        Quantity.FLOAT64: "Metal has no float64: references run on the CPU, with the same inputs bit for bit",
    }
    MISSING.pop(Quantity.EVIDENCE)

    @property
    def name(self) -> str:
        """The name of Apple's chip: ``Apple M3 Max``."""
        import torch

        return str(torch.backends.mps.get_name())

    def synchronize(self) -> None:
        """Wait until all streams of the device are idle."""
        self.module.synchronize()

    def release_cached(self) -> None:
        """Give the blocks back that the allocator keeps."""
        self.module.empty_cache()

    def free_bytes(self) -> int | None:
        """Return what is left of the memory that Metal recommends to use at most."""
        return int(self.module.recommended_max_memory()) - self.allocated_bytes()

    def allocated_bytes(self) -> int:
        """Return the bytes of blocks in use; ``driver_allocated_memory`` is the pool, which may be many times that."""
        return int(self.module.current_allocated_memory())

    def state_reader(self) -> Callable[[], GpuState | None]:
        """Return a function that asks macOS whether low power mode or heat slows the machine down."""
        return _power_state


def _power_state() -> GpuState | None:
    try:
        power, heat = (
            dict(line.split()[:2] for line in _said(command).replace("=", " ").splitlines() if len(line.split()) >= 2)
            for command in (_POWER, _HEAT)
        )
    except (OSError, subprocess.SubprocessError):
        return None
    limit = heat.get("CPU_Speed_Limit", "100")
    slowed = {
        "low power mode": power.get("lowpowermode", "0") != "0",
        "thermal pressure": limit.isdecimal() and int(limit) < 100,
    }
    return GpuState(throttle=[reason for reason, holds in slowed.items() if holds])


def _said(command: tuple[str, ...]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout


class Xpu(Backend):
    """A GPU of Intel's."""

    block_bytes = 512  # kMinBlockSize of c10/xpu/XPUCachingAllocator.cpp
    MISSING = {**Backend.MISSING, Quantity.PROFILE: "the profiler loses operators in PyTorch 2.13 (torch-xpu-ops#3985)"}
    MISSING.pop(Quantity.EVIDENCE)

    def state_reader(self) -> Callable[[], GpuState | None]:
        """Return a function that reads the GPU's state from Level Zero, through ``torch.xpu``'s own functions."""
        return lambda: state_by_module(self.module, self.device)
