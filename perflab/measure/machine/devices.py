"""Devices: parse, check, synchronise, free memory, and recognise that memory ran out."""

from __future__ import annotations

import contextlib
import gc
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from perflab.base.errors import DeviceError, UsageError
from perflab.results.measurement import OutOfMemory
from perflab.units import BYTES_PER

if TYPE_CHECKING:
    import torch

DEVICE_CHOICES = re.compile(r"auto|cpu|cuda|cuda:\d+")
PRECISIONS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_ASKED = re.compile(r"[Tt]ried to allocate ([0-9.]+) ?(bytes|[KMGT]iB|B)\b")
_CACHED = re.compile(r"([0-9.]+) ?(bytes|[KMGT]iB|B) is reserved by PyTorch but unallocated")
_RAN_OUT = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def resolve_device(name: str, worker: int = 0) -> torch.device:
    """Return the device that ``name`` means: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    ``auto`` takes a CUDA device if there is one. If the name leaves the number open, parallel test workers
    spread over the GPUs.

    Raises:
        DeviceError: the name is no device, or the device does not exist.
    """
    import torch

    if DEVICE_CHOICES.fullmatch(name) is None:
        raise DeviceError(f"{name!r} is not a device", "use --perf-device=auto, cpu, cuda or cuda:N")
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        if name == "auto":
            return torch.device("cpu")
        why = "was built without CUDA" if torch.version.cuda is None else "sees no CUDA device"
        raise DeviceError(
            f"--perf-device={name}, but PyTorch {torch.__version__} {why}",
            "use --perf-device=cpu or auto, or check `nvidia-smi` and the installed PyTorch build",
        )
    count = torch.cuda.device_count()
    index = int(name.partition(":")[2]) if ":" in name else worker % count
    if index >= count:
        raise DeviceError(
            f"--perf-device={name}, but the CUDA devices here are cuda:0 to cuda:{count - 1}",
            "name one of them, or look at CUDA_VISIBLE_DEVICES",
        )
    return torch.device("cuda", index)


def identity_of(device: torch.device | str) -> str:
    """Return a device's identity, however this process numbers it: ``cpu``, or a GPU's UUID, such as ``cuda-8a3f...``.

    ``cuda`` and ``cuda:0`` may be one GPU, and ``cuda:0`` two under two values of CUDA_VISIBLE_DEVICES.
    """
    import torch

    device = torch.device(device)
    if device.type != "cuda":
        return device.type
    index = torch.cuda.current_device() if device.index is None else device.index
    return f"cuda-{torch.cuda.get_device_properties(index).uuid}"


def identities_of_all() -> list[str]:
    """Return the identity of every device that this process sees."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return ["cpu", *(identity_of(torch.device("cuda", index)) for index in range(gpus))]


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all work that was given to it; on a CPU, return at once."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def release_memory(device: torch.device) -> None:
    """Collect garbage and, on CUDA, release cached blocks, so that the work that follows starts clean."""
    gc.collect()
    if device.type == "cuda":
        import torch

        torch.cuda.empty_cache()


@contextlib.contextmanager
def collector_off() -> Iterator[None]:
    """Run the block with the garbage collector off: a collection frees tensors and unloads Triton modules any time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextlib.contextmanager
def current_device(device: torch.device) -> Iterator[None]:
    """Make a CUDA device the current one for the length of the block; for a CPU, do nothing."""
    if device.type != "cuda":
        yield
        return
    import torch

    with torch.cuda.device(device):
        yield


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


def available_bytes(device: torch.device) -> int | None:
    """Return the bytes that new tensors could take now; None if the system does not report them."""
    if device.type == "cuda":
        import torch

        free, _total = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free) + int(cached)
    limits = (_proc_available_bytes(), _cgroup_available_bytes())
    return min((value for value in limits if value is not None), default=None)


def resident_bytes() -> int | None:
    """Return the bytes of the process's resident set; None if the system does not report them."""
    try:
        return int(_read("/proc/self/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None  # not Linux


def _proc_available_bytes() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _cgroup_available_bytes(root: str = "/sys/fs/cgroup") -> int | None:
    """Return the bytes left in this process's memory cgroup (version 2); None without a limit.

    A container is killed at that limit, whatever the host has. The cgroup counts pages of files that were only read as
    used, though the system frees such pages on demand; they count as left here.
    """
    try:
        limit = _read(f"{root}/memory.max")
        if limit == "max":
            return None
        used = int(_read(f"{root}/memory.current"))
        return max(0, int(limit) - used + _cgroup_file_pages(root))
    except (OSError, ValueError):
        return None


def _cgroup_file_pages(root: str) -> int:
    try:
        return int(dict(line.split() for line in _read(f"{root}/memory.stat").splitlines())["inactive_file"])
    except (OSError, ValueError, KeyError):
        return 0


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()


def as_out_of_memory(error: BaseException) -> OutOfMemory | None:
    """Return the error as a result if it says that memory ran out, else None.

    Recognised are PyTorch's ``OutOfMemoryError`` of every device, the ``RuntimeError`` of its CPU allocator, of CUDA
    and of cuBLAS, and Python's ``MemoryError``. ``asked_bytes`` is the size of the failed allocation, if the error's
    text states it.
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
