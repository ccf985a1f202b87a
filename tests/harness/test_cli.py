"""The command line: what it says, what it leaves behind, and how it exits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from perflab.cli import build_parser
from perflab.report.summary import summary
from perflab.results.documents import read_document, read_journal, write_document
from perflab.results.records import Judgement, Verdict
from perflab.results.result import Result
from tests.harness.command import Command
from tests.harness.make import cuda_environment, document, predicted_result, record, result

BROKEN = Result(case="t.py::test_b", judgement=Judgement(verdict=Verdict.FAILED), failure="wrong")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_document(document(result("t.py::test_a")), Path("a.json"))
    write_document(document(BROKEN, exitstatus=1), Path("b.json"))
    return tmp_path


def test_report_shows_what_the_run_showed(command: Command) -> None:
    shown = command("report", "a.json")
    assert shown.splitlines() == [line.text for line in summary(document(result("t.py::test_a")))]
    assert shown.splitlines()[-1] == "1 ok"


def test_report_of_a_run_without_baselines_names_none(command: Command, snapshot: SnapshotAssertion) -> None:
    new = result("t.py::test_a", Verdict.NEW)
    write_document(document(new, baselines=None, preface=["against main"]), Path("a.json"))
    assert command("report", "a.json") == snapshot


def test_merge_shows_the_whole_writes_it_and_exits_as_the_run_would(here: Path, command: Command) -> None:
    assert command("merge", "a.json", "b.json", status=1).splitlines()[-2:] == ["wrote merged.json", "1 ok · 1 failed"]
    assert [row.case for row in read_document(here / "merged.json").results] == ["t.py::test_a", "t.py::test_b"]
    command("merge", "a.json", "--output", "out/one.json")
    assert read_document(here / "out/one.json") == document(result("t.py::test_a"), collected=["t.py::test_a"])


def test_merge_says_which_part_ended_early(command: Command, snapshot: SnapshotAssertion) -> None:
    write_document(document(result("t.py::test_c"), exitstatus=3), Path("c.json"))
    assert command("merge", "a.json", "c.json", status=1) == snapshot


def test_merge_shows_each_environment_and_says_what_does_not_count(
    command: Command, snapshot: SnapshotAssertion
) -> None:
    on_gpu = record(environment=cuda_environment())
    write_document(document(result("t.py::test_c", outcome=on_gpu)), Path("gpu.json"))
    assert command("merge", "a.json", "gpu.json") == snapshot
    write_document(document(result("t.py::test_a", outcome=on_gpu)), Path("gpu.json"))
    assert command("merge", "a.json", "gpu.json") == snapshot


def test_report_of_chosen_cases_is_that_of_a_run_which_had_no_others(
    command: Command, snapshot: SnapshotAssertion
) -> None:
    ok, predicted = result("t.py::test_a[x]"), predicted_result(case="t.py::test_c[x]")
    write_document(document(ok, predicted, BROKEN, exitstatus=1, other_failures=["t.py::test_z"]), Path("c.json"))
    chosen = command("report", "c.json", "--case=[x]")
    assert chosen.splitlines() == [line.text for line in summary(document(ok, predicted))]
    assert "saved for backward" in chosen, "its only prediction stands in full"
    assert command("report", "c.json", "--case=test_a", "--format=markdown").startswith("### perflab: 1 ok\n")
    assert command("report", "c.json", "--case=nothing", status=2) == snapshot


def test_what_cannot_be_used_exits_with_2_and_says_why(
    here: Path, command: Command, snapshot: SnapshotAssertion
) -> None:
    for name in ("pipe.json", "pipe.jsonl", "pipe.sqlite"):
        os.mkfifo(name)
    deep = "[" * 200_000
    Path("deep.json").write_text(deep)
    Path("deep.jsonl").write_text(f"\n{deep}\n")
    asked = ["report none.json", "merge a.json none.json", "merge a.json --output a.json/x", "report pipe.json"]
    asked += ["report pipe.jsonl", "merge /dev/zero", "nsys pipe.sqlite", "report deep.json", "report deep.jsonl"]
    asked += ["merge --baselines x", "merge --baselines x --output y"]
    said = {one: re.sub("maximum recursion.*", "too deep", command(*one.split(), status=2)) for one in asked}
    assert said == snapshot
    assert not (here / "merged.json").exists()


@pytest.mark.parametrize("far", [253_402_300_800, 2**62])
def test_a_journal_of_a_year_that_no_date_has_is_read(far: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems keep such times, and others cut them: so the file's status says it here."""
    Path("run.jsonl").write_bytes(b"")
    status = os.stat_result([*os.stat("run.jsonl")[:8], far, far])
    monkeypatch.setattr(Path, "stat", lambda _path, **_: status)
    assert read_journal(Path("run.jsonl"))[0].created.year == 9999


def test_ctrl_c_while_the_command_loads_ends_it_with_one_line() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    program = (
        "import os, pkgutil, signal, sys\n"
        "class PressCtrlC:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'perflab.results.documents':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, PressCtrlC())\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"sys.exit(pkgutil.resolve_name({project['project']['scripts']['perflab']!r})())\n"
    )
    done = subprocess.run([sys.executable, "-c", program, "report", "a.json"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "perflab: interrupted\n")


@pytest.mark.parametrize("arguments", [[], ["merge"], ["report"], ["nonsense"], ["report", "a.json", "--format=pdf"]])
def test_a_command_line_that_makes_no_sense_exits_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        build_parser().parse_args(arguments)
    assert caught.value.code == 2


def test_it_also_runs_as_a_module_and_loads_no_torch() -> None:
    program = (
        "import runpy, sys; sys.argv = ['perflab', 'report', 'a.json']\n"
        "try:\n    runpy.run_module('perflab', run_name='__main__')\n"
        "except SystemExit as end:\n    print(end.code, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["1 ok", "0 False"]
