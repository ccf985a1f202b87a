"""Cold caches: finds the size of a device's caches and evicts them.

A buffer larger than the last-level cache is written whole. On CUDA that is what ``triton.testing.do_bench`` does before
each call, with a buffer of 256 MiB (https://triton-lang.org/main/python-api/generated/triton.testing.do_bench.html);
NVBench writes one of the size of the L2 cache before each cold sample (https://github.com/NVIDIA/nvbench).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perflab.environment import core_numbers

if TYPE_CHECKING:
    import torch

EVICTING_CACHES = 2
"""The buffer is so many times as large as the cache: one pass over as much as it holds would leave some of it there."""
LEAST_CUDA_BYTES = 256 << 20
"""As ``triton.testing.do_bench`` has it; twice the L2 cache of GPUs up to 128 MiB."""
UNKNOWN_CACHE_BYTES = 128 << 20
"""Taken for the last-level cache of a CPU whose system does not tell its size: few have more."""
_CORES = "/sys/devices/system/cpu"


class Eviction:
    """Evicts what a device's caches hold, each time it is called. Its buffer is allocated at the first call."""

    def __init__(self, device: torch.device) -> None:
        self.size_bytes = eviction_bytes(device)
        self._device = device
        self._buffer: torch.Tensor | None = None

    def __call__(self) -> None:
        """Write the buffer; on CUDA the current stream does so, and nobody waits for it."""
        import torch

        if self._buffer is None:
            self._buffer = torch.zeros(self.size_bytes // 4, dtype=torch.int32, device=self._device)
        if self._device.type == "cuda":
            self._buffer.zero_()
        else:
            self._buffer.add_(1)  # reads too: stores that merely fill may pass the caches by

    def release(self) -> None:
        """Give the buffer back."""
        self._buffer = None


def eviction_bytes(device: torch.device) -> int:
    """How large a buffer has to be to evict the device's caches by being written."""
    if device.type != "cuda":
        return EVICTING_CACHES * (last_level_cache_bytes() or UNKNOWN_CACHE_BYTES)
    import torch

    l2_bytes = int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))
    return max(LEAST_CUDA_BYTES, EVICTING_CACHES * l2_bytes)


def last_level_cache_bytes(root: str = _CORES, cores: Sequence[int] | None = None) -> int | None:
    """Size of all last-level caches of the cores that this process may use, each counted once; None if unknown.

    A processor may have several, one for each group of cores, and a thread may be moved to any of them.
    """
    caches: dict[tuple[int, str], int] = {}
    for core in core_numbers() if cores is None else cores:
        found = [cache for path in Path(root, f"cpu{core}", "cache").glob("index*") if (cache := _read(path))]
        if found:
            level, shared_by, size_bytes = max(found)
            caches[level, shared_by] = size_bytes
    return sum(caches.values()) or _asked_of_libc()


def _read(path: Path) -> tuple[int, str, int] | None:
    """Level, cores that share it, and size of one cache; None of instructions' own and of what cannot be read."""
    try:
        level, kind, shared_by, size = (
            (path / name).read_text(encoding="ascii").strip() for name in ("level", "type", "shared_cpu_list", "size")
        )
        units = {"K": 1 << 10, "M": 1 << 20}
        return None if kind == "Instruction" else (int(level), shared_by, int(size[:-1]) * units[size[-1]])
    except (OSError, ValueError, KeyError, IndexError):
        return None


def _asked_of_libc() -> int | None:
    """One last-level cache, as glibc knows it of some processors where /sys is hidden."""
    for name in ("SC_LEVEL4_CACHE_SIZE", "SC_LEVEL3_CACHE_SIZE", "SC_LEVEL2_CACHE_SIZE"):
        try:
            size_bytes = os.sysconf(name)
        except (ValueError, OSError):
            continue
        if size_bytes > 0:
            return size_bytes
    return None
