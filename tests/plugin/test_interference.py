"""A slowdown beside other processes: told from the code's where that can be, and named where it cannot."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.plugin.conftest import CONFTEST, Project, one_line


@pytest.fixture
def slower(project: Project) -> Project:
    """A case that became slower than a baseline that was taken on a calm machine."""
    project.run("--perf-update").assert_outcomes(passed=1)
    project.cost(ms=150)
    return project


def test_neighbours_that_pass_hide_no_slowdown_and_the_failure_says_that_nothing_disturbed_it(slower: Project) -> None:
    slower.neighbours(1.5, 1.9, 1.5, 0.0)  # beside this process, two fresh ones, and all after them
    result = slower.run("--perf-json=results.json")
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines([r"latency\s+100 ms\s+150 ms\s+\+50\.0%.*"])
    assert "in fresh processes; nothing disturbed it; 2 disturbed ones were set aside cause:" in one_line(result)
    (row,) = slower.results()
    assert row["judgement"]["disturbed"] == []
    assert row["outcome"]["measurement"]["evidence"]["neighbours_cores"] == 1.5
    assert [fresh["neighbours_cores"] for fresh in row["outcome"]["fresh"]] == [0.0] * 3
    assert [fresh["neighbours_cores"] for fresh in row["outcome"]["set_aside"]] == [1.9, 1.5]


def test_neighbours_that_stay_make_a_slowdown_inconclusive_and_are_named(slower: Project) -> None:
    file = slower.baseline_file()
    older = file.read_text().replace('"neighbours_cores": 0.0, ', "").replace(', "steal_share": 0.0', "")
    assert "neighbours" not in older
    file.write_text(older)  # as it was written before there was evidence: nothing disturbed it, as far as one knows
    slower.neighbours(1.5)
    result = slower.run("--perf-check=strict", "--perf-json=results.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "work could not be judged (inconclusive), and --perf-check fails such cases",
            "why: other processes used 1.5 cores meanwhile",
        ]
    )
    result.stdout.re_match_lines([r"work .* \+50\.0% .* inconclusive", r"\s+other processes used 1\.5 cores meanwhile"])
    (row,) = slower.results()
    assert (len(row["outcome"]["fresh"]), len(row["outcome"]["set_aside"])) == (3, 3)


def test_after_a_case_whose_neighbours_stayed_the_next_one_does_not_wait_for_them(project: Project) -> None:
    source = project.test_file.read_text() + "\n"
    project.test_file.write_text(source + source[source.index("def test_work") :].replace("test_work", "test_more"))
    project.run("--perf-update").assert_outcomes(passed=2)
    project.cost(ms=150)
    project.neighbours(1.5)
    project.run("--perf-json=results.json").assert_outcomes(passed=2)
    rows = project.results()
    assert [len(row["outcome"].get("set_aside", [])) for row in rows] == [3, 0]
    assert [row["judgement"]["verdict"] for row in rows] == ["inconclusive", "inconclusive"]


NVML = """
import os
from types import SimpleNamespace

import perflab.devices.gpu_state as gpu_state

gpu = Path(os.environ["GPU"])

def on_gpu(_handle):
    (gpu / f"on-gpu-{os.getpid()}").touch()
    pids = [int(path.name.rpartition("-")[2]) for path in gpu.glob("on-gpu-*")]
    return [SimpleNamespace(pid=pid) for pid in pids if os.path.exists(f"/proc/{pid}")]

nvml = SimpleNamespace(
    NVMLError=OSError, NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2, NVML_TEMPERATURE_GPU=0,
    nvmlDeviceGetComputeRunningProcesses=on_gpu,
)

def pytest_runtest_call(item):
    on_gpu(None)
    (gpu / f"others-{os.getpid()}").write_text(str(gpu_state.read_nvml(nvml, None).neighbours))
"""
"""Every process that has run a case is on the GPU until it ends, as NVML has it."""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc who descends from whom")
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--perf-update", "--perf-replicates=2", "-p", "xdist.plugin", "-n2"], id="fresh beside workers"),
        pytest.param(["--perf-against={folder}/other", "--perf-check=off"], id="sides"),
    ],
)
def test_the_run_s_own_processes_on_a_gpu_are_no_neighbours(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str]
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    project = Project(pytester)  # with a Python of its own: a warm one's processes descend from its server
    source = project.test_file.read_text() + "\n"
    project.test_file.write_text(source + source[source.index("def test_work") :].replace("test_work", "test_more"))
    pytester.makeconftest(CONFTEST + NVML)
    shutil.copytree(pytester.path, tmp_path / "other")
    monkeypatch.setenv("GPU", str(tmp_path))
    project.run(*(one.format(folder=tmp_path) for one in arguments)).assert_outcomes(passed=2)
    counted = {path.name: path.read_text() for path in tmp_path.glob("others-*")}
    assert len(counted) > 1
    assert set(counted.values()) == {"0"}
