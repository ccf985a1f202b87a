"""``--perf-adopt`` from outside: tests written for pytest-benchmark or CodSpeed are cases, without an edit."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import Project

SUITE = """
import pytest
from conftest import Virtual

def work(given, ms=100):
    Virtual.now_ns += 1_000_000 * ms
    return given.pop()

def test_call(benchmark):
    benchmark.extra_info["n"] = 3
    assert benchmark(lambda: work([2])) == 2

@pytest.mark.benchmark(group="pops")
def test_pedantic(benchmark):
    assert benchmark.pedantic(work, setup=lambda: (([7],), {"ms": 50}), rounds=10) == 7

@pytest.mark.benchmark
def test_whole():
    assert work([1], ms=20) == 1

def test_stats(benchmark):
    benchmark(lambda: work([2]))
    assert benchmark.stats["mean"] > 0
"""


@pytest.mark.parametrize("plugins", [(), ("-p", "pytest_benchmark.plugin")], ids=["alone", "with pytest-benchmark"])
def test_a_suite_for_other_plugins_is_measured_unchanged(project: Project, plugins: tuple[str, ...]) -> None:
    project.test_file.write_text(SUITE)
    result = project.run("--perf-adopt", "--perf-check=off", *plugins)
    lines = [r"call +100 ms .*", r"pedantic +50.0 ms .*", r"whole +20.0 ms .*", r"study: pops"]
    result.stdout.re_match_lines_random(lines)
    if plugins:
        result.assert_outcomes(passed=4, warnings=1)
        result.stdout.fnmatch_lines(["*test_stats: uses benchmark.stats, which perflab lacks; it ran as before*"])
    else:
        result.assert_outcomes(passed=3, failed=1)
        result.stdout.fnmatch_lines(
            ["*test_stats: uses benchmark.stats, which perflab lacks, and no plugin is installed*"]
        )


def test_without_the_option_nothing_is_adopted(project: Project) -> None:
    project.test_file.write_text(SUITE)
    assert project.run().ret == pytest.ExitCode.NO_TESTS_COLLECTED
