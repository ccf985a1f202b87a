"""A study from outside: noted, shown, found, in files and afterwards; and what its marks and notes refuse.

Also the columns and the order of a table, as an option or an ini key asks for them.
"""

from __future__ import annotations

import json

import pytest

from tests.plugin.conftest import CONFTEST, REFUSED, Project

FINDINGS = """
import math

def pytest_perf_findings(study, results):
    if study == "switches":
        losses = [one.record.facts["loss"] for one in results if one.record is not None]
        return [f"{len(results)} cases, losses {losses}"]

class Broken:
    def pytest_perf_findings(self, study, results):
        if study == "others":
            raise ValueError("not this one")

def pytest_configure(config):
    config.pluginmanager.register(Broken())
"""

CASES = """
import pytest
import torch
from conftest import Virtual

def work(ms):
    Virtual.now_ns += ms * 1_000_000
    return torch.zeros(1000).sum()

@pytest.mark.perf(study="switches", columns="median, tokens/s, loss, setup_s", versus="switch=base")
@pytest.mark.parametrize("switch", ["base", "fast", "gone", "stop"])
def test_step(perf, switch):
    if switch == "gone":
        pytest.skip("not on this device")
    if switch == "stop":
        raise STOP
    perf.work(tokens=1000)
    perf.note(loss=9.0, setup_s=0.25)
    perf(work, {"base": 20, "fast": 10}[switch])
    perf.note(loss=float("nan") if switch == "base" else 3.25)

@pytest.mark.perf(study="others")
def test_other(perf):
    perf(work, 5)
"""
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


def write(project: Project, *, stop: str = "ValueError('broken')") -> None:
    project.pytester.makeconftest(CONFTEST + FINDINGS)
    project.pytester.makepyfile(test_story=CASES.replace("STOP", stop))


def test_a_study_is_shown_with_its_findings_and_stands_in_every_file(project: Project) -> None:
    write(project)
    shown = project.run("--perf-json=a.json", "-v", passed=3, skipped=1, failed=1)
    table = [
        "study: switches · against switch=base",
        "step[[]…]                     median                  tokens/s  loss   setup",
        "base     20.0 ms                    50.0 k                     nan  250 ms",
        "fast     10.0 ms ×0.50 (0.50…0.50)   100 k ×2.00 (1.99…2.01)  3.25  250 ms",
        "gone     skipped: not on this device",
        "stop     failed: the test failed",
        "4 cases, losses [[]'nan', 3.25[]]",
        "study: others",
    ]
    shown.stdout.fnmatch_lines(table, consecutive=True)
    shown.stdout.fnmatch_lines(["pytest_perf_findings: no findings of study 'others': ValueError: not this one"])
    written = json.loads((project.pytester.path / "a.json").read_text())
    assert written["findings"] == {"switches": ["4 cases, losses ['nan', 3.25]"]}
    base = written["results"][0]
    assert base["outcome"]["facts"] == {"loss": "nan", "setup_s": 0.25}, "what was noted last, in the order of noting"
    assert (base["study"], base["columns"], base["versus"]) == (
        "switches",
        ["median", "tokens/s", "loss", "setup_s"],
        "switch=base",
    )
    told = project.perflab("report", "a.json", "--format=markdown").stdout.str()
    assert "#### study: switches · against switch=base\n\n| `step[…]` | median | tokens/s | loss | setup |" in told
    assert r"- 4 cases, losses \['nan', 3.25\]" in told


def test_a_run_that_is_stopped_has_the_findings_of_what_was_finished(project: Project) -> None:
    write(project, stop="KeyboardInterrupt")
    stopped = project.run("--perf-update", "--perf-json=a.json")
    assert stopped.ret == pytest.ExitCode.INTERRUPTED
    stopped.stdout.fnmatch_lines(["study: switches *", "3 cases, losses *", "1 skipped: * (step[[]gone])"])
    assert list(json.loads((project.pytester.path / "a.json").read_text())["findings"]) == ["switches"]


@pytest.mark.parametrize(
    ("mark", "said", "remedy"),
    [
        ("study=3", "study=...): 3 is not a title", "a title; cases of one title share a table"),
        ("study='s', columns='a,,b'", "columns=...): 'a,,b' is not a comma-separated list*", "what that table *"),
        ("study='s', versus='switch'", "versus=...): 'switch' is not parameter=level", "what its cases are *"),
        ("study='s', versus='swich=base'", "versus='swich=base'): the test has no such parameter", "name *: switch"),
        ("columns='peak'", "columns=...) without a study", "name the study whose table it is for: study='...'"),
    ],
)
def test_marks_that_make_no_table_are_refused_before_anything_runs(
    project: Project, mark: str, said: str, remedy: str
) -> None:
    project.pytester.makepyfile(
        test_story=f"""
import pytest

@pytest.mark.perf({mark})
@pytest.mark.parametrize("switch", ["base"])
def test_step(perf, switch):
    perf(sum, range(100_000))
"""
    )
    project.run(ret=REFUSED).stderr.fnmatch_lines([f"*test_step?base?: @pytest.mark.perf({said}", f"  -> {remedy}"])


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
