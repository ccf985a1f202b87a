"""A slowdown beside other processes: told from the code's where that can be, and named where it cannot.

A baseline from a noisy machine is taken again while that may help, marked, and not saved unasked if it is blind.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.plugin.conftest import CONFTEST, Project, one_line

BUSY = 1.6


@pytest.fixture
def slower(project: Project) -> Project:
    """A case that became slower than a baseline that was taken on a calm machine."""
    project.save()
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
    project.save(cases=2)
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


@pytest.fixture
def restless(project: Project) -> Project:
    """A case that takes longer in each further process."""
    source = project.test_file.read_text()
    counted = """
number = len(list(here.glob("process-*")))
(here / f"process-{number}").touch()

def work():"""
    project.test_file.write_text(
        source.replace("\ndef work():", counted).replace("1_000_000 * cost_ms", "1_000_000 * (cost_ms + 40 * number)")
    )
    return project


def test_neighbours_that_pass_while_a_baseline_is_saved_are_waited_for(project: Project) -> None:
    project.neighbours(BUSY, BUSY, 0.0)
    result = project.run("--perf-update", passed=1)
    result.stdout.fnmatch_lines(["perf: one more replicate to replace noisy ones (1 case)"])
    assert [one["neighbours_cores"] for one in project.saved_case()["replicates"]] == [0.0, 0.0, BUSY]
    assert "noisy" not in project.saved_case()
    assert "noisy machine" not in result.stdout.str()


def test_neighbours_that_stay_are_named_when_a_baseline_is_saved_and_mark_it(project: Project) -> None:
    project.neighbours(BUSY)
    result = project.run("--perf-update-new", passed=1)
    beside = "other processes used 1.6 cores meanwhile"
    result.stdout.fnmatch_lines([f"saved from a noisy machine: work: {beside}"])
    assert project.saved_case()["noisy"] == [beside]
    assert result.stdout.str().count("one more replicate") == 3


def test_times_that_could_not_show_twice_the_threshold_are_not_saved_and_nothing_is_lost(restless: Project) -> None:
    result = restless.run("--perf-update", passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.re_match_lines(
        [
            r"work .* new$",
            r"  memory and counts saved, times not$",
            r"times not saved, too noisy: work: its replicates differ so much that only slowdowns above \d+% count",
            r"  -> save again on a quieter machine, or with fewer threads \(perflab doctor\);",
            r"1 new$",  # and no advice to do what this run refused
        ]
    )
    assert restless.needs()["test_work"]["peak_bytes"], "what is exact is saved all the same"
    folder = restless.pytester.path
    assert not list((folder / "baselines").glob("cpu-*"))
    (kept,) = (folder / ".perflab" / "times").glob("*/*.json")
    (case,) = json.loads(kept.read_text())["cases"].values()
    assert "differ so much" in case["noisy"][0]
    assert len(case["replicates"]) > 1


def test_many_cases_that_are_too_noisy_take_one_line_with_their_number_the_usual_reason_and_the_remedy(
    restless: Project,
) -> None:
    source = restless.test_file.read_text()
    more = "".join(f"\ndef test_{name}(perf):\n    perf(work)\n" for name in ("second", "third", "fourth"))
    steady = "\ndef test_steady(perf):\n    perf(lambda: setattr(Virtual, 'now_ns', Virtual.now_ns + 10**8))\n"
    restless.test_file.write_text(source + "\n" + more + steady)
    restless.neighbours(BUSY)
    result = restless.run("--perf-update", passed=5)
    result.stdout.re_match_lines(
        [
            r"saved from a noisy machine: steady: other processes used 1\.6 cores meanwhile",
            r"times not saved, too noisy: 4 of 5 cases \(work, second, third and 1 more\), typically: its replicates "
            r"differ so much that only slowdowns above \d+% count; other processes used 1\.6 cores meanwhile",
            r"  -> save again on a quieter machine, or with fewer threads \(perflab doctor\);",
            r"     to save them anyway: --perf-update --perf-noisy=accept",
        ]
    )
    assert result.stdout.str().count("not saved, too noisy") == 1


def test_they_are_saved_and_marked_where_that_is_asked_for(restless: Project) -> None:
    result = restless.run("--perf-update", "-o", "perf_noisy=accept", ret=0)
    result.stdout.re_match_lines([r"work .* new, saved", r"saved from a noisy machine: work: its replicates differ.*"])
    assert "differ so much" in restless.saved_case()["noisy"][0]


def test_a_baseline_whose_successor_is_too_noisy_stays_and_nothing_is_called_slower(restless: Project) -> None:
    folder = restless.pytester.path
    restless.edit("40 * number", "0 * number")
    restless.save()
    before = restless.baseline_file().read_text()
    restless.edit("0 * number", "40 * number")
    for mark in folder.glob("process-*"):
        mark.unlink()
    restless.cost(ms=200)
    refused = restless.run("--perf-update")
    assert refused.ret == pytest.ExitCode.TESTS_FAILED
    refused.stdout.re_match_lines(
        [
            r"work .* 200 ms .* \+100\.0% .* inconclusive$",
            r"  not measured again, since its times were to be saved$",
            r"  memory and counts saved, times not$",
        ]
    )
    assert "(accept: " not in refused.stdout.str()
    assert "looks worse" not in refused.stdout.str(), "what is to be saved is not measured again before"
    *_, journal = sorted((folder / ".perflab" / "runs").glob("*.jsonl"))
    last = json.loads(journal.read_text().splitlines()[-1])
    assert (last["judgement"]["verdict"], last["not_saved"]) == ("inconclusive", "memory and counts saved, times not")
    assert restless.baseline_file().read_text() == before


def test_a_baseline_of_one_process_says_that_no_slowdown_counts_against_it(project: Project) -> None:
    project.run("--perf-update", "--perf-replicates=1", passed=1).stdout.fnmatch_lines(
        [
            "saved from a single process: work: its noise is unknown, so no slowdown counts against it",
            "  -> save three or more: --perf-replicates=3",
        ]
    )
    assert "single process" not in project.run("--perf-update").stdout.str()
