"""What is said before the first test, and only where it is true: which cases are measured, compiled or predicted."""

from __future__ import annotations

import re

import pytest

from perflab.compared.cases import how_long
from perflab.judging.paired import PairedPolicy
from tests.plugin.conftest import KERNELS, Project, begin_repository, one_line

NO_GPU = "perf: no GPU here; cases too large for this machine are predicted for h100, not run"


def announced(result: pytest.RunResult) -> list[str]:
    first = next(number for number, line in enumerate(result.outlines) if line.endswith("%]"))
    return [line for line in result.outlines[:first] if line.startswith("perf: ")]


def test_a_run_that_measures_says_what_it_does_for_want_of_a_gpu(project: Project) -> None:
    assert announced(project.run()) == [NO_GPU]


@pytest.mark.parametrize("chosen", [["--perf-disable"], ["--perf-skip"], []], ids=["once", "skipped", "among others"])
def test_a_run_that_measures_nothing_does_not_speak_of_predictions(project: Project, chosen: list[str]) -> None:
    project.pytester.makepyfile(test_plain="def test_plain():\n    pass\n")
    result = project.pytest(*chosen)
    assert result.ret == 0
    assert announced(result) == []


NEWER = """
    from importlib import metadata

    version = metadata.version
    metadata.version = lambda name: "2.99.0" if name == "torch" else version(name)
"""


@pytest.mark.parametrize("more", [["-q"], ["-p", "xdist", "-n2"]], ids=["quiet", "xdist"])
def test_a_pytorch_that_was_not_checked_is_a_warning_and_no_error(project: Project, more: list[str]) -> None:
    project.pytester.makepyfile(newer=NEWER)
    result = project.run("-p", "newer", *more, passed=1)
    (said,) = [line for line in announced(result) if line != NO_GPU]
    assert said.startswith("perf: warning: perflab was checked with torch 2.11 to 2.13, and 2.99.0 is installed: ")


@pytest.mark.parametrize("turns", [False, True], ids=["stored", "A/B"])
def test_what_a_pytorch_without_an_internal_takes_away_is_said_by_name_and_times_are_compared(
    project: Project, turns: bool
) -> None:
    (project.pytester.path / "gone.py").write_text("import torch\n\ndel torch.autograd.DeviceType\n")
    if turns:
        begin_repository(project)
        result = project.run("-p", "gone", "--perf-against=HEAD", "--perf-total-budget=50")
        (announcement,) = [line for line in result.outlines if line.startswith("perf: A/B of ")]
        assert re.fullmatch(
            r"perf: A/B of 1 case with HEAD \(\w{7}\): about \d+ s if nothing changed, in 3 rounds; "
            r"what may be slower takes up to 29 more; --perf-total-budget ends it after 50\.0 s",
            announcement,
        )
        first_result = next(at for at, line in enumerate(result.outlines) if line.endswith("%]"))
        assert result.outlines.index(announcement) < first_result
    else:
        project.run("--perf-update", "--perf-replicates=2").assert_outcomes(passed=1)
        result = project.run("-p", "gone")
    result.assert_outcomes(passed=1)
    said = one_line(result)
    assert "memory and counts of 1 case not compared: torch " in said
    assert (
        " has no torch.autograd.DeviceType.CPU, which perflab needs to read what the profiler saw; perflab was" in said
    )
    assert said.count("not compared") == 1
    result.stdout.fnmatch_lines(["1 ok"])


def test_what_an_ab_comparison_takes_is_the_sum_of_its_rounds() -> None:
    said = [how_long(4, "main", PairedPolicy(), round_s, None) for round_s in (0.5, 12.0, 100.0)]
    assert [text.partition("about ")[2].partition(" if")[0] for text in said] == ["5 s", "35 s", "5 min"]


def test_under_xdist_the_run_says_it_once(project: Project, python_with_compiler: str) -> None:
    assert announced(project.run("-p", "xdist", "-n2", passed=1)) == [NO_GPU]
    project.python = python_with_compiler
    predicted = project.run("-p", "xdist", "-n2", "--perf-predict", "--perf-gpu=a10")
    assert announced(predicted) == ["perf: 1 case predicted for a10 (--perf-gpu), not run"]


def test_a_run_that_compiles_too_says_how_many_cases_are_of_which_kind(project: Project) -> None:
    project.pytester.makepyfile(mine=KERNELS, test_mine="def test_kernel(compiled_kernel):\n    pass\n")
    given = ("--perf-kernels=mine:EXAMPLES", "--perf-arch=80")
    both = project.run(*given, passed=2)
    assert announced(both) == ["perf: 1 case measured, 1 kernel compiled", NO_GPU]
    both.stdout.fnmatch_lines(["1 measured new · 1 compiled new*"])
    assert announced(project.run(*given, "test_mine.py")) == ["perf: 1 kernel compiled"]
