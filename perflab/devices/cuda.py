"""NVIDIA's GPUs by ``torch.cuda``, and AMD's, which PyTorch gives the same names: ROCm's builds are ``cuda`` too."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
import subprocess
from collections.abc import Callable
from typing import Any

from perflab.devices.backend import Backend, Quantity
from perflab.devices.gpu_state import nvml_reader, state_by_module
from perflab.results.measurement import GpuState

_PERSISTING_L2 = 6
"""``CU_LIMIT_PERSISTING_L2_CACHE_SIZE`` of ``cuda.h``."""


@functools.cache
def _driver() -> ctypes.CDLL | None:
    """Return NVIDIA's driver, which PyTorch has loaded; None under ROCm, or without these functions."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        return driver if driver.cuCtxSetLimit and driver.cuCtxResetPersistingL2Cache else None
    except (OSError, AttributeError):
        return None


class Cuda(Backend):
    """A GPU under CUDA."""

    block_bytes = 512  # kMinBlockSize of c10/cuda/CUDACachingAllocator.cpp
    matmul_side = 6144
    profiler = "cuda"
    MISSING = {}

    @classmethod
    def absent(cls, kind: str) -> str:
        """Return why this PyTorch has no GPU."""
        import torch

        built = torch.version.cuda is not None or torch.version.hip is not None
        return "sees no CUDA device" if built else "was built without CUDA"

    @property
    def index(self) -> int:
        """The GPU's number; that of the current GPU if the ``torch.device`` leaves it open."""
        return self.module.current_device() if self.device.index is None else self.device.index

    @property
    def runtime(self) -> str | None:
        """The version of CUDA for which PyTorch was built."""
        import torch

        return torch.version.cuda

    @property
    def driver(self) -> str | None:
        """The version of NVIDIA's driver; None if the system does not tell."""
        return _nvidia_driver()

    def forget_persisting(self) -> None:
        """Set aside no part of the L2 cache for lines that persist, and make those that do normal again.

        A kernel that sets some aside reads from L2 what is counted as read from memory, whatever is written between
        calls (https://github.com/karpathy/llm.c/pull/851). The driver's functions are those of the CUDA driver API.
        """
        driver = _driver()
        if driver is not None:
            driver.cuCtxSetLimit(_PERSISTING_L2, ctypes.c_size_t(0))
            driver.cuCtxResetPersistingL2Cache()

    @classmethod
    def wait_for_all(cls, kind: str) -> None:
        """Wait until all GPUs that this process uses are idle; waiting for an unused one would make a context on it."""
        import torch

        from perflab.internals.of_torch.machine import has_cuda_context

        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            for index in filter(has_cuda_context, range(torch.cuda.device_count())):
                torch.cuda.synchronize(index)

    def current(self) -> contextlib.AbstractContextManager[object]:
        """Make the GPU the current one for the length of the block."""
        around: contextlib.AbstractContextManager[object] = self.module.device(self.device)
        return around

    def current_stream(self) -> Any:
        """Return the stream on which the current thread's work is queued."""
        return self.module.current_stream(self.device)

    def new_event(self) -> Any:
        """Return a CUDA event that records times."""
        return self.module.Event(enable_timing=True)

    def float32_precision(self) -> str:
        """Return how cuBLAS computes products of float32 at present."""
        import torch

        precision: str = torch.backends.cuda.matmul.fp32_precision
        return precision

    def release_cached(self) -> None:
        """Give the blocks back that the caching allocator keeps."""
        self.module.empty_cache()

    def free_bytes(self) -> int | None:
        """Return the bytes that CUDA has left, and those that the allocator keeps unused."""
        free, _total = self.module.mem_get_info(self.device)
        return int(free) + int(self.module.memory_reserved(self.device)) - self.allocated_bytes()

    def allocated_bytes(self) -> int:
        """Return the bytes of blocks in use."""
        return int(self.module.memory_allocated(self.device))

    def reset_peak(self) -> None:
        """Make the peak begin at the memory in use now."""
        self.module.reset_peak_memory_stats(self.device)

    def peak_bytes(self) -> int:
        """Return the most bytes in use since ``reset_peak``."""
        return int(self.module.max_memory_allocated(self.device))

    def peak_reserved_bytes(self) -> int:
        """Return the most bytes that the allocator had from CUDA since ``reset_peak``."""
        return int(self.module.max_memory_reserved(self.device))

    def blocks_given_out(self) -> int | None:
        """Return how many blocks the caching allocator has given out; None with CUDA's own allocator."""
        if self.module.get_allocator_backend() != "native":
            return None
        return int(self.module.memory_stats(self.device).get("allocation.all.allocated", 0))

    def missing(self) -> dict[Quantity, str]:
        """Return what this GPU does not report; CUDA is not started for it, which would take hundreds of megabytes."""
        counts = self.module.get_allocator_backend() == "native"
        return {} if counts else {Quantity.ALLOCATIONS: "cudaMallocAsync does not count them"}

    def state_reader(self) -> Callable[[], GpuState | None]:
        """Return a function that reads the GPU's state from NVML (``pip install 'perflab[nvml]'``)."""
        return nvml_reader(self.device)


class Rocm(Cuda):
    """A GPU under ROCm.

    Memory and launches are counted as under CUDA: PyTorch's allocator is the same code, and HIP's functions have names
    of their own (``measure/counts/events.py``). Its state comes from amdsmi through ``torch.cuda``'s own functions.
    """

    @property
    def runtime(self) -> str | None:
        """Always None: there is no CUDA. PyTorch's version names ROCm's (``2.13.0+rocm7.1``)."""
        return None

    @property
    def driver(self) -> str | None:
        """The version of HIP, and whether TunableOp chooses among kernels of products by timing them."""
        import torch

        tunes = self.module.tunable.is_enabled()
        return f"HIP {torch.version.hip}{', TunableOp' if tunes else ''}"

    def state_reader(self) -> Callable[[], GpuState | None]:
        """Return a function that reads the GPU's state from amdsmi, through ``torch.cuda``'s own functions."""
        return lambda: state_by_module(self.module, self.device)


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
