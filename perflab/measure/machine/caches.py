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

from perflab.devices.kinds import backend_of
from perflab.results.environment import core_numbers

if TYPE_CHECKING:
    import torch

EVICTING_CACHES = 2
"""Size of the eviction buffer, in sizes of the cache: writing a single size would leave some old content cached."""
LEAST_BYTES = 256 << 20
"""Least size of the buffer on an accelerator, as in ``triton.testing.do_bench``; twice an L2 cache of 128 MiB."""
UNKNOWN_CACHE_BYTES = 128 << 20
"""Assumed size of the last-level cache of a CPU whose system does not report the size: few CPUs have more."""
_CORES = "/sys/devices/system/cpu"


class Eviction:
    """A callable that evicts the content of a device's caches; the eviction buffer is allocated at the first call."""

    def __init__(self, device: torch.device) -> None:
        self.size_bytes = eviction_bytes(device)
        self._device = device
        self._backend = backend_of(device)
        self._buffer: torch.Tensor | None = None

    def __call__(self) -> None:
        """Write the buffer; on an accelerator the write is queued on the current stream, and nobody waits for it."""
        import torch

        self._backend.forget_persisting()
        if self._buffer is None:
            self._buffer = torch.zeros(self.size_bytes // 4, dtype=torch.int32, device=self._device)
        if not self._backend.is_host:
            self._buffer.zero_()
        else:
            self._buffer.add_(1)  # reads too: stores that merely fill may pass the caches by

    def release(self) -> None:
        """Free the buffer."""
        self._buffer = None


def eviction_bytes(device: torch.device) -> int:
    """Return the size in bytes of a buffer that evicts the device's caches when it is written."""
    backend = backend_of(device)
    if backend.is_host:
        return EVICTING_CACHES * (last_level_cache_bytes() or UNKNOWN_CACHE_BYTES)
    return max(LEAST_BYTES, EVICTING_CACHES * (backend.cache_bytes() or 0))


def last_level_cache_bytes(root: str = _CORES, cores: Sequence[int] | None = None) -> int | None:
    """Return the bytes of all last-level caches of the cores that this process may use, each counted once.

    None if the sizes are unknown.

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
    """Return level, sharing cores and size in bytes of a cache; None for an instruction cache or an unreadable one."""
    try:
        level, kind, shared_by, size = (
            (path / name).read_text(encoding="ascii").strip() for name in ("level", "type", "shared_cpu_list", "size")
        )
        units = {"K": 1 << 10, "M": 1 << 20}
        return None if kind == "Instruction" else (int(level), shared_by, int(size[:-1]) * units[size[-1]])
    except (OSError, ValueError, KeyError, IndexError):
        return None


def _asked_of_libc() -> int | None:
    """Return the bytes of one last-level cache from glibc, which knows some processors even where /sys is hidden."""
    for name in ("SC_LEVEL4_CACHE_SIZE", "SC_LEVEL3_CACHE_SIZE", "SC_LEVEL2_CACHE_SIZE"):
        try:
            size_bytes = os.sysconf(name)
        except (AttributeError, ValueError, OSError):  # Windows has no such function
            continue
        if size_bytes > 0:
            return size_bytes
    return None
