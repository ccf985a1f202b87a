"""``perf.compare`` from outside: two callables of one case in turns, on a virtual clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.plugin.conftest import Project, begin_repository, git, run_pytest

CASE = """
from pathlib import Path

import torch
from conftest import Virtual

here = Path(__file__).parent

def old(kib):
    Virtual.now_ns += 100_000_000
    return torch.zeros(kib)

def new(kib):
    cost_ms, _ = (int(n) for n in (here / "cost.txt").read_text().split())
    block = torch.empty(1024 * kib, dtype=torch.uint8)
    Virtual.now_ns += 1_000_000 * cost_ms
    return block + 1

def test_work(perf):
    found = perf.compare(base=old, candidate=new, args=(512,))
    print("found", found)
    assert found.verdict != "regressed", str(found)
"""


@pytest.fixture
def project(project: Project) -> Project:
    """The usual one, whose case compares what costs 100 ms with what costs what it is told."""
    project.test_file.write_text(CASE)
    return project


def rewritten(project: Project, old: str, new: str) -> None:
    """Change the case."""
    text = project.test_file.read_text()
    assert old in text
    project.test_file.write_text(text.replace(old, new))


def result_of(project: Project, *arguments: str) -> dict[str, Any]:
    """The one result of a session, as its file has it."""
    path = project.pytester.path / "perf.json"
    project.run(*arguments, f"--perf-json={path}")
    (found,) = json.loads(path.read_text())["results"]
    return dict(found)


def test_the_comparison_is_returned_and_noted_and_the_candidate_is_measured(project: Project) -> None:
    project.cost(ms=80)
    result = project.run("-s")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["*found improved: candidate 80.0 ms, base 100 ms, -20.0% (*), * pairs", "work *80.0 ms* new"]
    )
    record = result_of(project)["outcome"]
    assert record["facts"]["compared_verdict"] == "improved"
    assert record["facts"]["compared_ratio"] == pytest.approx(0.8)
    assert record["facts"]["compared_low_ratio"] < 0.8 < record["facts"]["compared_high_ratio"]
    assert record["summary"]["memory"]["peak_bytes"] >= 512 * 1024


def test_a_slower_candidate_fails_the_test_that_says_so_and_no_other(project: Project) -> None:
    project.cost(ms=110)
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*regressed: candidate 110 ms, base 100 ms, +10.0% (*"])
    rewritten(project, "    assert found", "    # assert found")
    project.run().assert_outcomes(passed=1)


def test_the_candidate_is_held_against_its_baseline_whatever_the_base_takes(project: Project) -> None:
    project.cost(ms=60)
    project.run("--perf-update", "--perf-replicates=2").assert_outcomes(passed=1)
    project.cost(ms=90)
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["work is slower than its baseline", "work *90.0 ms*+50.0%*REGRESSED"])


def test_the_case_s_threshold_counts_unless_another_is_given(project: Project) -> None:
    project.cost(ms=110)
    project.run("--perf-threshold=20%").assert_outcomes(passed=1)
    rewritten(project, "args=(512,)", "args=(512,), threshold=0.05")
    project.run("--perf-threshold=20%").assert_outcomes(failed=1)


def test_comparing_is_the_case_s_one_measurement(project: Project) -> None:
    rewritten(project, "    assert found", "    perf(new, 512)\n    assert found")
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*perf was called twice in one case*"])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("base=old", "base=3", "*perf.compare(base=...) got 'int', which cannot be called*"),
        ("candidate=new", "candidate=lambda kib: None", "*the clock did not move while candidate was called*"),
        ("base=old", "base=lambda kib: map(old, [kib])", "*returned a map that was never run*"),
        ("args=(512,)", "args=(512,), budget_s=0", "*perf.compare(budget_s=0)*"),
    ],
)
def test_what_cannot_be_compared_fails_its_test(project: Project, old: str, new: str, said: str) -> None:
    rewritten(project, old, new)
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([said])


COUNTED = """
    print("after the comparison")
    assert found.verdict == "improved"
"""


def test_a_run_that_measures_nothing_calls_both_once_and_the_test_ends_there(project: Project) -> None:
    project.test_file.write_text(CASE.replace("def old(kib):", "def old(kib):\n    print('old')") + COUNTED)
    rewritten(project, "def new(kib):", "def new(kib):\n    print('new')")
    project.pytester.makepyfile(test_plain="def test_plain():\n    pass\n")
    result = run_pytest(project.pytester, project.python, "-s")
    result.assert_outcomes(passed=2)
    output = result.stdout.str()
    assert output.count("old") == output.count("new") == 1
    assert "after the comparison" not in output


def test_a_prediction_is_of_the_candidate_and_the_test_ends_there(project: Project, python_with_compiler: str) -> None:
    project.python = python_with_compiler
    project.test_file.write_text(CASE + COUNTED)
    result = project.run("--perf-predict", "-s")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["work *"])
    assert "after the comparison" not in result.stdout.str()


def test_against_another_commit_the_candidate_takes_its_turns(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    project.test_file.write_text(CASE + COUNTED)
    begin_repository(project)
    git(project, "tag", "before")
    rewritten(project, "1024 * kib", "2048 * kib")
    result = project.run("--perf-against=before", "--perf-evidence=off")
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines([r"peak\s+1\.00 MiB\s+2\.00 MiB .*"])
