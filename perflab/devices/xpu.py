"""Intel's GPUs by ``torch.xpu``."""

from __future__ import annotations

from collections.abc import Callable

from perflab.devices.backend import Backend, Quantity
from perflab.devices.gpu_state import state_by_module
from perflab.results.measurement import GpuState


class Xpu(Backend):
    """A GPU of Intel's. No such device has run perflab."""

    block_bytes = 512  # kMinBlockSize of c10/xpu/XPUCachingAllocator.cpp
    MISSING = {
        **Backend.MISSING,
        Quantity.PROFILE: "the profiler loses operators in PyTorch 2.13 (torch-xpu-ops#3985)",
    }
    MISSING.pop(Quantity.EVIDENCE)

    @property
    def name(self) -> str:
        """The GPU's name as the driver writes it."""
        return str(self.module.get_device_name(self.device))

    def state_reader(self) -> Callable[[], GpuState | None]:
        """Return a function that reads the GPU's state from Level Zero, through ``torch.xpu``'s own functions."""
        return lambda: state_by_module(self.module, self.device)
