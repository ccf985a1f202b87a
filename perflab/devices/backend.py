"""What perflab asks of a device, answered by ``torch.accelerator`` for every kind that registers itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from perflab.base.errors import UnansweredError
from perflab.results.measurement import GpuState

if TYPE_CHECKING:
    import torch


class Quantity(StrEnum):
    """A quantity that not every kind of device reports; the value is its name in ``perflab doctor`` and the docs."""

    EVENTS = "times by the device's own events"
    PEAK = "exact peak memory"
    ALLOCATIONS = "allocations"
    LAUNCHES = "kernel launches and waits of the host"
    PROFILE = "profile by operator"
    HISTORY = "history of allocations"
    GRAPHS = "CUDA graphs"
    RANGES = "ranges for a tracer"
    EVIDENCE = "clocks, temperature and other processes as evidence"
    FLOAT64 = "references in float64 on the device"


class Backend:
    """One device, by the functions of ``torch.accelerator``: the answers for a kind of which perflab knows no more.

    A kind that reports more or less has a subclass, which is named in ``perflab.devices.kinds``.
    """

    is_host: ClassVar[bool] = False
    """Whether calls return only when their work is done, and memory is the host's: a CPU."""
    block_bytes: ClassVar[int] = 1
    """Size of which the device's allocator gives out and counts multiples."""
    matmul_side: ClassVar[int] = 2048
    """Side of square matrices whose product is long compared with a launch, and short compared with a case."""
    profiler: ClassVar[str | None] = None
    """The name under which PyTorch's profiler records the device; None if perflab does not read what it records."""
    MISSING: ClassVar[Mapping[Quantity, str]] = {
        Quantity.LAUNCHES: "perflab knows no names of its driver's functions",
        Quantity.PROFILE: "perflab does not read the profiler's records of this device",
        Quantity.HISTORY: "perflab does not read its allocator's history",
        Quantity.GRAPHS: "perflab captures graphs on CUDA alone",
        Quantity.RANGES: "perflab knows no tracer of this device",
        Quantity.EVIDENCE: "PyTorch has no common functions for them",
    }
    """The quantities that this kind never reports, each with the reason."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    # --- which device it is -------------------------------------------------------------------------------------

    @classmethod
    def absent(cls, kind: str) -> str:
        """Return why this PyTorch has no device of this kind, to follow "PyTorch 2.13.0 "."""
        return f"sees no {kind} device"

    @classmethod
    def count(cls, kind: str) -> int:
        """Return the number of devices of this kind that this process can use."""
        import torch

        module: Any = torch.get_device_module(kind)
        return int(module.device_count()) if module.is_available() else 0

    @property
    def module(self) -> Any:
        """PyTorch's module of this kind of device, such as ``torch.xpu``."""
        import torch

        return torch.get_device_module(self.device)

    @property
    def index(self) -> int:
        """The device's number; that of the current device if the ``torch.device`` leaves it open."""
        import torch

        return torch.accelerator.current_device_index() if self.device.index is None else self.device.index

    @property
    def name(self) -> str:
        """The device's name as its vendor writes it; its kind if the vendor's module does not tell."""
        properties = self.properties
        return str(getattr(properties, "name", None) or self.device.type)

    @property
    def properties(self) -> Any:
        """The answer of ``get_device_properties``; None if the module has no such function."""
        ask = getattr(self.module, "get_device_properties", None)
        return ask(self.index) if ask is not None else None

    @property
    def identity(self) -> str:
        """A name that is the device's alone, however this process numbers it: ``xpu-8a3f…``, for locks."""
        return f"{self.device.type}-{getattr(self.properties, 'uuid', self.index)}"

    @property
    def runtime(self) -> str | None:
        """The version of CUDA for which PyTorch was built; None for a device without CUDA."""
        return None

    @property
    def driver(self) -> str | None:
        """The version of the driver, and what else decides how it computes; None if it is unknown."""
        version = getattr(self.properties, "driver_version", None)
        return str(version) if version is not None else None

    # --- what it can tell ---------------------------------------------------------------------------------------

    def missing(self) -> dict[Quantity, str]:
        """Return the quantities that this device does not report here, each with the reason."""
        found = dict(self.MISSING)
        counted = {Quantity.PEAK: self.peak_bytes(), Quantity.ALLOCATIONS: self.blocks_given_out()}
        for quantity, answer in counted.items():
            if answer is not None:
                found.pop(quantity, None)
            else:
                found.setdefault(quantity, "its allocator does not count")
        return found

    @classmethod
    def tells(cls, quantity: Quantity) -> bool:
        """Whether this kind of device may report the quantity; ``missing`` says what the device itself does not."""
        return quantity not in cls.MISSING

    def refuse(self, quantity: Quantity, remedy: str) -> None:
        """Raise UnansweredError with the reason if this kind of device never reports the quantity."""
        if (why := self.MISSING.get(quantity)) is not None:
            raise UnansweredError(f"no {quantity} on {self.device}: {why}", remedy)

    # --- work ---------------------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Wait until the device has done all work that was given to it."""
        import torch

        own = getattr(self.module, "synchronize", torch.accelerator.synchronize)
        own(self.device)

    @classmethod
    def wait_for_all(cls, kind: str) -> None:
        """Wait until all devices of this kind that this process uses are idle."""
        import torch

        for index in range(cls.count(kind)):
            cls(torch.device(kind, index)).synchronize()

    @property
    def waits_by_itself(self) -> bool:
        """Whether the device's module has a ``synchronize`` of its own, which can be trusted to wait."""
        return getattr(self.module, "synchronize", None) is not None

    def current(self) -> contextlib.AbstractContextManager[object]:
        """Make the device the current one for the length of the block."""
        import torch

        return torch.accelerator.device_index(self.index)

    def current_stream(self) -> Any:
        """Return the stream on which the current thread's work is queued."""
        import torch

        return torch.accelerator.current_stream(self.device)

    def new_event(self) -> Any:
        """Return an event that records times, with ``record(stream)``, ``synchronize`` and ``elapsed_time`` in ms."""
        import torch

        return torch.Event(self.device, enable_timing=True)

    def float32_precision(self) -> str:
        """Return how products of float32 are computed at present, as ``fp32_precision`` of ``torch.backends`` says."""
        return "ieee"

    # --- memory -------------------------------------------------------------------------------------------------

    def release_cached(self) -> None:
        """Give the blocks back that the allocator keeps for later."""
        import torch

        with contextlib.suppress(RuntimeError, NotImplementedError):  # an allocator that keeps none
            torch.accelerator.empty_cache()

    def free_bytes(self) -> int | None:
        """Return the bytes that new tensors could take now; None if the system does not report them."""
        import torch

        try:
            free, _total = torch.accelerator.get_memory_info(self.device)
        except (RuntimeError, NotImplementedError):
            return None
        stats = self._stats()
        return int(free) + stats.get("reserved_bytes.all.current", 0) - stats.get("allocated_bytes.all.current", 0)

    def await_autograd(self) -> None:
        """Wait until autograd's thread for this device has dropped the results of the last ``torch.autograd.grad``.

        It does so after ``grad`` has returned, and until then they count as memory in use. An empty gradient that
        passes through the same thread comes back only after that. A device that this process has not used is not
        started for it.
        """
        import torch

        is_used = getattr(torch.get_device_module(self.device), "is_initialized", None)
        if is_used is not None and not is_used():
            return
        with torch.inference_mode(False), contextlib.suppress(RuntimeError):  # a backend that makes no empty tensors
            leaf = torch.empty(0, device=self.device, requires_grad=True)
            torch.autograd.grad(leaf, leaf, leaf)

    def allocated_bytes(self) -> int | None:
        """Return the bytes of blocks in use; None if the allocator does not report them."""
        return self._stats().get("allocated_bytes.all.current")

    def reset_peak(self) -> None:
        """Make the peak begin at the memory in use now."""
        import torch

        with contextlib.suppress(RuntimeError, NotImplementedError):  # an allocator without counters has no peak
            torch.accelerator.reset_peak_memory_stats(self.device)

    def peak_bytes(self) -> int | None:
        """Return the most bytes in use since ``reset_peak``; None if the allocator keeps no peak."""
        return self._stats().get("allocated_bytes.all.peak")

    def peak_reserved_bytes(self) -> int | None:
        """Return the most bytes that the allocator had from the driver since ``reset_peak``; None if unknown."""
        return self._stats().get("reserved_bytes.all.peak") or None

    def blocks_given_out(self) -> int | None:
        """Return how many blocks the allocator has given out since the process began; None if it does not count."""
        return self._stats().get("allocation.all.allocated")

    def _stats(self) -> Mapping[str, int]:
        """Return the allocator's counters; empty if it has none, which ``torch.accelerator`` reports as 0."""
        import torch

        _used(self.device)
        try:
            return torch.accelerator.memory_stats(self.device)
        except (RuntimeError, NotImplementedError):
            return {}

    def cache_bytes(self) -> int | None:
        """Return the size of the device's last-level cache; None if it is unknown."""
        size = getattr(self.properties, "L2_cache_size", None) or getattr(
            self.properties, "last_level_cache_size", None
        )
        return int(size) if size else None

    def forget_persisting(self) -> None:
        """Let go what a kernel has made stay in the device's caches, which no eviction reaches; most have no such."""
        return

    # --- evidence -----------------------------------------------------------------------------------------------

    def state_reader(self) -> Callable[[], GpuState | None]:
        """Return a function that reads clocks, temperature and such; it returns None if the kind does not tell them."""
        return lambda: None


class Single(Backend):
    """A device of which a machine has one, and of which PyTorch has no properties."""

    @property
    def index(self) -> int:
        """The number of the device, which is the only one."""
        return 0

    @property
    def properties(self) -> Any:
        """Always None."""
        return None


@cache
def _used(device: torch.device) -> None:
    """Use the device's allocator, once a process: before its first block it reports no counters, as if it had none."""
    import torch

    torch.empty(1, device=device)
