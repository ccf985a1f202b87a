"""What perflab asks of Apple's, Intel's and AMD's devices, against recorded answers: none of them is here.

Each stand-in has the functions of PyTorch's module for that device, and answers as the source that it names says.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perflab.base.errors import UnansweredError
from perflab.devices import untried
from perflab.devices.backend import Backend, Quantity
from perflab.devices.cpu import Cpu
from perflab.devices.cuda import Cuda, Rocm
from perflab.devices.kinds import KINDS, all_devices, backend_of, block_bytes_on, kind_of, resolve_device
from perflab.devices.untried import Mps, Xpu
from perflab.judging.doubts import SLOWED_DOWN
from perflab.measure.calls.workload import Workload
from perflab.measure.clocks.device_clock import events_fail, wait_of_the_host
from perflab.measure.counts.events import Event, Span, count_fallbacks, count_launches
from perflab.measure.memory.peak import measure_memory
from perflab.measurement.measurement import stopwatch_for
from perflab.results.measurement import GpuState

MPS, XPU, GPU = torch.device("mps", 0), torch.device("xpu", 0), torch.device("cuda", 0)
GIB = 1 << 30


class NoStats:
    """The functions of ``torch.accelerator`` for a device whose allocator is no ``c10::DeviceAllocator``.

    c10/core/CachingDeviceAllocator.h, getDeviceAllocator: "Allocator for mps is not a DeviceAllocator."
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("memory_stats", "reset_peak_memory_stats", "empty_cache", "get_memory_info"):
            monkeypatch.setattr(torch.accelerator, name, self.refuses)

    @staticmethod
    def refuses(*_arguments: Any) -> Any:
        raise RuntimeError("Allocator for mps is not a DeviceAllocator.")


@pytest.fixture
def apple(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An M3 Max with 36 GiB under PyTorch 2.13, by the functions of torch/mps/__init__.py; its pool is large."""
    NoStats(monkeypatch)
    monkeypatch.setattr("perflab.devices.backend._used", lambda _device: None)
    waited: list[int] = []
    module = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        synchronize=lambda: waited.append(1),
        empty_cache=lambda: None,
        current_allocated_memory=lambda: int(1.5 * GIB),
        driver_allocated_memory=lambda: int(11.3 * GIB),
        recommended_max_memory=lambda: 27 * GIB,
        waited=waited,
    )
    monkeypatch.setattr(Mps, "module", module)
    monkeypatch.setattr(torch.backends.mps, "get_name", lambda: "Apple M3 Max")
    monkeypatch.setattr(torch.accelerator, "device_index", None)
    return module


# --- Apple -------------------------------------------------------------------------------------------------------


def test_memory_on_mps_is_what_is_in_use_and_not_the_pool(apple: SimpleNamespace) -> None:
    backend = backend_of(MPS)
    assert (backend.name, backend.identity, backend.runtime) == ("Apple M3 Max", "mps-0", None)
    assert backend.allocated_bytes() == int(1.5 * GIB)
    assert backend.free_bytes() == 27 * GIB - int(1.5 * GIB)
    assert backend.peak_bytes() is backend.blocks_given_out() is backend.peak_reserved_bytes() is None
    assert backend.missing()[Quantity.PEAK] == Mps.MISSING[Quantity.PEAK]


def test_a_peak_on_mps_is_the_most_at_the_ends_of_phases_and_not_exact(
    apple: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = iter([100, 700, 300])  # before, at the end of the first phase, at the end
    apple.current_allocated_memory = lambda: next(levels)
    monkeypatch.setattr("perflab.measure.memory.alike.held_bytes", lambda _roots, _device: 64)

    class Phased(Workload):
        def run(self, after_phase: Any = lambda: None) -> None:
            after_phase()

    memory, _ = measure_memory(Phased(lambda: None, (), {}), MPS)
    assert (memory.peak_bytes, memory.growth_bytes, memory.exact_bytes) == (664, 600, None)
    assert memory.calls_differ == ["the peak on mps is the most at the ends of phases"]


def test_mps_is_timed_by_the_hosts_clock_with_a_wait(apple: SimpleNamespace) -> None:
    stopwatch = stopwatch_for(MPS)
    stopwatch.time(Workload(lambda: None, (), {}), 5)
    assert (stopwatch.name, apple.waited) == ("host", [1, 1])


PMSET = {
    ("pmset", "-g"): "System-wide power settings:\nCurrently in use:\n standby           1\n lowpowermode      {}\n",
    ("pmset", "-g", "therm"): "Note: No thermal warning level has been recorded\n\tCPU_Scheduler_Limit \t= 100\n"
    "\tCPU_Available_CPUs \t= 12\n\tCPU_Speed_Limit \t= {}\n",
}
"""What ``pmset`` prints, by its manual page (https://ss64.com/mac/pmset.html); not recorded on a Mac."""


@pytest.mark.parametrize(
    ("power", "limit", "reasons"), [(0, 100, []), (1, 100, ["low power mode"]), (0, 62, ["thermal pressure"])]
)
def test_low_power_and_heat_of_an_apple_are_evidence(
    apple: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, power: int, limit: int, reasons: list[str]
) -> None:
    said = {("pmset", "-g"): power, ("pmset", "-g", "therm"): limit}
    monkeypatch.setattr(untried, "_said", lambda command: PMSET[command].format(said[command]))
    assert backend_of(MPS).state_reader()() == GpuState(throttle=reasons)
    assert set(reasons) <= set(SLOWED_DOWN), "what slows the machine down is named beside a slower case"


def test_without_pmset_an_apple_has_no_evidence(apple: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_arguments, **_more: _raises(FileNotFoundError("pmset")))
    assert backend_of(MPS).state_reader()() is None


# --- Intel -------------------------------------------------------------------------------------------------------


@pytest.fixture
def intel(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A B60 under PyTorch 2.13, by torch/xpu/__init__.py; the counters have the names of torch/xpu/memory.py."""
    stats = {
        "allocated_bytes.all.current": 3 << 20,
        "allocated_bytes.all.peak": 5 << 20,
        "reserved_bytes.all.current": 8 << 20,
        "reserved_bytes.all.peak": 8 << 20,
        "allocation.all.allocated": 17,
    }
    monkeypatch.setattr("perflab.devices.backend._used", lambda _device: None)
    monkeypatch.setattr(torch.accelerator, "memory_stats", lambda _device: stats)
    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda _device: (20 * GIB, 24 * GIB))
    module = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 2,
        synchronize=lambda _device: None,
        get_device_properties=lambda _index: SimpleNamespace(
            name="Intel(R) Arc(TM) Pro B60 Graphics",
            driver_version="1.6.33578",
            uuid="8680b0e2-0000",
            last_level_cache_size=18 << 20,
        ),
        temperature=lambda _device: 61.4,
        clock_rate=lambda _device: 2400.0,
        power_draw=lambda _device: 118.25,
    )
    monkeypatch.setattr(Xpu, "module", module)
    return module


def test_an_intel_gpu_tells_its_memory_driver_and_state(intel: SimpleNamespace) -> None:
    backend = backend_of(XPU)
    assert (backend.name, backend.driver) == ("Intel(R) Arc(TM) Pro B60 Graphics", "1.6.33578")
    assert (backend.identity, backend.cache_bytes()) == ("xpu-8680b0e2-0000", 18 << 20)
    assert (backend.allocated_bytes(), backend.peak_bytes(), backend.blocks_given_out()) == (3 << 20, 5 << 20, 17)
    assert backend.free_bytes() == 20 * GIB + (5 << 20)
    assert backend.state_reader()() == GpuState(sm_clock_mhz=2400, temperature_c=61, power_w=118.25)
    assert block_bytes_on("xpu") == 512
    assert Quantity.PEAK not in backend.missing()


def test_an_intel_gpu_that_needs_privileges_to_tell_says_nothing(intel: SimpleNamespace) -> None:
    for name in ("temperature", "clock_rate", "power_draw"):
        setattr(intel, name, lambda _device: _raises(RuntimeError("Try running with elevated privileges")))
    assert backend_of(XPU).state_reader()() is None


# --- AMD ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def amd(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An MI300X under ROCm 7.1: torch/cuda/__init__.py reads amdsmi, whose unknown figures PyTorch turns into 0."""
    module = SimpleNamespace(
        tunable=SimpleNamespace(is_enabled=lambda: True),
        clock_rate=lambda _device: 2100,
        temperature=lambda _device: 55,
        power_draw=lambda _device: 0,
        list_gpu_processes=lambda _device: "GPU:0\nprocess    4194305 uses     1500.000 MB GPU memory",
        get_device_properties=lambda _index: SimpleNamespace(name="AMD Instinct MI300X"),
    )
    monkeypatch.setattr(torch.version, "hip", "7.1.25424")
    monkeypatch.setattr(Rocm, "module", module)
    return module


def test_a_build_for_rocm_has_hips_version_and_tunableop_in_its_environment(amd: SimpleNamespace) -> None:
    assert kind_of("cuda") is Rocm
    backend = backend_of(GPU)
    assert (backend.name, backend.runtime) == ("AMD Instinct MI300X", None)
    assert backend.driver == "HIP 7.1.25424, TunableOp"
    amd.tunable.is_enabled = lambda: False
    assert backend.driver == "HIP 7.1.25424"


def test_amdsmis_figures_are_evidence_and_its_zeros_are_unknown(amd: SimpleNamespace) -> None:
    assert backend_of(GPU).state_reader()() == GpuState(sm_clock_mhz=2100, temperature_c=55)


def test_without_amdsmi_there_is_no_evidence(amd: SimpleNamespace) -> None:
    for name in ("clock_rate", "temperature", "power_draw"):
        setattr(amd, name, lambda _device: _raises(ModuleNotFoundError("amdsmi is not installed.")))
    amd.list_gpu_processes = lambda _device: "amdsmi module not found, please install amdsmi"
    assert backend_of(GPU).state_reader()() is None


def test_launches_and_waits_of_hip_are_counted_by_their_own_names() -> None:
    names = ("hipModuleLaunchKernel", "hipLaunchKernel", "hipExtModuleLaunchKernel", "hipMemcpyWithStream", "hipMalloc")
    events = [Event(name, 10 * at, 10 * at + 5, correlation=at + 1) for at, name in enumerate(names)]
    assert count_launches(events, Span(0, 100)) == {"kernel_launches": 3, "host_syncs": 1}


# --- any ---------------------------------------------------------------------------------------------------------


def test_operators_without_a_kernel_of_the_device_are_counted_by_name_with_what_they_call() -> None:
    events = [
        Event("aten::linear", 0, 100),
        Event("aten::addmm", 10, 60),
        Event("aten::_to_cpu", 12, 20),
        Event("aten::to", 13, 19),
        Event("aten::nonzero", 70, 95),
        Event("aten::_to_cpu", 71, 75),
        Event("aten::relu", 110, 120),
        Event("aten::nonzero", 130, 150),
        Event("aten::_to_cpu", 131, 135),
    ]
    assert count_fallbacks(events, Span(0, 200)) == {"on_the_cpu:aten::addmm": 1, "on_the_cpu:aten::nonzero": 2}


@pytest.mark.parametrize("kind", [Backend, *KINDS.values(), Rocm])
def test_every_kind_has_a_reason_for_each_quantity_that_it_does_not_tell(kind: type[Backend]) -> None:
    assert set(kind.MISSING) <= set(Quantity)
    assert all(kind.MISSING.values())


def test_what_is_not_told_is_refused_with_its_reason() -> None:
    with pytest.raises(UnansweredError, match="no CUDA graphs on xpu:0: perflab captures graphs on CUDA alone"):
        backend_of(XPU).refuse(Quantity.GRAPHS, "leave them out")
    backend_of(GPU).refuse(Quantity.GRAPHS, "leave them out")


def test_auto_is_pytorchs_own_accelerator(monkeypatch: pytest.MonkeyPatch, intel: SimpleNamespace) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("xpu"))
    monkeypatch.setattr(torch, "get_device_module", lambda _device: intel)
    assert [resolve_device(name, 1) for name in ("auto", "xpu", "xpu:0")] == [torch.device("xpu", n) for n in (1, 1, 0)]
    assert all_devices() == [torch.device("cpu"), torch.device("xpu", 0), torch.device("xpu", 1)]


def test_a_cpu_and_cuda_need_no_trial_of_their_events() -> None:
    assert wait_of_the_host(backend_of(torch.device("cpu"))) is None
    assert events_fail(GPU) is None  # no GPU is asked
    assert Cuda.MISSING == {}


def _raises(error: Exception) -> Any:
    raise error


def test_the_docs_have_a_table_of_what_each_kind_tells() -> None:
    kinds = {"cpu": Cpu, "cuda": Cuda, "cuda (ROCm)": Rocm, "mps": Mps, "xpu": Xpu, "any other": Backend}
    rows = [["", *kinds], ["---"] * (1 + len(kinds))]
    notes: dict[str, None] = {}
    for quantity in Quantity:
        row = [str(quantity)]
        for kind in kinds.values():
            why = kind.MISSING.get(quantity)
            notes |= {} if why is None else {why: None}
            row.append("yes" if why is None else f"– ({1 + list(notes).index(why)})")
        rows.append(row)
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    listed = "\n".join(f"{number}. {why}" for number, why in enumerate(notes, 1))
    assert f"{table}\n\n{listed}\n" in (Path(__file__).parents[2] / "docs" / "devices.md").read_text()
