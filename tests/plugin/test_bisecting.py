"""``perflab history --bisect`` from outside: a small project whose cost changes in one of several commits."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from perflab.cli import main
from perflab.history.bisect import run
from perflab.history.bisect.run import PLACE, State
from tests.harness.histories import write_runs
from tests.harness.test_processes import gone_within
from tests.plugin.conftest import Project, begin_repository, commit, git, worktrees

NAME = "test_story.py::test_work"
CASE = """
from pathlib import Path

import torch
from conftest import Virtual

here = Path(__file__).parent

def work(x):
    import engine
    Virtual.now_ns += round(1_000_000 * engine.COST_MS)
    for _ in range(engine.OPERATORS):
        x = x + 1
    return x

def test_work(perf):
    assert perf(work, torch.zeros(4)) is not None
"""


def engine(project: Project, cost_ms: float, operators: int, text: str = "") -> None:
    (project.pytester.path / "engine.py").write_text(f"COST_MS = {cost_ms}\nOPERATORS = {operators}\n{text}")


@pytest.fixture
def repository(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project of one commit, in whose folder we are."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "executable", project.python)
    monkeypatch.chdir(project.pytester.path)
    project.test_file.write_text(CASE)
    engine(project, 100, 3)
    begin_repository(project)
    git(project, "tag", "good")
    return project


def develop(project: Project, *, costly: int, broken: int | None = None, commits: int = 6) -> None:
    """More commits: from one of them on the case costs more, and at one it cannot be imported."""
    for number in range(1, commits + 1):
        cost_ms, operators = (108, 4) if number >= costly else (100, 3)
        engine(project, cost_ms, operators, "import missing_module\n" if number == broken else "")
        (project.pytester.path / "notes.txt").write_text(str(number))
        commit(project, "cost more" if number == costly else f"change {number}")


def without_commits(text: str) -> str:
    """A text whose commits are the same in every run."""
    return re.sub(r"\b[0-9a-f]{7}\b", "COMMIT", text)


def ask(*arguments: str) -> list[str]:
    return ["history", f"--bisect={NAME}", "--good=good", "--bad=HEAD", *arguments]


def test_a_count_is_bisected_without_timing_and_what_was_tried_is_not_tried_again(
    repository: Project, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    develop(repository, costly=4)
    assert main(ask("--quantity=operators")) == 0
    output, progress = capsys.readouterr()
    assert without_commits(output) == snapshot
    assert "comparing the ends" in progress
    assert worktrees(repository) <= 3, "no more worktrees than the cache keeps"

    assert main(ask("--quantity=operators")) == 0
    again, progress = capsys.readouterr()
    assert again == output
    assert "trying" not in progress
    assert "resumed: " in progress


def test_the_range_is_that_of_the_cases_newest_event_and_a_part_of_its_name_is_enough(
    repository: Project, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    develop(repository, costly=3)
    commits = git(repository, "rev-list", "--reverse", "HEAD").split()
    nights = [commits[1]] * 3 + [commits[4]] * 3
    write_runs(
        repository.pytester.path / ".perflab/nights",
        6,
        {NAME: lambda run: {"operators": 4 if run >= 3 else 3}, f"{NAME}_else": lambda run: {"operators": 9}},
        commits=nights.__getitem__,
    )
    assert main(["history", ".perflab/nights", "--bisect=story"]) == 2
    problems = capsys.readouterr().err
    assert main(["history", ".perflab/nights", f"--bisect={NAME}_else"]) == 2
    assert problems + capsys.readouterr().err == snapshot(name="refused")
    assert main(["history", ".perflab/nights", f"--bisect={NAME}"]) == 0
    output, progress = capsys.readouterr()
    assert f"event 1: operators of {NAME}" in progress
    assert f"{commits[1][:7]}..{commits[4][:7]}" in output
    assert without_commits(output) == snapshot(name="found")


def test_a_commit_at_which_the_case_does_not_run_is_skipped_and_the_answer_names_what_is_left(
    repository: Project, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    develop(repository, costly=4, broken=3)
    assert main(ask("--quantity=operators")) == 1
    assert without_commits(capsys.readouterr().out) == snapshot


def test_a_time_is_bisected_in_turns_and_an_interrupted_search_resumes(
    repository: Project,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    develop(repository, costly=1, commits=2)
    keep = run.keep

    def keep_and_stop(state: State, root: Path) -> None:
        keep(state, root)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(run, "keep", keep_and_stop)
        with pytest.raises(KeyboardInterrupt):
            main(ask())
    capsys.readouterr()
    assert json.loads((repository.pytester.path / PLACE).read_text())["ends"].startswith("latency +8.0% (+7")
    assert main(ask()) == 0
    output, progress = capsys.readouterr()
    assert "comparing the ends" not in progress
    assert without_commits(output) == snapshot


def test_a_step_inside_the_noise_stops_the_search(
    repository: Project, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    develop(repository, costly=3, commits=2)
    assert main(ask()) == 1
    assert without_commits(capsys.readouterr().out) == snapshot


def test_a_quantity_that_varies_blames_no_commit_by_single_readings(
    repository: Project, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    for number in range(1, 5):
        engine(repository, 100 + number / 100, 3, f"# a comment {number}\n")  # as much as two readings of one code
        commit(repository, f"comment {number}")
    assert main(ask("--quantity=fastest")) == 2
    output, problem = capsys.readouterr()
    assert output == ""
    assert without_commits("".join(problem.partition("perflab history")[1:])) == snapshot


def test_values_are_told_with_their_unit(repository: Project, capsys: pytest.CaptureFixture[str]) -> None:
    commit(repository, "larger", CASE.replace("torch.zeros(4)", "torch.zeros(4096)"))
    assert main(ask("--quantity=peak")) == 0
    assert re.search(r": peak [\d.,]+ B -> [\d.]+ KiB$", capsys.readouterr().out.splitlines()[0])


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone ends a process with its parent")
@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGKILL])
def test_a_bisection_that_is_ended_takes_its_processes_and_their_folders_along(
    repository: Project, tmp_path: Path, ended_by: signal.Signals
) -> None:
    begun = tmp_path / "begun"
    engine(repository, 100, 3, f"import time\nopen({str(begun)!r}, 'w').close()\ntime.sleep(600)\n")
    commit(repository, "hangs")
    python = str(Path(sys.prefix) / "bin" / "python")  # no warm one, whose processes are another's children
    running = subprocess.Popen([python, "-m", "perflab", *ask()], stderr=subprocess.DEVNULL)
    ends = time.monotonic() + 120
    while not begun.exists():
        assert time.monotonic() < ends
        assert running.poll() is None
        time.sleep(0.05)
    processes = [
        int(place.name)
        for place in Path("/proc").glob("[0-9]*")
        if f"TMPDIR={tmp_path}\0".encode() in environment_of(place)
    ]
    assert len(processes) >= 3, "its own, pytest's, and the ancestor of the sides"
    assert len(list(tmp_path.glob(".perflab.*"))) == 2, "the results of pytest, and the jobs of the sides"
    running.send_signal(ended_by)
    assert running.wait(60) == (130 if ended_by == signal.SIGTERM else -signal.SIGKILL)
    assert all(gone_within(30.0, process) for process in processes)
    if ended_by == signal.SIGTERM:
        assert list(tmp_path.glob(".perflab.*")) == []


def environment_of(place: Path) -> bytes:
    """The variables that a process was started with."""
    try:
        return (place / "environ").read_bytes()
    except OSError:
        return b""
