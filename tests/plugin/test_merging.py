"""One truth, however it was run: by workers, in shards, in several goes, with tests that are run again."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from perflab.cli import main
from tests.plugin.conftest import A_DAY_MS, Project

SUITE = """
import os
from pathlib import Path

import pytest
from conftest import Virtual

here = Path(__file__).parent

def spend(ms):
    Virtual.now_ns += 1_000_000 * ms
    return ms

def test_first(perf):
    perf(spend, 100)

@pytest.mark.parametrize("size", [1, 2])
def test_second(perf, size):
    if (here / f"broken{size}").exists():
        assert perf(spend, 40 * size) == 0, "came out wrong"
    perf(spend, 40 * size)

def test_third(perf):
    if (here / "deadly").exists():
        os._exit(1)
    perf(spend, 70)

def test_fourth(perf):
    perf(spend, 90)
"""

OTHER = """
from test_story import spend

def test_elsewhere(perf):
    perf(spend, 10)
"""

FIRST_TRY_FAILS = """
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if any(report.failed for report in reports):
        for report in reports:
            report.outcome = "rerun" if report.failed else report.outcome
            item.ihook.pytest_runtest_logreport(report=report)
        for broken in Path(item.path).parent.glob("broken*"):
            broken.unlink()
        item._initrequest()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True

def pytest_report_teststatus(report):
    if report.outcome == "rerun":
        return "rerun", "R", "RERUN"
"""


class Suite:
    """Six cases in two files; a case is broken, or deadly, while a file says so."""

    def __init__(self, project: Project, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = project.pytester.path
        self._project = project
        self._capsys = capsys
        project.test_file.write_text(SUITE)
        (self.path / "test_a_other.py").write_text(OTHER)

    def run(self, *args: str, json: str = "perf.json", **outcomes: int) -> pytest.RunResult:
        """A run on a machine that has run nothing before: else the second would compare its times with the first."""
        shutil.rmtree(self.path / ".perflab" / "times", ignore_errors=True)
        return self._project.run(f"--perf-json={json}", *args, **outcomes)

    def perflab(self, *arguments: str) -> tuple[int, str, str]:
        """Exit status, standard output and errors of the command."""
        self._capsys.readouterr()
        status = main(arguments)
        return status, *self._capsys.readouterr()


@pytest.fixture
def suite(project: Project, capsys: pytest.CaptureFixture[str]) -> Suite:
    return Suite(project, capsys)


def shown(text: str) -> list[str]:
    """The lines from the environment to the tally, without what was written where."""
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("cpu: ")]
    ends = [number for number, line in enumerate(lines) if " new" in line and line[0].isdigit()]
    written = ("wrote ", "saved ", "kept the times ", "  this is a container, or has no")
    return [line for line in lines[starts[0] : ends[-1] + 1] if not line.startswith(written)]


def recorded(case: dict[str, Any]) -> str:
    """When a case of a baseline file was saved: its times, or what it needs on the one machine that there is."""
    (needs,) = case.get("needs", {"": case}).values()
    return str(needs["recorded"])


def told(path: Path) -> list[dict[str, Any]]:
    """What a results file says of each case, without what differs from process to process."""
    rows = []
    for row in json.loads(path.read_text())["results"]:
        record = row.get("outcome") or {}
        summary = record.get("summary") or {}
        rows.append(
            {
                "case": row["case"],
                "verdict": row["judgement"]["verdict"],
                "median_ns": summary.get("median_ns"),
                "parameters": record.get("parameters"),
                "failed": "came out wrong" in (row.get("failure") or ""),
            }
        )
    return rows


def test_workers_and_shards_show_write_and_exit_as_one_process_does(suite: Suite) -> None:
    (suite.path / "broken2").touch()
    one = suite.run(json="one.json")
    assert one.ret == 1
    wanted = shown(one.stdout.str())
    assert [line.split()[0] for line in wanted if " ms " in line] == [
        *("elsewhere", "first", "second[1]", "third", "fourth")
    ]

    workers = suite.run("-n2", "-p", "xdist.plugin", json="workers.json")
    assert workers.ret == 1
    assert shown(workers.stdout.str()) == wanted
    assert told(suite.path / "workers.json") == told(suite.path / "one.json")

    assert suite.run("-k", "second or third", json="b.json").ret == 1
    assert suite.run("-k", "not second and not third", json="a.json").ret == 0
    status, text, _ = suite.perflab("merge", "a.json", "b.json", "--output", "merged.json")
    assert status == 1
    assert shown(text) == wanted
    assert told(suite.path / "merged.json") == told(suite.path / "one.json")

    status, text, _ = suite.perflab("report", "merged.json")
    assert status == 0
    assert shown(text) == wanted


def test_a_second_go_at_what_failed_makes_the_whole_run_good(suite: Suite) -> None:
    (suite.path / "pytest.ini").write_text("[pytest]\naddopts = -p perflab.plugin\n")
    (suite.path / "broken1").touch()
    assert suite.run(json="first.json").ret == 1
    (suite.path / "broken1").unlink()
    again = suite.run("--lf", json="again.json")
    assert again.ret == 0
    assert again.parseoutcomes()["passed"] == 1
    assert suite.run(json="whole.json").ret == 0

    for order in (["first.json", "again.json"], ["again.json", "first.json"]):
        assert suite.perflab("merge", *order)[0] == 0
        assert sorted(map(str, told(suite.path / "merged.json"))) == sorted(map(str, told(suite.path / "whole.json")))
    assert suite.perflab("merge", "first.json", "again.json")[0] == 0
    assert told(suite.path / "merged.json") == told(suite.path / "whole.json")


@pytest.mark.parametrize("workers", [[], ["-n2", "-p", "xdist.plugin"]])
def test_of_a_test_that_is_run_again_the_last_try_counts(suite: Suite, workers: list[str]) -> None:
    (suite.path / "again.py").write_text(FIRST_TRY_FAILS)
    (suite.path / "broken1").touch()
    result = suite.run("-p", "again", "--perf-update", "--perf-replicates=1", *workers)
    assert result.ret == 0
    assert result.parseoutcomes() == {"passed": 6, "rerun": 1}
    result.stdout.re_match_lines([r"second\[1\] .* 40\.0 ms .* new, saved", r"saved 6 baselines.*", r"6 new"])
    result.stdout.no_fnmatch_line("*failed*")
    assert [row["verdict"] for row in told(suite.path / "perf.json")] == ["new"] * 6
    assert suite.perflab("report", "perf.json")[0] == 0


def test_what_was_measured_by_a_try_that_was_not_the_last_is_neither_shown_nor_saved(suite: Suite) -> None:
    (suite.path / "again.py").write_text(FIRST_TRY_FAILS)
    source = """
from pathlib import Path
import pytest
from conftest import Virtual

@pytest.fixture
def second_try_has_no_room():
    if Path("seen").exists():
        raise RuntimeError("no room")
    yield
    Path("seen").touch()
    raise RuntimeError("the first try leaves badly")

def test_it(perf, second_try_has_no_room):
    def spend():
        Virtual.now_ns += 50_000_000
    perf(spend)
"""
    (suite.path / "test_story.py").write_text(source)
    (suite.path / "test_a_other.py").unlink()
    result = suite.run("-p", "again", "--perf-update", "--perf-replicates=1")
    assert result.ret == 1
    result.stdout.re_match_lines([r"it .* FAILED", r"\s+set-up failed", "1 failed"])
    assert not (suite.path / "baselines").exists() or not list((suite.path / "baselines").glob("*/*"))
    (row,) = told(suite.path / "perf.json")
    assert (row["verdict"], row["median_ns"]) == ("failed", None)


def test_a_case_that_takes_its_worker_down_has_failed(suite: Suite) -> None:
    (suite.path / "deadly").touch()
    (suite.path / "test_plain.py").write_text("import os\ndef test_plain():\n    os._exit(1)\n")
    result = suite.run("-n2", "-p", "xdist.plugin", "-m", "")
    assert result.ret == 1
    result.stdout.re_match_lines([r"third .* FAILED", r"\s+its worker process crashed", r"fourth .* new"])
    result.stdout.re_match_lines([r"5 new · 1 failed.*"])
    result.stdout.no_re_match_line("plain .* FAILED")
    document = json.loads((suite.path / "perf.json").read_text())
    (third,) = [row for row in document["results"] if row["case"].endswith("::test_third")]
    assert "crashed while running 'test_story.py::test_third'" in third["failure"]
    assert document["other_failures"] == ["test_plain.py::test_plain"]
    assert [row["case"] for row in document["results"]] == document["collected"]

    _, text, _ = suite.perflab("report", "perf.json")
    assert "other tests failed: test_plain.py::test_plain\n" in text


def test_cases_that_x_did_not_reach_are_missing_until_they_have_run_and_deselected_ones_never(suite: Suite) -> None:
    (suite.path / "broken1").touch()
    assert suite.run("-k", "second", json="selected.json").ret == 1
    assert suite.run("-x", "-k", "second or third", json="stopped.json").ret == 1
    (suite.path / "broken1").unlink()
    assert suite.run("-k", "second", json="again.json").ret == 0
    assert suite.perflab("merge", "selected.json", "again.json")[0] == 0
    status, text, _ = suite.perflab("merge", "stopped.json", "again.json")
    assert status == 1
    assert "the run stopped before 1 case, not run: test_story.py::test_third\n" in text
    assert suite.run("-k", "third", json="rest.json").ret == 0
    assert suite.perflab("merge", "stopped.json", "again.json", "rest.json")[0] == 0


def test_an_update_in_shards_joins_to_the_files_of_one_update(suite: Suite) -> None:
    update = ("--perf-update", "--perf-replicates=1")
    assert suite.run(*update, "--perf-baselines=old").ret == 0
    for file in (suite.path / "old").glob("*/*.json"):  # dates have seconds, and that run may have been this second
        file.write_text(re.sub(r'("recorded": "20)\d\d', r"\g<1>20", file.read_text()))
    for shard, chosen in {"one": "second or third", "two": "not second and not third"}.items():
        shutil.copytree(suite.path / "old", suite.path / shard)  # its checkout
        assert suite.run(*update, f"--perf-baselines={shard}", "-k", chosen).ret == 0
    status, text, _ = suite.perflab("merge", "--baselines", "one", "two", "--output", "baselines")
    assert status == 0
    assert "joined 6 baselines" in text
    files = {file.relative_to(suite.path / "old") for file in (suite.path / "old").glob("*/*.json")}
    assert {file.relative_to(suite.path / "baselines") for file in (suite.path / "baselines").glob("*/*.json")} == files
    for file in files:
        cases, old = (json.loads((suite.path / place / file).read_text())["cases"] for place in ("baselines", "old"))
        assert list(cases) == list(old)
        assert all(recorded(case) > recorded(old[name]) for name, case in cases.items())
    compared = suite.run("--perf-check=strict")
    assert compared.ret == 0
    compared.stdout.fnmatch_lines(["6 ok"])


def test_a_part_without_results_is_written_when_asked_for_and_says_why(suite: Suite) -> None:
    assert suite.run("-k", "first", json="good.json").ret == 0
    assert suite.run("-k", "nothing_is_called_so", json="empty.json").ret == pytest.ExitCode.NO_TESTS_COLLECTED
    status, text, _ = suite.perflab("merge", "good.json", "empty.json")
    assert (status, text.splitlines()[-1].split("  ")[0]) == (0, "1 new")
    assert suite.perflab("report", "empty.json")[1] == "no perf case ran\n"

    (suite.path / "test_broken.py").write_text("import not_there\n")
    assert suite.run(json="broken.json").ret == pytest.ExitCode.INTERRUPTED
    status, text, _ = suite.perflab("merge", "good.json", "broken.json")
    assert status == 1
    assert "broken.json: the run was interrupted (exit status 2): cases may be missing" in text
    assert "other tests failed: test_broken.py" in text


def test_an_ini_key_alone_writes_no_empty_file_over_the_last_results(suite: Suite) -> None:
    (suite.path / "pytest.ini").write_text("[pytest]\naddopts = -p perflab.plugin\nperf_json = perf.json\n")
    (suite.path / "perf.json").write_text("the last results")
    suite._project.run("-k", "nothing_is_called_so")
    assert (suite.path / "perf.json").read_text() == "the last results"


def test_what_a_regressed_case_said_stands_in_the_report(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.cost(ms=A_DAY_MS)
    project.save("--perf-replicates=1")
    project.cost(ms=A_DAY_MS, kib=513)
    failing = project.run(
        "--perf-total-budget=1h", "--perf-json=perf.json", failed=1
    )  # memory is exact: no second look
    capsys.readouterr()
    assert main(["report", "perf.json", "--format=markdown"]) == 0
    text = capsys.readouterr().out
    assert "### perflab: 1 regressed\n" in text
    assert "| **REGRESSED**<br>peak memory +1.00 KiB<br>" in text
    assert "the run's 60.0 min were over before it could be measured again" in text
    said = text.split("```text\n")[1].split("\n```")[0]
    assert said.startswith("work needs more memory than its baseline\n")
    assert said in failing.stdout.str()
    assert main(["merge", "perf.json"]) == 1
