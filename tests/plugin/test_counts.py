"""Counts from outside: one operator more, a graph break more, and counts that nobody can rely on.

Under callgrind a stand-in takes valgrind's place: the real one needs minutes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from perflab.measured.run.callgrind import total_of
from tests.plugin.conftest import REFUSED, Project, one_line

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
STAND_IN = """#!{python}
import os, subprocess, sys

options = [argument for argument in sys.argv[1:] if argument.startswith("--")]
until = next(at for at, argument in enumerate(sys.argv) if at and not argument.startswith("--"))
assert "--tool=callgrind" in options and "--collect-atstart=no" in options
assert os.environ["PYTHONHASHSEED"] == "0"
(out,) = [option.split("=")[1] for option in options if option.startswith("--callgrind-out-file=")]
status = subprocess.run(sys.argv[until:], close_fds=False).returncode
with open(out, "w") as file:
    file.write("events: Ir\\nsummary: " + open({cost!r}).read().split()[0] + "\\n")
sys.exit(status)
"""


def operators(project: Project, count: int) -> None:
    project.test_file.write_text(OPERATORS)
    (project.pytester.path / "more.txt").write_text(str(count))


def test_an_operator_more_fails_by_name_alone_and_is_accepted(project: Project) -> None:
    operators(project, 3)
    project.run("--perf-update", "--perf-replicates=2").assert_outcomes(passed=1)
    assert project.needs()["test_work"]["counts"] == {"allocations": 1, "operators": 4}

    operators(project, 5)
    worse = project.run("--perf-json=out.json", "--perf-evidence=off", failed=1)
    worse.stdout.re_match_lines(
        [
            r"work has higher counts than its baseline",
            r"operators\s+4\s+6\s+\+2\s+exact\s+exact\s+failed",
            r"latency\s+100 ms\s+100 ms .*",
            r"if intended: pytest -m perf --perf-evidence=off test_story\.py::test_work --perf-update",
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


def test_a_graph_break_more_fails_by_name(project: Project, python_with_compiler: str) -> None:
    project.python = python_with_compiler
    project.test_file.write_text(COMPILED)
    select = ("-m", "perf or not perf")
    project.run("--perf-update", "--perf-replicates=1", *select).assert_outcomes(passed=4)
    counts = {name: needs["counts"] for name, needs in project.needs().items()}
    assert counts["test_compiled"]["graph_breaks"] == counts["test_compiled"]["recompiles"] == 0
    assert "graph_breaks" not in counts["test_eager"]
    assert "graph_breaks" not in counts["test_shared"], "what an earlier test compiled is not this one's"
    assert counts["test_shared"]["recompiles"] == 0

    (project.pytester.path / "break.txt").touch()
    broken = project.run(*select, "--perf-evidence=off", failed=1, passed=3)
    broken.stdout.re_match_lines(
        [
            r"compiled has higher counts than its baseline",
            r"graph breaks\s+0\s+1\s+\+1\s+exact\s+exact",
            r"if intended: .*test_story\.py::test_compiled --perf-update",
        ]
    )
    assert "slower" not in broken.stdout.str()


@pytest.fixture
def valgrind(project: Project, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of that name that counts what ``cost.txt`` says, found before any other."""
    folder = project.pytester.mkdir("bin")
    script = folder / "valgrind"
    script.write_text(STAND_IN.format(python=sys.executable, cost=str(project.pytester.path / "cost.txt")))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return script


def test_without_valgrind_it_is_said_before_anything_is_measured(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(project.pytester.path))
    project.run("--perf-instructions=callgrind", ret=REFUSED).stderr.fnmatch_lines(
        [
            "ERROR: --perf-instructions=callgrind, but valgrind is not installed",
            "  -> install it (apt-get install valgrind), or use --perf-instructions=auto",
        ]
    )


def test_instructions_are_counted_apart_for_each_replicate_and_all_else_is_judged_where_callgrind_counts_nothing(
    project: Project, valgrind: Path
) -> None:
    option, cost = "--perf-instructions=callgrind", str(project.pytester.path / "cost.txt")
    counts = valgrind.read_text()
    project.run(option, "--perf-update", "--perf-replicates=2").assert_outcomes(passed=1)
    (case,) = json.loads(project.baseline_file().read_text())["cases"].values()
    assert [replicate["counts"]["callgrind_instructions"] for replicate in case["replicates"]] == [100, 100]

    valgrind.write_text("#!/bin/sh\necho illegal instruction\nexit 4\n")
    said = one_line(project.run(option, passed=1))
    ended = "callgrind counted nothing and ended (exit status 4): illegal"
    assert f"callgrind instructions of 1 case not compared: {ended}" in said
    assert "run with --perf-instructions=auto" in said
    strict = project.run(option, "--perf-check=strict", failed=1)
    assert "its callgrind instructions could not be judged" in one_line(strict)

    first, _, rest = counts.partition("\n")
    done = valgrind.parent / "counted"
    once = f"import os, sys\nif os.path.exists({str(done)!r}): sys.exit(4)\nopen({str(done)!r}, 'w').close()"
    more = rest.replace(f"open({cost!r}).read().split()[0]", "'90000000'")
    assert more != rest
    valgrind.write_text("\n".join([first, once, more]))
    risen = one_line(project.run(option))
    undecided = "inconclusive callgrind instructions 100 -> 90,000,000 could not be measured again: callgrind counted"
    assert undecided in risen, "a rise that a fresh process cannot count is not taken back"


def test_what_was_measured_is_saved_without_the_count_that_failed(project: Project, valgrind: Path) -> None:
    valgrind.write_text("#!/bin/sh\nexit 4\n")
    project.run("--perf-instructions=callgrind", "--perf-update", "--perf-replicates=2").assert_outcomes(passed=1)
    (case,) = json.loads(project.baseline_file().read_text())["cases"].values()
    assert len(case["replicates"]) == 2
    assert all("callgrind_instructions" not in one.get("counts", {}) for one in case["replicates"])


@pytest.mark.parametrize(
    ("profile", "total"),
    [("events: Ir\nfn=f\n1 2\nsummary: 34474\n", 34474), ("events: Ir\ntotals: 7\n", 7), ("events: Ir\n", 0), ("", 0)],
)
def test_a_profiles_total_is_read(profile: str, total: int) -> None:
    assert total_of(profile) == total
