"""Counts from outside: one operator more, a graph break more, and counts that nobody can rely on."""

from __future__ import annotations

from tests.plugin.conftest import Project

OPERATORS = """
import torch
from pathlib import Path
from conftest import Virtual

here = Path(__file__).parent

def work():
    x = torch.ones(8)
    for _ in range(int((here / "more.txt").read_text())):
        x = x.neg_()  # neither slower, by the clock of this story, nor hungrier
    Virtual.now_ns += 100_000_000
    return x

def test_work(perf):
    perf(work)
"""


def operators(project: Project, count: int) -> None:
    project.test_file.write_text(OPERATORS)
    (project.pytester.path / "more.txt").write_text(str(count))


def test_an_operator_more_fails_by_name_alone_and_is_accepted(project: Project) -> None:
    operators(project, 3)
    project.run("--perf-update", "--perf-replicates=2").assert_outcomes(passed=1)
    assert project.needs()["test_work"]["counts"] == {"allocations": 1, "operators": 4}

    operators(project, 5)
    worse = project.run("--perf-json=out.json", failed=1)
    worse.stdout.re_match_lines(
        [
            r"work has higher counts than its baseline",
            r"operators\s+4\s+6\s+\+2\s+exact\s+exact\s+failed",
            r"latency\s+100 ms\s+100 ms .*",
            r"if intended: pytest -m perf test_story\.py::test_work --perf-update",
            r"work .* REGRESSED",
            r"  operators 4 -> 6",
        ]
    )
    assert "slower" not in worse.stdout.str()
    assert "measured again" not in worse.stdout.str()
    (row,) = project.results("out.json")
    assert row["judgement"]["worse"] == ["counts"]
    assert row["judgement"]["counts"]["operators"] == {"before": 4.0, "now": 6.0, "ratio": 1.5, "limit": 1.0}
    assert row["outcome"]["measurement"]["counts"] == {"allocations": 1, "operators": 6}

    project.run("--perf-counts=report", passed=1).stdout.re_match_lines([r"work .* ok", r"  operators 4 -> 6"])
    project.run("--perf-counts=off", "--perf-json=out.json").assert_outcomes(passed=1)
    assert '"counts":' not in (project.pytester.path / "out.json").read_text()

    project.run("test_story.py::test_work", "--perf-update", "--perf-replicates=1").assert_outcomes(passed=1)
    project.run().stdout.re_match_lines([r"work .* ok", "1 ok"])
    operators(project, 1)
    project.run().stdout.re_match_lines([r"work .* improved", r"  operators 6 -> 2", r"1 improved .*--perf-update.*"])


UNSTEADY = """
import itertools
import torch
from pathlib import Path
from conftest import Virtual

calls = itertools.count()
runs = Path(__file__).with_name("runs.txt")
with runs.open("a") as file:
    file.write("one more process ")
processes = len(runs.read_text().split()) // 3

def work(operators):
    x = torch.ones(8)
    for _ in range(operators()):
        x = x.neg_()
    Virtual.now_ns += 100_000_000

def test_each_call(perf):
    perf(work, lambda: next(calls) % 2)

def test_each_process(perf):
    perf(work, lambda: processes)
"""


def test_counts_that_differ_from_call_to_call_or_from_process_to_process_fail_nothing(project: Project) -> None:
    project.test_file.write_text(UNSTEADY)
    project.run("--perf-update", "--perf-replicates=2").assert_outcomes(passed=2)
    counts = {name: needs["counts"] for name, needs in project.needs().items()}
    steady = {"allocations": 1}
    assert counts == {"test_each_call": steady, "test_each_process": steady}, "a count that varies is not exact"
    result = project.run(passed=2)
    result.stdout.fnmatch_lines(["  calls differ: operators differ (1 to 2); these are not exact -> give each call"])
    result.stdout.no_fnmatch_line("*1 regressed*")


COMPILED = """
import pytest, torch
from pathlib import Path
from conftest import Virtual

BREAKS = (Path(__file__).parent / "break.txt").exists()

def forward(x):
    y = x.relu() + 1
    if BREAKS:
        torch._dynamo.graph_break()
    return (y * 2).sum()

def both(compiled, x):
    compiled(x)
    Virtual.now_ns += 100_000_000

def test_eager(perf):
    perf(both, forward, torch.ones(8))

def test_compiled(perf):
    perf(both, torch.compile(forward, backend="eager"), torch.ones(8))

shared = torch.compile(lambda x: forward(x), backend="eager")

def test_before():
    shared(torch.ones(8))

@pytest.mark.perf(budget="100ms")
def test_shared(perf):
    perf(both, shared, torch.ones(8))
"""


def test_a_graph_break_more_fails_by_name(project: Project) -> None:
    project.test_file.write_text(COMPILED)
    select = ("-m", "perf or not perf")
    project.run("--perf-update", "--perf-replicates=1", *select).assert_outcomes(passed=4)
    counts = {name: needs["counts"] for name, needs in project.needs().items()}
    assert counts["test_compiled"]["graph_breaks"] == counts["test_compiled"]["recompiles"] == 0
    assert "graph_breaks" not in counts["test_eager"]
    assert "graph_breaks" not in counts["test_shared"], "what an earlier test compiled is not this one's"
    assert counts["test_shared"]["recompiles"] == 0

    (project.pytester.path / "break.txt").touch()
    broken = project.run(*select, failed=1, passed=3)
    broken.stdout.re_match_lines(
        [
            r"compiled has higher counts than its baseline",
            r"graph breaks\s+0\s+1\s+\+1\s+exact\s+exact",
            r"if intended: .*test_story\.py::test_compiled --perf-update",
        ]
    )
    assert "slower" not in broken.stdout.str()
