"""The CPU: work is done when a call returns, and memory is the host's."""

from __future__ import annotations

import contextlib
import os

from perflab.devices.backend import Quantity, Single
from perflab.results import environment


class Cpu(Single):
    """The host's processor."""

    is_host = True
    matmul_side = 768
    MISSING = {
        Quantity.EVENTS: "calls return when their work is done: the host's clock times them",
        Quantity.LAUNCHES: "its kernels are functions that are called",
        Quantity.GRAPHS: "its kernels are functions that are called",
        Quantity.RANGES: "torch.profiler's ranges serve",
    }

    @classmethod
    def count(cls, kind: str) -> int:
        """Return 1: all processors together are one device."""
        return 1

    @property
    def name(self) -> str:
        """The processor's name, with family and model."""
        return environment.cpu_name()

    @property
    def identity(self) -> str:
        """The kind's name: there is one."""
        return self.device.type

    def missing(self) -> dict[Quantity, str]:
        """Return the quantities that have no meaning on a CPU."""
        return dict(self.MISSING)

    def synchronize(self) -> None:
        """Return at once."""

    def current(self) -> contextlib.AbstractContextManager[object]:
        """Return a context that does nothing."""
        return contextlib.nullcontext()

    def float32_precision(self) -> str:
        """Return how oneDNN computes products of float32 at present."""
        import torch

        precision: str = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
        return precision

    def await_autograd(self) -> None:
        """Return at once: a backward on a CPU runs in the thread that asks for it."""

    def release_cached(self) -> None:
        """Do nothing: PyTorch keeps no blocks of a CPU's memory."""

    def free_bytes(self) -> int | None:
        """Return the bytes that the system, and this process's cgroup, have left; None if neither is reported."""
        limits = (_proc_available_bytes(), _cgroup_available_bytes())
        return min((value for value in limits if value is not None), default=None)

    def allocated_bytes(self) -> int | None:
        """Return the bytes of the process's resident set; None if the system does not report them."""
        return resident_bytes()


def resident_bytes() -> int | None:
    """Return the bytes of the process's resident set; None if the system does not report them."""
    try:
        return int(_read("/proc/self/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None  # not Linux


def _proc_available_bytes() -> int | None:
    with contextlib.suppress(OSError, KeyError, ValueError):  # not Linux
        return 1024 * int(dict(line.split()[:2] for line in _read("/proc/meminfo").splitlines())["MemAvailable:"])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no such function
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
        left = int(limit) - int(_read(f"{root}/memory.current"))
        with contextlib.suppress(OSError, ValueError, KeyError):
            left += int(dict(line.split() for line in _read(f"{root}/memory.stat").splitlines())["inactive_file"])
        return max(0, left)
    except (OSError, ValueError):
        return None


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()
