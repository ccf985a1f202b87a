"""Devices of which perflab knows nothing: one in C++ whose events tell the time, or lie, and one in Python.

The first (``toy/toy.cpp``) has an allocator that counts, two devices, streams with numbers, and events whose clock the
stories set. What measures and gates it is what measures and gates a GPU.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from torch.utils.cpp_extension import include_paths

from tests.plugin.conftest import REFUSED, Project

TOY = Path(__file__).parent / "toy"

CASE = """
from pathlib import Path

import pytest
import torch
from conftest import Virtual

here = Path(__file__).parent

def test_work(perf, device):
    held = torch.ones(64, 64, device=device)
    def work():
        cost_ms, kib = (int(n) for n in (here / "cost.txt").read_text().split())
        block = torch.empty(1024 * kib, dtype=torch.uint8, device=device)
        Virtual.now_ns += 1_000_000 * cost_ms
        torch.ops.toy.set_moment(Virtual.now_ns / 1e6)
        return held @ held
    perf(work)
"""

FIXTURES = """
import pytest
import torch

def test_fixtures(perf, device, sync, warmup, autocast, nvtx_range, memory_snapshot):
    assert device == torch.device("toy", 1)
    model = torch.nn.Linear(8, 8, device=device)
    with autocast("bf16"), nvtx_range("forward"):
        assert torch.is_autocast_enabled("toy")
        model(torch.ones(8, 8, device=device)).sum().backward()
    sync()
    assert torch.accelerator.current_device_index() == 0
    assert perf(lambda: (model(torch.ones(8, 8, device=device)), torch.accelerator.current_device_index())[1]) == 1
    with pytest.raises(Exception, match="no history of allocations on toy:1"), memory_snapshot("forward"):
        pass

def test_cold(perf, device):
    perf(torch.ones(8, device=device).add, 1)
"""

IN_PYTHON = """
import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("pydevice")
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The device's library, compiled once a run: ten seconds."""
    if (compiler := shutil.which("g++")) is None:
        pytest.skip("compiles a backend of PyTorch, and there is no g++")
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    built = folder / "toy.so"
    with FileLock(folder / "toy.lock"):
        if not built.exists():
            libraries = Path(torch.__file__).parent / "lib"
            own = [f"-I{path}" for path in include_paths()]
            linked = [f"-L{libraries}", "-lc10", "-ltorch", "-ltorch_cpu", f"-Wl,-rpath,{libraries}"]
            command = [compiler, "-shared", "-fPIC", "-O0", "-std=c++20", *own, str(TOY / "toy.cpp"), "-o", str(built)]
            subprocess.run([*command, *linked], check=True)
    return built


@pytest.fixture
def python(python_with_compiler: str) -> str:
    return python_with_compiler  # what a device of one's own is registered with imports it


@pytest.fixture
def toy(project: Project, library: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project of one case whose time, by the host's clock and the device's, and memory are set from outside."""
    monkeypatch.setenv("TOY_LIBRARY", str(library))
    shutil.copy(TOY / "toy.py", project.pytester.path)
    # One thread: two would wait for each other at every product, beside other work on this machine.
    project.add("\nimport toy\nimport torch\n\ntorch.set_num_threads(1)\n", "conftest.py")
    project.test_file.write_text(CASE)
    return project


def measurement(project: Project, *arguments: str) -> dict[str, Any]:
    """What a run of a single case that is compared with nothing has found."""
    project.run("--perf-check=off", "--perf-json=results.json", *arguments).assert_outcomes(passed=1)
    (case,) = json.loads((project.pytester.path / "results.json").read_text())["results"]
    found: dict[str, Any] = case["outcome"]["measurement"]
    return found


def test_a_slower_and_hungrier_call_is_found_on_a_device_that_is_not_known(toy: Project) -> None:
    toy.run("--perf-update", "--perf-replicates=2", passed=1)
    toy.run(passed=1).stdout.re_match_lines([r"toy: Toy One .*", r"work +100 ms .* 544 KiB +ok"])
    toy.cost(ms=110)
    toy.run("--perf-evidence=off", failed=1).stdout.re_match_lines([r"work +110 ms .*\+10\.0%.*REGRESSED.*"])
    toy.cost(ms=100, kib=513)
    toy.run(failed=1).stdout.re_match_lines([r"peak +544 KiB +545 KiB +\+1.00 KiB +exact +exact +failed"])


def test_memory_and_counts_are_exact_and_apart_from_a_cpus(toy: Project) -> None:
    for device in ("toy", "cpu"):
        toy.run("--perf-update", f"--perf-device={device}", "--perf-replicates=2", passed=1)
    folders = sorted(path.name for path in (toy.pytester.path / "baselines").iterdir())
    kinds = ("cpu-", "exact-cpu-", "exact-toy-toy-one-", "toy-toy-one-")
    assert all(name.startswith(kind) for name, kind in zip(folders, kinds, strict=True))
    (exact,) = (toy.pytester.path / "baselines").glob("exact-toy-*/*.json")
    (needs,) = json.loads(exact.read_text())["cases"]["test_work"]["needs"].values()
    assert needs["peak_bytes"] == [16_384 + 512 * 1024 + 16_384]
    assert needs["counts"] == {"allocations": 2, "operators": 3, "on_the_cpu:aten::mm": 1}


def test_fixtures_and_cold_caches_work_on_the_device_that_is_named(toy: Project) -> None:
    toy.pytester.makeconftest("import toy, torch\n\ntorch.set_num_threads(1)\n")  # real time
    toy.test_file.write_text(FIXTURES)
    toy.run("--perf-device=toy:1", "--perf-cache=cold", "--perf-check=off", "--perf-budget=100ms", passed=2)
    toy.run("--perf-device=toy:2", ret=REFUSED).stderr.fnmatch_lines(
        ["*--perf-device=toy:2, but the toy devices here are toy:0 to toy:1", "  -> name one of them"]
    )


def test_workers_take_one_device_each(toy: Project) -> None:
    toy.test_file.write_text(
        "import os\nimport pytest\n\n@pytest.mark.parametrize('number', range(4))\ndef test_one(device, number):\n"
        "    assert device.index == int(os.environ['PYTEST_XDIST_WORKER'][2:])\n"
    )
    toy.pytest("-p", "xdist", "-n2", passed=4)


@pytest.mark.parametrize(("how", "clock"), [("", "toy events"), ("double", "host")])
def test_events_are_used_where_they_tell_the_time_and_the_hosts_clock_waits_where_they_lie(
    toy: Project, monkeypatch: pytest.MonkeyPatch, how: str, clock: str
) -> None:
    monkeypatch.setenv("TOY", how)
    found = measurement(toy)
    assert found["clock"] == clock
    assert {round(one / found["repetitions"] / 1e6) for one in found["samples_ns"]} == {100}


def test_what_neither_tells_the_time_nor_waits_is_not_timed(toy: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY", "silent")
    toy.run("--perf-check=off", failed=1).stdout.re_match_lines(
        [
            r".*nothing tells the time of work on toy:0: its events say that a wait of 5 ms took \d\d.*, and its "
            r"module has no synchronize\(\)",
            r"  -> let the backend's module \(torch.toy\) have a synchronize\(\) that waits until the device is idle",
        ]
    )


def test_a_backend_in_python_whose_events_do_nothing_is_not_timed(project: Project) -> None:
    project.add(IN_PYTHON, "conftest.py")
    project.run("--perf-check=off", failed=1).stdout.fnmatch_lines(
        ["*nothing tells the time of work on pydevice:0: its events raise RuntimeError: Backend doesn't support *"]
    )
    project.run("--perf-check=off", "--perf-device=cpu", passed=1)


def test_what_the_device_does_not_tell_has_its_reason(toy: Project) -> None:
    result = toy.run("--perf-check=off", "--perf-profile", "--perf-snapshots", passed=1)
    result.stdout.fnmatch_lines(["no profile of work: perflab does not read the profiler's records of this device"])
    toy.run("--perf-cuda-graph", ret=REFUSED).stderr.fnmatch_lines(["*needs CUDA: * is measured on toy:0"])


KNOWN = """
import toy
from perflab.devices.backend import Backend, Quantity
from perflab.devices.kinds import KINDS

class Toy(Backend):
    MISSING = {**Backend.MISSING, Quantity.FLOAT64: "for this story"}

KINDS["toy"] = Toy
"""

VERIFIES = """
import pytest
import torch
from perflab import verify

def rows(x):
    assert x.dtype != torch.float64 or x.device.type == "cpu"
    return torch.softmax(x, -1)

@pytest.mark.correctness
@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_softmax(device, factor):
    def inputs(seed):
        return {"x": torch.randn(64, 64, generator=torch.Generator().manual_seed(seed)).to(device)}
    with pytest.raises(AssertionError, match="out") if factor != 1.0 else pytest.MonkeyPatch.context():
        verify(lambda x: rows(x) * factor, inputs, reference=rows, plain=rows)
"""


def test_a_kind_that_has_no_float64_is_one_class_and_one_line_and_its_references_run_on_the_cpu(toy: Project) -> None:
    toy.pytester.makeconftest(KNOWN)
    toy.test_file.write_text(VERIFIES)
    toy.pytest("-m", "correctness", passed=2)


CHECKS = """
import torch
from perflab.cli import main

def test_doctor():
    assert main(["doctor"]) == 0

def test_host_alone(perf):
    perf(sum, range(10_000))
"""


def test_a_device_that_nothing_has_used_yet_tells_its_memory(toy: Project) -> None:
    toy.pytester.makeconftest("import toy, torch\n\ntorch.set_num_threads(1)\n")  # real time
    toy.test_file.write_text(CHECKS)
    said = toy.pytest("-s", passed=2).stdout
    said.fnmatch_lines(
        ["accelerator: toy:0, toy:1, Toy One", "  no CUDA graphs: perflab captures graphs on CUDA alone"]
    )
    said.no_fnmatch_line("  no *times by*")
    said.no_fnmatch_line("  no exact peak memory*")
    toy.run("--perf-update", "--perf-noisy=accept", "--perf-budget=100ms", "-k", "host", passed=1)
    assert toy.needs()["test_host_alone"]["peak_bytes"] == [0]
