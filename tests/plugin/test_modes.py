"""Cold caches and CUDA graphs from outside: a case in another mode is another case, and a CPU has no graphs."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.plugin.conftest import CONFTEST, REFUSED, Project, begin_repository, one_line, run_pytest

SMALL_CACHES = """
import perflab.measure.machine.devices as caches

class Evictions:
    count = 0

class Counted(caches.Eviction):
    def __call__(self):
        Evictions.count += 1
        super().__call__()

import perflab.measurement.measurement as measurement
measurement.Eviction = Counted
caches.eviction_bytes = lambda device: 4096

def pytest_sessionfinish():
    with Path(__file__).with_name("evictions.txt").open("a") as file:
        print(Evictions.count, file=file)
"""


@pytest.fixture
def project(project: Project) -> Project:
    """The usual one, with caches that are soon evicted, and a note of how often each process did so."""
    project.pytester.makeconftest(CONFTEST + SMALL_CACHES)
    return project


def evictions(project: Project) -> list[int]:
    """Of each process of the last session, in the order in which they ended; the next session begins anew."""
    path = project.pytester.path / "evictions.txt"
    found = [int(line) for line in path.read_text().split()]
    path.unlink()
    return found


def mark(project: Project, arguments: str) -> None:
    """Give the case a marker."""
    project.edit("def test_work", f"import pytest\n@pytest.mark.perf({arguments})\ndef test_work")


def results(project: Project, *arguments: str) -> list[dict[str, Any]]:
    """A session's results, as its file has them."""
    path = project.pytester.path / "perf.json"
    project.run(*arguments, f"--perf-json={path}")
    found: list[dict[str, Any]] = json.loads(path.read_text())["results"]
    return found


def test_a_cold_case_has_a_baseline_of_its_own_and_the_warm_ones_stays_as_it_was(project: Project) -> None:
    project.save("--perf-replicates=1")
    assert evictions(project) == [0]
    warm_alone = project.baseline_file().read_text()
    project.cost(ms=150)  # as a cold call would be: no regression of the warm one
    result = project.run("--perf-cache=cold")
    result.stdout.fnmatch_lines(["work {cold} *150 ms* new"])
    result.assert_outcomes(passed=1)
    assert evictions(project)[-1] > 0
    assert project.baseline_file().read_text() == warm_alone
    project.run("--perf-cache=cold", "--perf-update", "--perf-replicates=1").assert_outcomes(passed=1)
    assert list(project.saved_cases()) == ["test_work", "test_work {cold}"]
    project.run("--perf-cache=cold").stdout.fnmatch_lines(["work {cold} * 0.0%* ok"])
    project.cost(ms=100)
    project.run().stdout.fnmatch_lines(["work *100 ms* 0.0%* ok"])


def test_a_cold_case_that_got_slower_is_measured_again_cold_and_fails_by_its_name(project: Project) -> None:
    mark(project, "cache='cold'")
    project.save("--perf-replicates=3")
    assert len(saving := evictions(project)) == 3
    assert min(saving) > 0
    project.cost(ms=150)
    result = project.run(failed=1)
    result.stdout.fnmatch_lines(
        [
            "work {cold} is slower than its baseline",
            "*measured again 3 times in fresh processes*",
            "if intended: pytest -m perf test_story.py::test_work --perf-update",
            "work {cold} *150 ms*+50.0%*REGRESSED",
        ]
    )
    again = evictions(project)
    assert len(again) == 4
    assert min(again) > 0
    assert [result["mode"] for result in results(project)] == [{"cache": "cold"}]


def test_the_command_that_accepts_a_change_keeps_the_mode_that_was_asked_for(project: Project) -> None:
    project.run("--perf-cache=cold", "--perf-update", "--perf-replicates=3").assert_outcomes(passed=1)
    project.cost(ms=150)
    project.run("--perf-cache=cold").stdout.fnmatch_lines(
        ["if intended: pytest -m perf --perf-cache=cold test_story.py::test_work --perf-update"]
    )


def test_the_record_says_how_calls_were_timed(project: Project) -> None:
    (warm,) = results(project)
    assert "mode" not in warm or warm["mode"] == {}
    assert "evicted_bytes" not in warm["outcome"]["measurement"]
    (cold,) = results(project, "--perf-cache=cold")
    assert cold["mode"] == {"cache": "cold"}
    assert cold["outcome"]["measurement"]["evicted_bytes"] == 4096
    assert cold["outcome"]["measurement"]["empty_call_ns"] == 0.0
    cold_memory, warm_memory = (case["outcome"]["measurement"]["memory"] for case in (cold, warm))
    for memory in (cold_memory, warm_memory):
        del memory["resident_growth_bytes"]  # of the whole process, a page more or less
    assert cold_memory == warm_memory


def test_the_marker_wins_over_the_option_and_the_ini_key_is_the_options_twin(project: Project) -> None:
    mark(project, "cache='warm'")
    assert results(project, "--perf-cache=cold")[0].get("mode", {}) == {}
    project.pytester.makeini("[pytest]\naddopts = -p perflab.plugin -p no:cacheprovider\nperf_cache = cold\n")
    assert results(project)[0].get("mode", {}) == {}
    project.edit("cache='warm'", "")
    assert results(project)[0]["mode"] == {"cache": "cold"}


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="a CUDA device is there")
@pytest.mark.parametrize("way", ["option", "ini key", "option beside the marker", "comparison"])
def test_graphs_for_a_whole_run_on_a_cpu_are_refused_by_name_before_anything_is_measured(
    project: Project, way: str
) -> None:
    arguments = ["--perf-cuda-graph"] * (way != "ini key") + ["--perf-against=."] * (way == "comparison")
    if way == "ini key":
        project.pytester.makeini("[pytest]\naddopts = -p perflab.plugin\nperf_cuda_graph = true\n")
    if way == "option beside the marker":
        mark(project, "cuda_graph=True")
    result = project.run(*arguments, ret=REFUSED)
    said = " ".join(result.stderr.str().split())
    assert "--perf-cuda-graph (perf_cuda_graph) needs CUDA: test_story.py::test_work is measured on cpu" in said
    assert "-> leave it out there, or mark what is to have a graph, @pytest.mark.perf(cuda_graph=True)" in said
    assert "perf =" not in result.stdout.str()


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="a CUDA device is there")
@pytest.mark.parametrize("arguments", [[], ["--perf-check=strict", "--perf-update"], ["--perf-against=HEAD"]])
def test_a_case_marked_for_a_graph_is_skipped_by_itself_on_a_cpu_and_the_others_are_measured(
    project: Project, arguments: list[str]
) -> None:
    mark(project, "cuda_graph=True")
    project.add(
        "\n@pytest.fixture\ndef model():\n    raise RuntimeError('made for nothing')\n"
        "\n@pytest.mark.perf(cuda_graph=True)\ndef test_model(perf, model):\n    perf(model)\n"
        "\ndef test_other(perf):\n    perf(work)\n"
    )
    begin_repository(project)
    project.run(*arguments, passed=1, skipped=2).stdout.fnmatch_lines(
        ["other * 100 ms*", "2 skipped: a CUDA graph needs a GPU (work {graph}, model {graph})", "1 * 2 skipped*"]
    )
    alone = project.run("-k", "test_work", *arguments, skipped=1, deselected=2)
    alone.stdout.fnmatch_lines(["1 skipped: a CUDA graph needs a GPU (work {graph})"])


def test_a_marker_takes_a_case_out_of_the_graphs_that_the_option_asks_for(project: Project) -> None:
    mark(project, "cuda_graph=False")
    project.run("--perf-cuda-graph", "--perf-device=cpu").assert_outcomes(passed=1)


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="a CUDA device is there")
def test_a_case_on_another_device_than_the_runs_has_no_graph_either(project: Project) -> None:
    """The project's own device fixture decides, and may say so only when the test runs."""
    (project.pytester.path / "conftest.py").write_text(
        CONFTEST
        + "import perflab.measured.run.cases as measuring\n"
        + "measuring.no_graph_for = lambda case, settings, device: None\n"  # the run's device is a GPU, as it were
    )
    result = project.run("--perf-cuda-graph", failed=1)
    result.stdout.fnmatch_lines(["*--perf-cuda-graph (*) needs CUDA: test_story.py::test_work is measured on cpu*"])
    mark(project, "cuda_graph=True")
    result = project.run(skipped=1)
    result.stdout.fnmatch_lines(["1 skipped: a CUDA graph needs a GPU (work {graph})"])


def test_a_step_is_not_replayed(project: Project) -> None:
    (project.pytester.path / "conftest.py").write_text(
        CONFTEST + "import perflab.measured.run.cases as measuring\nmeasuring.no_graph_for = lambda *_: None\n"
    )
    project.test_file.write_text("def test_work(perf):\n    perf.step(forward=lambda: None)\n")
    project.run("--perf-cuda-graph", failed=1).stdout.fnmatch_lines(
        [
            "*test_work: perf.step in a CUDA graph: a replay is the whole step, without timed phases*",
            "*capturable=True*",
        ]
    )


def test_a_prediction_heeds_no_mode(project: Project, python_with_compiler: str) -> None:
    project.python = python_with_compiler
    predicted = ["--perf-predict", "--perf-gpu=h100", "--perf-update"]
    project.test_file.write_text("import torch\ndef test_work(perf):\n    perf(torch.ones(8).sum)\n")
    project.run(*predicted).assert_outcomes(passed=1)
    mark(project, "cache='cold', cuda_graph=True")
    project.run("--perf-predict", "--perf-gpu=h100", passed=1).stdout.fnmatch_lines(["work * ok"])


def test_a_cold_baseline_is_not_stale_while_its_case_exists_and_is_when_it_is_gone(project: Project) -> None:
    mark(project, "cache='cold'")
    project.save("--perf-replicates=1")
    project.edit("cache='cold'", "")
    project.run("--perf-prune").assert_outcomes(passed=1)
    assert list(project.saved_cases()) == ["test_work {cold}"], "an option brings it back"
    project.edit("def test_work", "def test_other")
    result = project.run("--perf-prune")
    said = one_line(result)  # lines break where the machine's name ends
    for folder in ("cpu-", "exact-cpu-"):
        assert re.search(rf"removed 1 stale baseline from baselines/{folder}\S+: test_work {{cold}}; it held no", said)
    assert not list((project.pytester.path / "baselines").glob("*/*.json"))


def test_versions_that_time_a_case_in_two_modes_are_not_compared(project: Project) -> None:
    begin_repository(project)
    mark(project, "cache='cold'")
    project.run("--perf-against=HEAD", passed=1).stdout.fnmatch_lines(
        ["work {cold} *incomparable", "*timed with a cold cache here, but with a warm cache in HEAD*"]
    )


def test_both_sides_of_a_comparison_are_timed_as_the_option_asks(project: Project) -> None:
    begin_repository(project)
    project.cost(ms=101)
    project.run("--perf-against=HEAD", "--perf-cache=cold", passed=1).stdout.fnmatch_lines(["work {cold} *101 ms* ok"])


def test_pytest_benchmark_keeps_the_two_apart(pytester: pytest.Pytester, python: str) -> None:
    pytest.importorskip("pytest_benchmark")
    pytester.makeconftest(CONFTEST + SMALL_CACHES)
    pytester.makepyfile(
        """
        import pytest
        from conftest import Virtual

        def work():
            Virtual.now_ns += 1_000_000

        @pytest.mark.perf(cache="cold")
        def test_work(perf):
            perf(work)
        """
    )
    run_pytest(pytester, python, "-m", "perf", "-p", "perflab.plugin", "--benchmark-json=out.json").assert_outcomes(
        passed=1
    )
    (one,) = json.loads((pytester.path / "out.json").read_text())["benchmarks"]
    assert one["fullname"].endswith("::test_work {cold}")
    assert one["param"] is None
