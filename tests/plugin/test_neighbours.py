"""Living with pytest-benchmark and pytest-xdist."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perflab.running.case.locks import held
from tests.plugin.conftest import Project, run_pytest

MIXED = """
import torch

def test_ours(perf):
    perf.work(tokens=10)
    x = torch.rand(32, 32)
    perf(torch.matmul, x, x)

def test_theirs(benchmark):
    assert benchmark(sum, [1, 2]) == 3
"""


@pytest.fixture
def plugins(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load perflab and its two neighbours by their names: all that is installed would be most of a story's time."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\naddopts = -p perflab.plugin -p xdist -p benchmark\n")


@pytest.mark.usefixtures("plugins")
def test_results_stand_in_pytest_benchmarks_json_and_its_compare_reads_them(
    pytester: pytest.Pytester, python: str
) -> None:
    pytester.makepyfile(MIXED)
    run_pytest(pytester, python, "--benchmark-json=b.json", "--perf-budget=300ms").assert_outcomes(passed=2)
    rows = {row["name"]: row for row in json.loads((pytester.path / "b.json").read_text())["benchmarks"]}
    assert set(rows) == {"test_ours", "test_theirs"}
    ours = rows["test_ours"]
    assert ours["fullname"] == f"{next(pytester.path.glob('test_*.py')).name}::test_ours"
    assert 0 < ours["stats"]["min"] <= ours["stats"]["median"] < 1
    assert ours["stats"]["rounds"] == len(ours["stats"]["data"])
    assert ours["extra_info"]["peak_bytes"] == 2 * 32 * 32 * 4
    assert ours["extra_info"]["work"] == {"tokens": 10}

    compare = [sys.executable, "-m", "pytest_benchmark", "compare", "b.json"]
    compared = subprocess.run(compare, cwd=pytester.path, capture_output=True, text=True, check=False)
    assert "test_ours" in compared.stdout + compared.stderr


@pytest.mark.usefixtures("plugins")
def test_one_table_is_shown_unless_pytest_benchmarks_is_asked_for(pytester: pytest.Pytester, python: str) -> None:
    pytester.makepyfile(MIXED)
    shown = run_pytest(pytester, python, "--perf-budget=300ms").stdout.str()
    assert shown.count("\nours ") == 1
    assert "test_ours" not in shown
    assert "test_theirs" in shown


@pytest.mark.usefixtures("plugins")
def test_a_test_of_pytest_benchmark_alone_is_left_alone(pytester: pytest.Pytester, python: str) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.perf\ndef test_theirs(benchmark):\n    benchmark(sum, [1, 2])\n")
    result = run_pytest(pytester, python, "-m", "perf", passed=1)
    result.stdout.no_fnmatch_line("*= perf =*")
    result.stdout.fnmatch_lines(["test_theirs*"])


@pytest.mark.usefixtures("plugins")
def test_pytest_benchmark_takes_the_timer_that_waits_for_the_gpu(pytester: pytest.Pytester, python: str) -> None:
    pytester.makepyfile("def test_theirs(benchmark):\n    benchmark(sum, [1, 2])\n")
    run_pytest(pytester, python, "--benchmark-timer=perflab.cuda_timer", "--benchmark-json=b.json", passed=1)
    (row,) = json.loads((pytester.path / "b.json").read_text())["benchmarks"]
    assert row["options"]["timer"] == "cuda_timer"
    assert row["stats"]["median"] > 0


PARALLEL = """
import time
from pathlib import Path

import pytest

@pytest.mark.perf(budget="200ms")
@pytest.mark.parametrize("number", range(4))
def test_one(perf, number):
    log = Path(__file__).with_name("log.txt")
    def work():
        with log.open("a") as file:
            file.write(f"{number} ")
        time.sleep(0.005)
    perf(work)
"""


@pytest.mark.usefixtures("plugins")
def test_workers_measure_one_case_at_a_time_and_one_process_writes_one_summary(
    pytester: pytest.Pytester, python: str
) -> None:
    pytester.makepyfile(test_parallel=PARALLEL)
    result = run_pytest(
        pytester, python, "-m", "perf", "-n2", "--perf-update", "--perf-replicates=2", "--perf-noisy=accept", passed=4
    )
    text = result.stdout.str()
    assert text.count("= perf =") == 1
    assert sum(line.startswith("one[") for line in text.splitlines()) == 4
    result.stdout.fnmatch_lines(["4 new"])
    log = (pytester.path / "log.txt").read_text().split()
    changes = sum(a != b for a, b in itertools.pairwise(log))
    (path,) = (pytester.path / "baselines").glob("cpu-*/*.json")
    cases = json.loads(path.read_text())["cases"]
    assert set(cases) == {f"test_one[{n}]" for n in range(4)}
    assert all(len(case["replicates"]) >= 2 for case in cases.values())
    # where the machine is noisy, some have further ones
    taken = text.count("perf: one more replicate") * 4 + 4 + 4
    assert changes < taken, "the calls of two cases were mixed: they ran at the same time"


SETTING_UP = """
from pathlib import Path
import time
import pytest

def log(text):
    with Path(__file__).with_name("log.txt").open("a") as file:
        file.write(f"{text}\\n")

def busy(what):
    for _ in range(8):
        log(what)
        time.sleep(0.02)

@pytest.fixture
def trained(request):
    busy(f"{request.node.name} trains")

@pytest.mark.parametrize("number", range(4))
def test_one(perf, trained, number):
    busy(f"test_one[{number}] compiles")
    perf(busy, f"test_one[{number}] runs")
"""


@pytest.mark.usefixtures("plugins")
def test_what_a_case_does_before_it_measures_runs_beside_no_other_case(pytester: pytest.Pytester, python: str) -> None:
    pytester.makepyfile(test_setting_up=SETTING_UP)
    run_pytest(pytester, python, "-m", "perf", "-n2", "--perf-budget=0.5", "--perf-counts=off", passed=4)
    lines = (pytester.path / "log.txt").read_text().splitlines()
    doings = [what for what, _ in itertools.groupby(lines)]
    assert sorted(doings) == sorted(
        f"test_one[{number}] {what}" for number in range(4) for what in ("trains", "compiles", "runs")
    ), "what two cases did was mixed"
    assert [what.split()[1] for what in doings] == ["trains", "compiles", "runs"] * 4


@pytest.mark.parametrize("workers", [[], ["-n1", "-p", "xdist.plugin"]], ids=["alone", "workers"])
def test_a_run_that_waits_for_another_one_says_at_once_for_whom(
    project: Project, workers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_TESTRUNUID", raising=False)  # it is no worker of the run that these tests are
    command = [project.python, "-m", "pytest", "-m", "perf", *workers]
    with held(tmp_path / f"perflab-{os.getuid()}-cpu.lock", "", pytest.fail):
        run = subprocess.Popen(
            command, cwd=project.pytester.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert run.stdout is not None
        waits = f"perf: waiting for another measurement: process {os.getpid()} in {os.getcwd()}, for "
        said = any(line.startswith(waits) for line in iter(run.stdout.readline, ""))
    output, _ = run.communicate(timeout=120)
    assert said
    assert "1 passed" in output


def test_workers_say_what_is_wrong_with_a_baseline_file(project: Project) -> None:
    project.save("--perf-replicates=1")
    project.baseline_file().write_text("{")
    result = project.run("-n2", "-p", "xdist.plugin", errors=1)
    result.stdout.fnmatch_lines(["*test_story.json is damaged at line 1, column 2*", "*restore it*"])
    assert project.baseline_file().read_text() == "{"


@pytest.mark.usefixtures("plugins")
def test_workers_refuse_a_marker_argument_in_every_test(pytester: pytest.Pytester, python: str) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.correctness(atol=1)\ndef test_x():\n    pass\n")
    result = run_pytest(pytester, python, "-n2", errors=1)
    result.stdout.fnmatch_lines(["*@pytest.mark.correctness takes no arguments, got atol*"])


@pytest.mark.usefixtures("plugins")
def test_correctness_runs_in_parallel(pytester: pytest.Pytester, python: str) -> None:
    pytester.makepyfile(
        "import pytest\n@pytest.mark.correctness\n@pytest.mark.parametrize('n', range(4))\ndef test_x(n, device):\n"
        "    assert device.type\n"
    )
    run_pytest(pytester, python, "-m", "correctness", "-n2").assert_outcomes(passed=4)
