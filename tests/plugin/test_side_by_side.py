"""Levels of a parameter against each other, from outside: marked, asked for, and afterwards."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import CONFTEST, REFUSED, Project, interrupted
from tests.plugin.test_recheck import FEW_ROUNDS

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
    perf.requires(seconds=1e-3)
    perf.quote("elsewhere", seconds=0.001)
    perf(work, {"slow": 30, "fast": 20}[impl] * length)
"""


def write(project: Project, mark: str, ms: int = 1) -> None:
    project.pytester.makepyfile(test_story=CASES.replace("@MARK", mark).replace("* length)", f"* length * {ms})"))
    project.add(FEW_ROUNDS, "conftest.py")


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
                r"  slow +30\.0 ms +±0\.0% +1\.50 \(1\.\d\d…1\.\d\d\) ",
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
    project.run("--perf-side-by-side=length", "--perf-json=a.json").stdout.re_match_lines(
        [r"side by side: length .*", r"work\[slow\]$", r"  1 +30\.0 ms +±0\.0% +1\.00 ", r"  2 .* 2\.00 "]
    )
    told = project.perflab("report", "a.json", "--side-by-side=impl").stdout.str()
    assert "side by side: impl" in told
    assert "side by side: length" not in told


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
    project.run(ret=REFUSED).stderr.fnmatch_lines(
        [
            "*test_work?slow-1?: @pytest.mark.perf(side_by_side='imp'): the test has no such parameter",
            "  -> name one that it has: impl, length",
        ]
    )


IN_TURNS = """
import os
import sys
from pathlib import Path

import pytest
import torch
from conftest import Virtual

here = Path(__file__).parent
alone = not any(word.startswith("--perf-replicate") for word in sys.argv)

def work(ms):
    Virtual.now_ns += ms * 1_000_000
    return torch.zeros(1000).sum()

@pytest.mark.perf(side_by_side="impl", study="same", versus="impl=one")
@pytest.mark.parametrize("impl", ["one", "same", "broken", "cold", "dies"])
def test_work(perf, impl):
    if impl == "broken":
        assert alone, "not twice"
    if impl == "dies" and not alone:
        os._exit(3)
    perf(work, 60 if impl == "same" and alone else 20 + (impl not in ("one", "same")))
"""
"""Two rows are the same code, of which one is disturbed when it is measured alone; the others cannot take turns."""


@pytest.mark.parametrize("workers", [[], ["-p", "xdist.plugin", "-n2"]])
def test_a_row_that_was_disturbed_alone_is_as_fast_as_the_same_code_in_turns(
    project: Project, workers: list[str]
) -> None:
    if workers:
        pytest.importorskip("xdist")
    cold = 'pytest.param("cold", marks=pytest.mark.perf(fresh_process=True))'
    project.pytester.makepyfile(test_story=IN_TURNS.replace('"cold"', cold, 1))
    project.run("--perf-json=a.json", *workers, passed=5).stdout.re_match_lines(
        [
            r"  one +20\.0 ms +±0\.0% +1\.00 ",
            r"  same +60\.0 ms +±0\.0% +1\.00 \(1\.00…1\.00\) ",
            r"  no ratio of times of broken: failed: .*AssertionError",
            r"  no ratio of times of cold: skipped: a cold start cannot be taken in turns",
            r"  no ratio of times of dies: died: a fresh process: its process ended .*",
            r"study: same · against impl=one",
            r"same +60\.0 ms ×1\.00 \(1\.00…1\.00\) +3\.91 KiB +0%",
        ]
    )
    rows = project.results("a.json")
    ratios = {row["case"].rpartition("[")[2]: row.get("beside", []) for row in rows}
    assert ratios["one]"] == []
    (same,) = ratios["same]"]
    assert (same["base"], same["base_ns"], same["call"]["value"]) == ("test_story.py::test_work[one]", 20e6, 1.0)
    assert same["call"]["low"] < 1.0 < same["call"]["high"] < 1.02


LATE = """
from perflab.settings.settings import TotalBudget

def pytest_runtest_teardown(nextitem):
    if nextitem is None:
        TotalBudget.left_s = lambda self: 5.0
"""
"""Little is left of the run's time when the last test has run."""


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--perf-total-budget=1h", "the run's 60.0 min were over before the rows could take*"),
        ("--perf-budget=10ms", "8 calls take more than 10.01 s -> raise --perf-budget"),
    ],
)
def test_rows_that_there_is_no_time_to_take_in_turns_have_their_times_and_no_ratio(
    project: Project, option: str, said: str
) -> None:
    project.pytester.makeconftest(CONFTEST + (LATE if "total" in option else ""))
    write(project, "@pytest.mark.perf(side_by_side='impl')", ms=1 if "total" in option else 1000)
    shown = project.run(option, "-k1", passed=2, skipped=1)
    shown.stdout.fnmatch_lines(["  fast * 20.0 *s *", "  slow * 30.0 *s *", f"  no ratio of times: {said}"])
    shown.stdout.no_fnmatch_line("*1.50*")


def test_a_run_that_is_stopped_while_rows_take_turns_loses_nothing_else(project: Project) -> None:
    hangs = IN_TURNS.replace("os._exit(3)", "(here / 'hanging').touch(), time.sleep(600)").replace(
        "import os", "import time"
    )
    project.pytester.makepyfile(test_story=hangs)
    output = interrupted(
        project.pytester.path, project.python, "-m", "perf", "--perf-json=a.json", "-k", "one or same or dies"
    )
    assert "no ratio of times" in output
    assert len(project.results("a.json")) == 3
