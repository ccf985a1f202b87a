"""Runs with hostile names, broken workers and leftovers: they fail as they should, and say what is true."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perflab.base.errors import DeviceError
from perflab.running.case.locks import device_turn
from tests.plugin.conftest import Project, begin_repository, git, run_pytest

HALF = """
import pytest

@pytest.mark.parametrize("value", ["\\udc80x"])
@pytest.mark.perf(study="title \\udcff", columns="mean, odd, quoted", side_by_side="value")
def test_bad(perf, value):
    perf.note(odd="\\udc81")
    perf.quote("source \\udc82", seconds=1e-6)
    perf.work(**{"unit \\udc83": 3})
    perf(sum, range(1000))
    assert not value
"""


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_text_that_utf8_cannot_hold_is_written_escaped_and_the_test_fails(
    pytester: pytest.Pytester, python: str, workers: str
) -> None:
    pytester.makepyfile(HALF)
    result = run_pytest(pytester, python, workers, "--perf", "--perf-budget=1", "--perf-json=perf.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1)
    (one,) = json.loads((pytester.path / "perf.json").read_bytes())["results"]
    assert one["study"] == r"title \udcff"
    (journal,) = (pytester.path / ".perflab" / "runs").glob("*.jsonl")
    assert json.loads(journal.read_bytes())["study"] == r"title \udcff"


def test_a_test_file_whose_name_is_not_utf8_is_refused_by_name_before_anything_runs(pytester: pytest.Pytester) -> None:
    try:
        (pytester.path / "test_\udc80.py").write_text("def test_x(perf):\n    assert False\n")
    except (OSError, UnicodeError):
        pytest.skip("this file system takes names that are text alone")
    # pytest shows such a name as it is, so that what is printed is no text; its cache cannot hold it
    command = [sys.executable, "-m", "pytest", "-p", "perflab.plugin", "-p", "no:cacheprovider", "--perf"]
    run = subprocess.run(command, cwd=pytester.path, capture_output=True, check=False)
    assert run.returncode == pytest.ExitCode.USAGE_ERROR, run.stdout
    assert rb"test_\udc80.py::test_x: the name of its file is not UTF-8" in run.stderr
    assert b"-> rename the file" in run.stderr


def test_a_folder_for_temporary_files_whose_name_is_not_utf8_is_refused_before_anything_runs(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project.pytester.path / "tmp_\udcff"
    try:
        folder.mkdir()
    except (OSError, UnicodeError):
        pytest.skip("this file system takes names that are text alone")
    monkeypatch.setenv("TMPDIR", str(folder))
    result = project.pytest("--perf-update", ret=pytest.ExitCode.USAGE_ERROR)
    result.stderr.fnmatch_lines(
        [r"*tmp_\udcff: the name of the folder for temporary files is not UTF-8", "  -> set TMPDIR to another folder"]
    )
    project.pytest("-m", "not perf", deselected=1)


LEAVES_NO_FILES = """
import resource

def test_before(perf):
    perf(sum, range(1000))

def test_lowers(perf):
    perf(sum, range(1000))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (6, HARD))

def test_after(perf):
    perf(sum, range(1000))
"""


def test_a_lowered_limit_of_open_files_is_put_back_and_named(pytester: pytest.Pytester, python: str) -> None:
    pytester.makepyfile(LEAVES_NO_FILES.replace("HARD", "hard"))
    result = run_pytest(pytester, python, "--perf-budget=0.1", "--perf-json=perf.json", passed=3, warnings=1)
    result.stdout.fnmatch_lines(["*test_lowers left the limit of open files (RLIMIT_NOFILE) at 6, and it was put *"])
    assert len(json.loads((pytester.path / "perf.json").read_bytes())["results"]) == 3


def test_where_it_cannot_be_put_back_the_run_ends_and_says_where_its_results_are(
    pytester: pytest.Pytester, python: str
) -> None:
    """As for any user but root, and for root in many containers."""
    pytester.makepyfile(LEAVES_NO_FILES.replace("HARD", "6"))
    pytester.makeconftest(
        "import resource\n"
        "lower = resource.setrlimit\n"
        "def setrlimit(what, limits):\n"
        "    if limits[1] > resource.getrlimit(what)[1]:\n"
        "        raise ValueError('not allowed to raise maximum limit')\n"
        "    lower(what, limits)\n"
        "resource.setrlimit = setrlimit\n"
    )
    result = run_pytest(pytester, python, "--perf-budget=0.1", "--perf-json=perf.json")
    assert result.ret not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    result.stdout.fnmatch_lines(
        [
            "perf: nothing could be saved: Too many open files",
            "the results are in .perflab/runs/*.jsonl",
            "*test_lowers left the limit of open files (RLIMIT_NOFILE) at 6 for good, so nothing more *",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stderr.no_fnmatch_line("*Traceback*")
    (journal,) = (pytester.path / ".perflab" / "runs").glob("*.jsonl")
    assert "test_before" in journal.read_text()


def test_a_run_whose_worker_broke_is_no_success(pytester: pytest.Pytester, python: str) -> None:
    pytester.makeconftest(
        "import pytest\n"
        "def pytest_runtest_logreport(report):\n"
        "    if report.when == 'call' and hasattr(pytest, 'in_a_worker'):\n"
        "        raise OSError('the worker breaks')\n"
        "def pytest_configure(config):\n"
        "    if hasattr(config, 'workerinput'):\n"
        "        pytest.in_a_worker = True\n"
    )
    pytester.makepyfile("def test_x():\n    assert False\n")
    result = run_pytest(pytester, python, "-n2")
    assert result.ret not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    result.stdout.fnmatch_lines(["*the worker breaks*", "*a worker stopped with an internal error: tests are missing*"])


# --- what stays behind -------------------------------------------------------------------------------------------


def test_the_folder_is_kept_out_of_commits_again_after_its_gitignore_was_lost(project: Project) -> None:
    begin_repository(project)
    (project.pytester.path / ".gitignore").write_text("__pycache__/\n/stdout\n/stderr\n/runpytest-*\n")
    git(project, "commit", "--quiet", "--all", "--message", "ignore less")
    folder = project.pytester.path / ".perflab"
    for damage in (lambda: None, (folder / ".gitignore").unlink, lambda: (folder / ".gitignore").write_text("")):
        damage()
        project.run()
        assert git(project, "status", "--porcelain") == ""


def test_the_journal_of_a_running_session_outlives_twenty_others(project: Project) -> None:
    from perflab.base.files import try_lock

    runs = project.pytester.path / ".perflab" / "runs"
    runs.mkdir(parents=True)
    for number in range(25):
        (runs / f"2020-01-01T00-00-{number:02}-000000.jsonl").write_text("{}\n")
    running = runs / "2020-01-01T00-00-00-000000.jsonl"
    handle = os.open(running, os.O_RDWR)
    assert try_lock(handle)
    project.run()
    os.close(handle)
    left = sorted(path.name for path in runs.iterdir())
    assert running.name in left
    assert len(left) == 21


@pytest.mark.parametrize("in_the_way", ["nothing", "journal"])
def test_where_results_stand_is_said_only_if_they_stand_there(project: Project, in_the_way: str) -> None:
    if in_the_way == "journal":
        (project.pytester.path / ".perflab").mkdir()
        (project.pytester.path / ".perflab" / "runs").write_text("a file")
    (project.pytester.path / "perf.json").mkdir()
    result = project.run("--perf-json=perf.json")
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    said = result.stdout.str()
    assert "cannot write perf.json" in said or "cannot write" in said
    stands = "the results are in .perflab/runs/"
    assert (stands in said) == (in_the_way == "nothing")
    if in_the_way == "nothing":
        place = said[said.index(stands) + len("the results are in ") :].split()[0]
        assert (project.pytester.path / place).stat().st_size > 0


def test_a_directory_in_the_place_of_a_devices_lock_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with device_turn("cpu", pytest.fail):
        (lock,) = tmp_path.glob("*.lock")
    lock.unlink(missing_ok=True)
    lock.mkdir()
    with pytest.raises(DeviceError) as caught, device_turn("cpu", pytest.fail):
        pass
    assert f"cannot take the device lock of cpu: {lock}: " in str(caught.value)
    assert "remove what stands at that path" in caught.value.remedy
