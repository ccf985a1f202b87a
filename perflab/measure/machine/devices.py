"""What measuring asks of any device: wait, free or keep memory, evict caches, choose a precision, tell its matmul rate.

Caches are evicted by writing a buffer larger than the last-level cache whole. On CUDA that is what
``triton.testing.do_bench`` does before each call, with a buffer of 256 MiB
(https://triton-lang.org/main/python-api/generated/triton.testing.do_bench.html); NVBench writes one of the size of the
L2 cache before each cold sample (https://github.com/NVIDIA/nvbench).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perflab.base.errors import UsageError
from perflab.devices.kinds import all_devices, backend_of
from perflab.results.environment import core_numbers
from perflab.results.measurement import OutOfMemory
from perflab.units import BYTES_PER

if TYPE_CHECKING:
    import torch


PRECISIONS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_ASKED = re.compile(r"[Tt]ried to allocate ([0-9.]+) ?(bytes|[KMGT]iB|B)\b")
_CACHED = re.compile(r"([0-9.]+) ?(bytes|[KMGT]iB|B) is reserved by PyTorch but unallocated")
_RAN_OUT = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
# Parameters of mallopt(3), and their values; _KEEP_BYTES and _LARGEST_MMAP_THRESHOLD are the largest that are allowed.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_KEEP_BYTES = 2**31 - 1
_PAD_BYTES = 64 << 20
_LARGEST_MMAP_THRESHOLD = 32 << 20
"""Size in bytes above which blocks are mapped anew at every call, in every process alike."""
_SECONDS = 0.3
_ANOTHER_LOOK_SECONDS = 0.03
_SEED = 0
_FLOAT32 = {"tf32": "tf32", "bf16": "float32 as bf16"}
"""Names of the lower precisions in which PyTorch may compute float32 products, by its ``fp32_precision``."""
_rates: dict[tuple[str, str], float] = {}


def identity_of(device: torch.device | str) -> str:
    """Return a device's identity, however this process numbers it: ``cpu``, or a GPU's UUID, such as ``cuda-8a3f...``.

    ``cuda`` and ``cuda:0`` may be one GPU, and ``cuda:0`` two under two values of CUDA_VISIBLE_DEVICES.
    """
    import torch

    return backend_of(torch.device(device)).identity


def identities_of_all() -> list[str]:
    """Return the identity of every device that this process sees."""
    return [identity_of(device) for device in all_devices()]


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all work that was given to it; on a CPU, return at once."""
    backend_of(device).synchronize()


def release_memory(device: torch.device) -> None:
    """Collect garbage and release an accelerator's cached blocks, so that the work that follows starts clean."""
    gc.collect()
    backend = backend_of(device)
    backend.await_autograd()
    backend.release_cached()


def current_device(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make an accelerator the current one for the length of the block; for a CPU, do nothing."""
    return backend_of(device).current()


def available_bytes(device: torch.device) -> int | None:
    """Return the bytes that new tensors could take now; None if the system does not report them."""
    return backend_of(device).free_bytes()


def as_dtype(precision: torch.dtype | str | None) -> torch.dtype | None:
    """Return the dtype that ``precision`` names: a dtype, ``"fp32"``, ``"fp16"``, ``"bf16"``, or torch's own name.

    None for None.

    Raises:
        UsageError: the text names no floating-point dtype.
    """
    import torch

    if precision is None or isinstance(precision, torch.dtype):
        return precision
    dtype = getattr(torch, PRECISIONS.get(precision, precision), None) if isinstance(precision, str) else None
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UsageError(f"{precision!r} is not a precision", "use fp32, fp16, bf16 or a torch.dtype")
    return dtype


def autocast_on(device: torch.device, dtype: torch.dtype | str | None) -> contextlib.AbstractContextManager[object]:
    """Return ``torch.autocast`` for the device; for float32 or None a null context, so that a parameter can switch."""
    import torch

    resolved = as_dtype(dtype)
    if resolved is None or resolved == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=resolved)


def as_out_of_memory(error: BaseException) -> OutOfMemory | None:
    """Return the error as a result if it says that memory ran out, else None.

    Recognised are PyTorch's ``OutOfMemoryError`` of every device, the ``RuntimeError`` of its CPU allocator, of CUDA
    and of cuBLAS, and Python's ``MemoryError``. A plain ``RuntimeError`` has no code: its text alone tells
    what ran out. ``asked_bytes`` is the size of the failed allocation, if the error's text states it.
    """
    import torch

    text = str(error)
    if not isinstance(error, torch.OutOfMemoryError | MemoryError) and not (
        isinstance(error, RuntimeError) and any(said in text for said in _RAN_OUT)
    ):
        return None
    return OutOfMemory(asked_bytes=_bytes(_ASKED.search(text)), cached_bytes=_bytes(_CACHED.search(text)))


def _bytes(match: re.Match[str] | None) -> int | None:
    if match is None:
        return None
    return round(float(match[1]) * (1 if match[2] == "bytes" else BYTES_PER[match[2]]))


@functools.cache
def keep_freed_memory() -> bool:
    """Make this process keep the memory that it frees from now on; return whether the allocator accepted that.

    glibc gives memory at the top of its heap back as soon as enough of it is free, and maps large blocks anew each
    time. Whether a tensor's block lies at the top depends on the layout of the heap, which differs from process to
    process. Seen: the same chain of ``tanh`` over 4 MB took 5.1 ms in some processes, without a page fault, and 7.3 to
    10 ms in others, with 1,922 of them in each call. That is no property of the code. So memory that was freed is kept,
    as it is in a long-running process whose heap has grown. Only glibc is configured, because other allocators have
    rules of their own.
    """
    if not sys.platform.startswith("linux"):
        return False
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        return all(
            mallopt(parameter, value) == 1
            for parameter, value in (
                (_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD),
                (_M_TRIM_THRESHOLD, _KEEP_BYTES),
                (_M_TOP_PAD, _PAD_BYTES),
            )
        )
    return False


def precision_of_products(device: torch.device, dtype: torch.dtype) -> str:
    """Return the precision in which products of this dtype are computed at present: ``float32`` may mean ``tf32``.

    PyTorch's switches for the precision are global: ``torch.set_float32_matmul_precision`` and the ``fp32_precision``
    of ``torch.backends``.
    """
    import torch

    name = str(dtype).removeprefix("torch.")
    if dtype != torch.float32:
        return name
    return _FLOAT32.get(backend_of(device).float32_precision(), name)


def matmul_flops_per_second(device: torch.device, dtype: torch.dtype) -> float:
    """Return the device's matrix-multiply rate in FLOP/s: the best square product that this process has seen so far.

    The rate is that of the precision to which PyTorch is switched now. The first call takes a third of a second, and
    each later call measures for a moment more, since a disturbance of the first one does not last. The process's own
    random numbers are left as they are: a replicate needs no rate, and draws the same numbers.
    """
    import torch

    key = (identity_of(device), precision_of_products(device, dtype))
    side = backend_of(device).matmul_side
    numbers = torch.Generator().manual_seed(_SEED)  # a CPU's: not every kind of device has one
    left = torch.rand(side, side, generator=numbers).to(device, dtype)
    with torch.inference_mode():
        if key not in _rates:
            left @ left  # the first product of a dtype sets libraries up for as long as a second
        deadline = time.perf_counter() + (_SECONDS if key not in _rates else _ANOTHER_LOOK_SECONDS)
        best = float("inf")
        while best == float("inf") or time.perf_counter() < deadline:
            synchronize(device)
            start = time.perf_counter()
            left @ left
            synchronize(device)
            best = min(best, time.perf_counter() - start)
    _rates[key] = max(_rates.get(key, 0.0), 2.0 * side**3 / best)
    return _rates[key]


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
