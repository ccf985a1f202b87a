"""The table as it is asked for on pytest's command line, in the ini file, and of stored results."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import REFUSED, Project

TWO = """
from conftest import Virtual

def spend(ms):
    Virtual.now_ns += ms * 1_000_000

def test_slow(perf):
    perf(spend, 30)

def test_quick(perf):
    perf(spend, 10)
"""
BENCHMARK = "min,max,mean,std,iqr,rounds,ops"
TABLE = [
    r"case +min +max +mean +std +iqr +rounds +ops/s +verdict$",
    r"quick +10\.0 ms +10\.0 ms +10\.0 ms +0 s +0 s +\d+ +100 +new$",
    r"slow +30\.0 ms +30\.0 ms +30\.0 ms +0 s +0 s +\d+ +33\.3 +new$",
]


def test_columns_and_order_are_chosen_by_option_by_ini_key_and_of_stored_results(project: Project) -> None:
    project.pytester.makepyfile(test_story=TWO)
    by_option = project.run(f"--perf-columns={BENCHMARK}", "--perf-sort=min", "--perf-json=perf.json")
    by_option.stdout.re_match_lines(TABLE, consecutive=True)
    project.pytester.makeini(
        "[pytest]\naddopts = -p perflab.plugin -p no:cacheprovider\n"
        f"perf_columns = {BENCHMARK.replace(',', ', ')}\nperf_sort = -ops\n"
    )
    project.run().stdout.re_match_lines(TABLE, consecutive=True)
    report = ("-m", "perflab", "report", "perf.json", f"--columns={BENCHMARK}", "--sort=min")
    project.pytester.run(project.python, *report).stdout.re_match_lines(TABLE, consecutive=True)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (
            "--perf-columns=min,spraed",
            [
                "*--perf-columns: 'spraed' is not one of these; did you mean spread?",
                "     median, min, *",
                "  -> give some of them, separated by commas",
            ],
        ),
        (
            "--perf-sort=medain",
            [
                "*--perf-sort: 'medain' is not one of these; did you mean median?",
                "     collected, name, fullname, *",
                "  -> give one of them, with - before it for the largest first",
            ],
        ),
    ],
)
def test_a_column_that_there_is_not_is_refused_before_anything_runs(
    project: Project, option: str, said: list[str]
) -> None:
    result = project.run(option, ret=REFUSED)
    result.stderr.fnmatch_lines(said)
    assert all(len(line) <= 110 for line in result.stderr.lines)
    assert not (project.pytester.path / ".perflab").exists()
