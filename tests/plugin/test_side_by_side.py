"""Levels of a parameter against each other, from outside: marked, asked for, and afterwards."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.plugin.conftest import Project

CASES = """
import pytest
import torch
from conftest import Virtual

def work(ms):
    Virtual.now_ns += ms * 1_000_000
    return torch.zeros(1000).sum()

@MARK
@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("impl", ["slow", "fast", "gone"])
def test_work(perf, impl, length):
    if impl == "gone":
        pytest.skip("not on this device")
    perf.work(tokens=1000)
    perf.quote("elsewhere", seconds=0.001)
    perf(work, {"slow": 30, "fast": 20}[impl] * length)
"""


def write(project: Project, mark: str) -> None:
    project.pytester.makepyfile(test_story=CASES.replace("@MARK", mark))


def test_a_marked_case_is_set_side_by_side_below_the_table(project: Project) -> None:
    write(project, "@pytest.mark.perf(side_by_side='impl')")
    gone, counted = r"  gone  skipped: not on this device$", r"2 skipped: not on this device \(.*\)$"
    for arguments, lines, below in (([], [], [counted]), (["-v"], [gone], [])):
        shown = project.run(*arguments).stdout
        shown.re_match_lines(
            [
                r"side by side: impl +median +spread +ratio +rate +peak$",
                r"work\[1\]$",
                r"  fast +20\.0 ms +±0\.0% +1\.00  50\.0 k tokens/s  3\.91 KiB$",
                r"  slow +30\.0 ms +±0\.0% +1\.50 ",
                *lines,
                r"  quoted: elsewhere +1\.00 ms$",
                r"work\[2\]$",
                r"  fast +40\.0 ms +±0\.0% +1\.00 ",
                *below,
                r"4 new · 2 skipped.*",
            ],
            consecutive=False,
        )
        assert bool(lines) == ("  gone  skipped" in shown.str())


def test_any_parameter_is_set_side_by_side_where_it_is_asked_for_and_afterwards(project: Project) -> None:
    write(project, "@pytest.mark.perf")
    shown = project.run("--perf-side-by-side=length", "--perf-json=a.json")
    shown.stdout.re_match_lines(
        [r"side by side: length .*", r"work\[slow\]$", r"  1 +30\.0 ms +±0\.0% +1\.00 ", r"  2 .* 2\.00 "]
    )
    command = [sys.executable, "-m", "perflab", "report", "a.json", "--side-by-side=impl"]
    done = subprocess.run(command, cwd=project.pytester.path, capture_output=True, text=True, check=True)
    assert "side by side: impl" in done.stdout
    assert "side by side: length" not in done.stdout


def test_nothing_is_set_side_by_side_that_was_not_asked_for(project: Project) -> None:
    write(project, "@pytest.mark.perf")
    project.run().stdout.no_fnmatch_line("*side by side*")


def test_a_parameter_that_no_case_has_is_told(project: Project) -> None:
    write(project, "@pytest.mark.perf")
    project.run("--perf-side-by-side=imp").stdout.fnmatch_lines(
        ["--perf-side-by-side=imp: no case has such a parameter; there are: impl, length"]
    )


def test_a_mark_that_names_no_parameter_of_the_test_is_refused_before_anything_runs(project: Project) -> None:
    write(project, "@pytest.mark.perf(side_by_side='imp')")
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [
            "*test_work?slow-1?: @pytest.mark.perf(side_by_side='imp'): the test has no such parameter",
            "  -> name one that it has: impl, length",
        ]
    )


def test_a_quote_of_no_time_is_refused(project: Project) -> None:
    project.pytester.makepyfile(
        test_story="def test_quote(perf):\n    perf.quote('elsewhere', seconds=1.0, backward=0)\n"
    )
    project.run().stdout.fnmatch_lines(
        ["perf.quote('elsewhere', backward=0)", "  -> give a positive number of seconds"]
    )


def test_the_rate_of_a_phase_is_of_its_own_work_and_time(project: Project) -> None:
    project.pytester.makepyfile(
        test_story="""
import torch
from conftest import Virtual

def phase(ms):
    Virtual.now_ns += ms * 1_000_000
    return torch.zeros(1000).sum()

def test_step(perf):
    perf.work(flops=60e9, backward_flops=40e9)
    perf.step(forward=lambda: phase(10), backward=lambda _: phase(20))
"""
    )
    project.run().stdout.re_match_lines([r".* mean 30\.0 ms ± 0 s · 2\.00 TFLOP/s$", r"  backward 2\.00 TFLOP/s$"])
