"""What NVML is asked, against a module of its names (nvidia-ml-py 13): no GPU is needed here."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from perflab.devices.gpu_state import count_others, nvml_reader
from perflab.devices.kinds import backend_of
from perflab.processes.child import variables_of_a_child
from perflab.results.measurement import GpuState

GPU = torch.device("cuda", 0)
UUID = "8a3c1f0e-0000-1111-2222-333344445555"
ELSEWHERE = 2**22 + 1
"""A process id that Linux never gives (its largest pid_max is 2**22)."""


class NVMLError(Exception):
    """As pynvml names it."""


def fake_pynvml(**changes: Any) -> Any:
    """The functions that are used, under their real names, for one GPU."""

    def by_uuid(uuid: str) -> str:
        if uuid != f"GPU-{UUID}":
            raise NVMLError("not found")
        return "handle"

    module: Any = ModuleType("pynvml")
    known = {
        "NVMLError": NVMLError,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": by_uuid,
        "nvmlDeviceGetHandleByPciBusId": _raises,
        "nvmlDeviceGetClockInfo": lambda _handle, kind: {1: 1755, 2: 3201}[kind],
        "nvmlDeviceGetMaxClockInfo": lambda _handle, kind: {1: 1980, 2: 3201}[kind],
        "nvmlDeviceGetTemperature": lambda _handle, _sensor: 71,
        "nvmlDeviceGetPowerUsage": lambda _handle: 698_500,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda _handle: 0x44,
        "nvmlDeviceGetComputeRunningProcesses": lambda _handle: [SimpleNamespace(pid=os.getpid())],
    }
    for name, value in {**known, **changes}.items():
        if value is not None:
            setattr(module, name, value)
    return module


def _raises(*_arguments: Any) -> Any:
    raise NVMLError("not supported")


@pytest.fixture
def properties(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What PyTorch says of the device."""
    known = SimpleNamespace(uuid=UUID, pci_domain_id=0, pci_bus_id=0x9D, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: known)
    return known


def state(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> GpuState | None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_pynvml(**changes))
    return nvml_reader(GPU)()


@pytest.mark.usefixtures("properties")
def test_everything_is_read_in_units_that_the_names_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert state(monkeypatch) == GpuState(
        sm_clock_mhz=1755,
        max_sm_clock_mhz=1980,
        memory_clock_mhz=3201,
        temperature_c=71,
        power_w=698.5,
        throttle=["power cap", "hardware thermal slowdown"],
        neighbours=0,
    )


@pytest.mark.usefixtures("properties")
def test_a_figure_that_the_gpu_does_not_know_is_none_and_the_others_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    found = state(monkeypatch, nvmlDeviceGetPowerUsage=_raises, nvmlDeviceGetComputeRunningProcesses=None)
    assert found is not None
    assert (found.power_w, found.neighbours, found.temperature_c) == (None, None, 71)


@pytest.mark.usefixtures("properties")
@pytest.mark.parametrize("newer", [None, _raises])
def test_older_drivers_and_modules_are_asked_by_the_older_name(monkeypatch: pytest.MonkeyPatch, newer: Any) -> None:
    found = state(
        monkeypatch,
        nvmlDeviceGetCurrentClocksEventReasons=newer,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda _handle: 0x80,
    )
    assert found is not None
    assert found.throttle == ["power brake"]


def test_a_gpu_without_a_known_uuid_is_found_by_its_place_on_the_bus(
    monkeypatch: pytest.MonkeyPatch, properties: SimpleNamespace
) -> None:
    asked: list[str] = []
    properties.uuid = "another"
    found = state(monkeypatch, nvmlDeviceGetHandleByPciBusId=lambda name: asked.append(name) or "handle")
    assert asked == ["00000000:9D:00.0"]
    assert found is not None
    assert found.temperature_c == 71


@pytest.mark.usefixtures("properties")
def test_a_slice_of_a_gpu_is_found_by_its_own_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_uuid(uuid: str) -> str:
        return "handle" if uuid.startswith("MIG-") else _raises()

    assert state(monkeypatch, nvmlDeviceGetHandleByUUID=by_uuid) is not None


def test_a_gpu_that_nvml_does_not_find_says_nothing(
    monkeypatch: pytest.MonkeyPatch, properties: SimpleNamespace
) -> None:
    properties.uuid, properties.pci_bus_id = "another", None
    assert state(monkeypatch) is None


@pytest.mark.usefixtures("properties")
def test_without_a_driver_or_without_the_module_there_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert state(monkeypatch, nvmlInit=_raises) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml_reader(GPU)() is None


def test_a_cpu_does_not_open_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    monkeypatch.setitem(sys.modules, "pynvml", fake_pynvml(nvmlInit=lambda: opened.append(1)))
    assert backend_of(torch.device("cpu")).state_reader()() is None
    assert opened == []


def test_processes_that_are_none_of_this_run_are_neighbours() -> None:
    assert count_others([os.getpid()]) == 0
    assert count_others([os.getpid(), os.getpid()]) == 0
    assert count_others([ELSEWHERE, os.getpid()]) == 1


COUNTS = (
    "import sys; from perflab.devices.gpu_state import *; print(count_others([os.getpid(), *map(int, sys.argv[1:])]))"
)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc who descends from whom")
def test_of_a_fresh_process_the_run_s_others_are_no_neighbours_and_a_stranger_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setenv("PERFLAB_RUN", str(ELSEWHERE))  # left behind by a run that is over
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, start_new_session=True) as sibling:
        pids = [os.getpid(), sibling.pid, ELSEWHERE]
        command = [sys.executable, "-c", COUNTS, *map(str, pids)]
        said = subprocess.check_output(command, env=variables_of_a_child(), start_new_session=True)
        assert (count_others(pids), int(said)) == (1, 1)
        sibling.communicate(b"\n")


def test_in_a_container_whose_processes_the_driver_calls_otherwise_nobody_can_tell() -> None:
    assert count_others([ELSEWHERE]) is None
    assert count_others([]) is None
