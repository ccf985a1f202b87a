"""Dry runs, as their user sees them: what needs CUDA's host side runs in ``make cuda``, the refusals everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import nocuda

needs_nocuda = pytest.mark.skipif(not nocuda.is_active(), reason="needs PyTorch's CUDA build: make cuda")

PROJECT = """
import ctypes, os, pytest, torch
from torch import nn

@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).cuda()

def test_step(perf, model):
    x = torch.zeros(64, 256, device="cuda")
    host = torch.zeros(64, 256)
    def step():
        y = model(x)
        for _ in range(int(os.environ.get("MORE", 0))):
            y = y + host.cuda()
        if y.sum().item() > 3:
            raise AssertionError("nothing is computed")
        return y
    y = perf(step)
    assert not perf.predicts
    assert y.sum().item() == 3

def test_graph(perf, device):
    x = torch.zeros(20, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x + 1) * 2
    perf(graph.replay)

def test_too_large(perf, device):
    size = int(os.environ.get("LARGE", 200))
    perf(lambda: torch.zeros(size << 30, dtype=torch.uint8, device=device))

def test_too_large_to_build(perf, device):
    x = torch.zeros(200 << 30, dtype=torch.uint8, device=device)
    perf(lambda: x + 1)

def test_wrong_device(perf, device):
    x = torch.zeros(20, device=device)
    perf(lambda: x + torch.zeros(20))

def test_unknown_function(perf, device):
    x = torch.eye(64, device=device)
    perf(lambda: torch.linalg.solve(x, x))

def test_crash(perf):
    def crash():
        ctypes.string_at(0)
    perf(crash)

def test_after_a_crash(perf, device):
    assert torch.cuda.memory_allocated() == 0
    x = torch.zeros(20, device=device)
    perf(lambda: x + 1)

def streams(perf, waits):
    x, side = torch.zeros(1 << 20, device="cuda"), torch.cuda.Stream()
    def step():
        y = x * 2
        if waits:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z = y + 1
        torch.cuda.current_stream().wait_stream(side)
        return z.sum()
    perf(step)

def test_streams_in_order(perf):
    streams(perf, waits=True)

def test_streams_that_race(perf):
    streams(perf, waits=False)

def test_values():
    assert torch.ones(3).cuda().exp().sum().item() > 4

@pytest.fixture
def mean(device):
    return torch.ones(3, device=device).mean().item()

def test_values_of_a_fixture(mean):
    assert mean < 5

def test_zeros_are_equal():
    assert torch.allclose(torch.ones(3).cuda().exp(), torch.zeros(3).cuda())

def test_shapes():
    assert torch.ones(3).cuda().exp().shape == (3,)

def test_wrong_shapes():
    assert torch.ones(3).cuda().exp().shape == (4,)

def test_on_the_cpu():
    assert torch.ones(3).exp().sum().item() > 4

@pytest.mark.correctness
def test_against_a_reference(device):
    x = torch.ones(4, device=device)
    torch.testing.assert_close(x.softmax(0), torch.full_like(x, 0.25))
"""


def pytest_in(folder: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """pytest in a project, in an environment that is no dry run yet."""
    return started(folder, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, **variables)


def started(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("NOCUDA", "PERFLAB", "PYTEST"))}
    if nocuda.is_active():
        plain.pop("LD_PRELOAD", None)
    return subprocess.run(
        command, cwd=folder, env=plain | variables, capture_output=True, text=True, timeout=300, check=False
    )


class Project:
    """Runs of one project: what they printed, and their results by test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "test_it.py").write_text(PROJECT)
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "baselines").mkdir()

    def run(self, *options: str, **variables: str) -> tuple[str, dict[str, Any]]:
        done = pytest_in(self.folder, "--perf-json=out.json", "-rs", "-v", *options, **variables)
        found = json.loads((self.folder / "out.json").read_text())
        return done.stdout, {one["case"].partition("::")[2]: one for one in found["results"]}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("dry"))


@pytest.fixture(scope="module")
def first(project: Project) -> tuple[str, dict[str, Any]]:
    return project.run("--perf-dry-run=a100-80gb", "--perf-update-new")


@needs_nocuda
class TestFirst:
    """The first run of the project, which saves baselines."""

    def test_says_what_it_is(self, first: tuple[str, dict[str, Any]]) -> None:
        said = first[0]
        assert "10 cases run dry on a100-80gb: CUDA without a GPU, nothing is computed" in said
        assert "dry run on a100-80gb (78.6 GiB): CUDA without a GPU, nothing computed" in said
        assert "baselines/predicted-a100-80gb-dry-run/" in said

    def test_counts_waits_and_copies_by_line(self, first: tuple[str, dict[str, Any]]) -> None:
        seen = first[1]["test_step"]["outcome"]["now"]["dry_run"]
        line = next(at for at, text in enumerate(PROJECT.splitlines(), 1) if ".item() > 3" in text)
        by_what = {one["what"]: (one["line"], one["calls"], one.get("size_bytes", 0)) for one in seen["traffic"]}
        assert by_what == {"wait": (f"test_it.py:{line}", 1, 0), "to the host": (f"test_it.py:{line}", 1, 4)}

    def test_launches_are_pytorchs_own(self, first: tuple[str, dict[str, Any]]) -> None:
        now = first[1]["test_step"]["outcome"]["now"]
        kernels = now["dry_run"]["kernels"]
        assert now["launches"] == sum(kernels.values())
        assert kernels["cublasLtMatmul"] == 2  # both layers, with their bias
        assert any("GeluCUDAKernel" in name or "reduce_kernel" in name for name in kernels)

    def test_memory_is_what_the_allocator_says(self, first: tuple[str, dict[str, Any]]) -> None:
        now = first[1]["test_step"]["outcome"]["now"]
        weights = 4 * (2 * 256 * 1024 + 1024 + 256)
        assert weights < now["dry_run"]["asked_bytes"] <= now["allocated_bytes"] <= now["reserved_bytes"]
        assert now["reserved_bytes"] % 2**21 == 0

    def test_graphs_replay(self, first: tuple[str, dict[str, Any]]) -> None:
        now = first[1]["test_graph"]["outcome"]["now"]
        assert (now["launches"], now["dry_run"]["replayed"]) == (2, 2)

    @pytest.mark.parametrize("name", ["test_too_large", "test_too_large_to_build"])
    def test_out_of_memory_is_a_verdict(self, first: tuple[str, dict[str, Any]], name: str) -> None:
        judgement = first[1][name]["judgement"]
        assert judgement["verdict"] == "oom"
        assert "Tried to allocate 200.00 GiB. GPU 0 has a total capacity of 79.1" in judgement["reasons"][0]

    def test_a_function_that_does_nothing_is_named(self, first: tuple[str, dict[str, Any]]) -> None:
        said, results = first
        assert results["test_unknown_function"]["outcome"]["now"]["dry_run"]["unknown"] == [
            "cusolverDnSgetrf_bufferSize"
        ]
        assert "what depends on it is not in the numbers: cusolverDnSgetrf_bufferSize" in " ".join(said.split())
        assert "unknown" not in results["test_step"]["outcome"]["now"]["dry_run"]

    def test_one_table_has_the_cases_that_failed_or_did_not_fit(self, first: tuple[str, dict[str, Any]]) -> None:
        shown = first[0].partition("dry run on a100-80gb")[2].splitlines()
        assert not any(line.startswith(("cpu:", "cuda:")) for line in first[0].splitlines())
        verdicts = {line.split()[0]: line.split()[-1] for line in shown if line and not line.startswith(" ")}
        assert {name: verdicts[name] for name in ("crash", "wrong_device", "streams_that_race", "after_a_crash")} == {
            "crash": "FAILED",
            "wrong_device": "FAILED",
            "streams_that_race": "FAILED",
            "after_a_crash": "saved",
        }
        assert verdicts["too_large"] == verdicts["too_large_to_build"] == "OOM"

    def test_a_crash_is_a_verdict_and_the_run_goes_on(self, first: tuple[str, dict[str, Any]]) -> None:
        said, results = first
        assert results["test_crash"]["judgement"]["reasons"] == ["its process was ended by SIGSEGV"]
        assert "in crash" in said
        assert results["test_after_a_crash"]["judgement"]["verdict"] == "new"

    def test_errors_of_devices_are_real(self, first: tuple[str, dict[str, Any]]) -> None:
        assert "Expected all tensors to be on the same device" in first[0]
        assert first[1]["test_wrong_device"]["judgement"]["verdict"] == "failed"

    def test_a_race_fails_with_both_lines(self, first: tuple[str, dict[str, Any]]) -> None:
        said, results = first
        lines = {at: text.strip() for at, text in enumerate(PROJECT.splitlines(), 1)}
        uses, makes = (next(at for at, one in lines.items() if one == text) for text in ("z = y + 1", "y = x * 2"))
        assert results["test_streams_in_order"]["judgement"]["verdict"] == "new"
        race = results["test_streams_that_race"]["outcome"]["now"]["dry_run"]["races"][0]
        assert race["first_lines"][0] == f"test_it.py:{makes}"
        assert race["second_lines"][0] == f"test_it.py:{uses}"
        assert "streams race, so the contents of its tensors are undefined" in said

    @pytest.mark.parametrize(
        ("name", "outcome"),
        [
            ("test_values", "SKIPPED"),
            ("test_values_of_a_fixture", "SKIPPED"),
            ("test_zeros_are_equal", "SKIPPED"),
            ("test_against_a_reference", "SKIPPED"),
            ("test_shapes", "PASSED"),
            ("test_wrong_shapes", "FAILED"),
            ("test_on_the_cpu", "PASSED"),
        ],
    )
    def test_what_reads_values_is_skipped(self, first: tuple[str, dict[str, Any]], name: str, outcome: str) -> None:
        assert f"test_it.py::{name} {outcome}" in first[0]
        if outcome == "SKIPPED":
            assert "reads values of CUDA tensors, and nothing is computed" in first[0]


@needs_nocuda
def test_later_runs_are_held_to_the_baselines_exactly(project: Project, first: object) -> None:
    _, same = project.run("--perf-dry-run=a100-80gb", "-k", "step or graph or after or large", LARGE="1")
    assert {name: one["judgement"]["verdict"] for name, one in same.items()} == {
        "test_step": "ok",
        "test_graph": "ok",
        "test_after_a_crash": "ok",
        "test_too_large": "new",
        "test_too_large_to_build": "oom",
    }
    said, more = project.run("--perf-dry-run=a100-80gb", "-k", "test_step", MORE="2")
    judgement = more["test_step"]["judgement"]
    assert {"launches", "waits", "to_device"} <= set(judgement["worse"])
    assert judgement["counts"]["waits"]["now"] - judgement["counts"]["waits"]["before"] == 2
    assert judgement["counts"]["to_device"]["now"] == 2 * 64 * 256 * 4
    assert "to the device, 2 times (cudaMemcpyAsync)" in said
    assert "launches of vectorized_elementwise_kernel<4, CUDAFunctor_add<float>" in said


@needs_nocuda
def test_workers_run_dry_too(project: Project, first: tuple[str, dict[str, Any]]) -> None:
    _, results = project.run("--perf-dry-run=a100-80gb", "--perf-check=off", "-n", "2")
    kept = ("launches", "allocated_bytes", "reserved_bytes")
    for name in ("test_step", "test_graph", "test_after_a_crash"):
        now, before = (one[name]["outcome"]["now"] for one in (results, first[1]))
        assert [now[field] for field in kept] == [before[field] for field in kept]
    assert results["test_crash"]["judgement"]["reasons"] == ["its process was ended by SIGSEGV"]


@needs_nocuda
def test_workers_share_several_gpus_and_each_case_tells_its_own(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest, torch\n"
        "@pytest.mark.parametrize('mib', [4, 8, 16, 32])\n"
        "def test_it(perf, device, mib):\n"
        "    x = torch.zeros(mib << 20, dtype=torch.uint8, device=device)\n"
        "    perf(lambda: x + 1)\n"
        "    print('ran on', device)\n"
    )
    perflab = str(Path(sys.executable).with_name("perflab"))
    pytest_dry = [perflab, "dry-run", "--gpus=2", "--", sys.executable, "-m", "pytest"]
    done = started(tmp_path, *pytest_dry, "-p", "no:cacheprovider", "-n2", "-rP", "--perf-json=out.json")
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    outcomes = [one["outcome"] for one in results]
    allocated = {one["parameters"]["mib"]: one["now"]["allocated_bytes"] >> 20 for one in outcomes}
    assert allocated == {4: 8, 8: 16, 16: 32, 32: 64}
    assert {"ran on cuda:0", "ran on cuda:1"} <= set(done.stdout.splitlines())


@needs_nocuda
def test_what_no_longer_fits_has_failed(project: Project, first: object) -> None:
    project.run("--perf-dry-run=a100-80gb", "--perf-update-new", "-k", "test_too_large", LARGE="1")
    said, results = project.run("--perf-dry-run=a100-80gb", "-k", "test_too_large", LARGE="200")
    assert results["test_too_large"]["judgement"]["verdict"] == "regressed"
    assert "It needed 1.00 GiB when its baseline was saved." in said


@needs_nocuda
def test_the_run_s_time_is_over_for_cases_in_forks_too(project: Project, first: object) -> None:
    said, results = project.run("--perf-dry-run=a100-80gb", "--perf-total-budget=1ms", "-k", "test_after or test_graph")
    assert {one["judgement"]["verdict"] for one in results.values()} == {"skipped"}
    assert "2 not run: the run's 1.00 ms were over" in " ".join(said.split())


@needs_nocuda
def test_an_option_without_a_value_takes_no_path_for_one(project: Project) -> None:
    assert "1 passed" in pytest_in(project.folder, "-q", "--perf-dry-run", "test_it.py", "-k", "test_shapes").stdout


@needs_nocuda
def test_any_command_runs_dry(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\nx = torch.ones(1 << 20, device='cuda')\n"
        "print(torch.cuda.get_device_name(), torch.cuda.device_count(), (x * 2).sum().item())\n"
    )
    command = str(Path(sys.executable).with_name("perflab"))
    perflab = [command, "dry-run", "--gpu=l4", "--gpus=2", "--", sys.executable]
    done = started(tmp_path, *perflab, "train.py")
    assert done.stdout == "NVIDIA L4 2 0.0\n"
    assert "dry run: 1 process opened CUDA; nothing was computed" in done.stderr
    assert "cuda:0" in done.stderr
    assert "3 launches" in done.stderr
    assert "4 B copied device to host, 1 time\n" in done.stderr
    assert "did nothing here" not in done.stderr
    solves = "import torch; x = torch.eye(4, device='cuda'); torch.linalg.solve(x, x)"
    assert (
        "called, and did nothing here: cusolverDnSgetrf_bufferSize\n"
        in started(tmp_path, *perflab, "-c", solves).stderr
    )
    assert started(tmp_path, *perflab, "-c", "raise SystemExit(3)").returncode == 3
    assert started(tmp_path, *perflab, "-c", "import os; os.kill(os.getpid(), 9)").returncode == 128 + 9


@pytest.mark.parametrize(
    ("options", "said", "remedy"),
    [
        (["--perf-dry-run=h101"], "'h101' is not a GPU that perflab has a data sheet of", "--perf-dry-run=h100"),
        (["--perf-dry-run="], "no GPU is named", "--perf-dry-run=h100"),
        (["--perf-dry-run"], "is a build without CUDA", "install it into a virtual environment of its own"),
    ],
)
def test_what_cannot_run_dry_is_said_with_a_remedy(
    python: str, tmp_path: Path, options: list[str], said: str, remedy: str
) -> None:
    if torch.version.cuda is not None and "without CUDA" in said:
        pytest.skip("this build has CUDA")
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n")
    done = started(tmp_path, python, "-m", "pytest", *options)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert said in done.stderr
    assert remedy in done.stderr


@pytest.mark.parametrize("other", ["--perf-predict", "--perf-against=HEAD"])
def test_a_dry_run_is_no_other_kind_of_run(python: str, tmp_path: Path, other: str) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(perf): pass\n")
    done = started(tmp_path, python, "-m", "pytest", "--perf-dry-run", other, PERFLAB_DRY_RUN="h100")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"{other.partition('=')[0]}" in done.stderr
    assert "leave one of them out" in done.stderr


def test_the_variable_alone_makes_no_dry_run(python: str, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n")
    done = started(tmp_path, python, "-m", "pytest", PERFLAB_DRY_RUN="h100")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "PERFLAB_DRY_RUN is set, and this process is no dry run" in done.stderr


def test_a_program_that_calls_pytest_is_not_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n")
    (tmp_path / "main.py").write_text("import pytest\nraise SystemExit(pytest.main(['--perf-dry-run']))\n")
    done = started(tmp_path, sys.executable, "main.py")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "perflab dry-run -- COMMAND" in done.stderr
