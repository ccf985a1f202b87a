"""What a run leaves for reports: a results file that knows its commit, and a journal that is read like one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perflab.cli import main
from perflab.history.results_files import read_folder
from perflab.results.documents import read_journal
from tests.plugin.conftest import Project, begin_repository, git


def commit_of(project: Project) -> str | None:
    """What the results file of one more run says."""
    project.run("--perf-json=results.json")
    found: str | None = json.loads((project.pytester.path / "results.json").read_text()).get("commit")
    return found


def test_a_results_file_has_the_commit_and_says_whether_files_differed(project: Project) -> None:
    assert commit_of(project) is None  # no repository
    begin_repository(project)
    head = git(project, "rev-parse", "HEAD").strip()
    (project.pytester.path / "results.json").unlink()
    git(project, "rm", "--quiet", "--cached", "results.json")
    git(project, "commit", "--quiet", "--amend", "--message", "without results")
    head = git(project, "rev-parse", "HEAD").strip()
    assert commit_of(project) == head
    assert commit_of(project) == head  # the file of the run before makes no difference
    project.run("--perf-update")
    assert commit_of(project) == head  # nor do baselines
    project.cost(ms=101)
    assert commit_of(project) == f"{head}+dirty"


def test_the_journal_of_a_run_is_reported_like_its_results(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.run("--perf-json=results.json")
    capsys.readouterr()
    (journal,) = (project.pytester.path / ".perflab" / "runs").glob("*.jsonl")
    told = []
    for path in (Path("results.json"), journal):
        assert main(["report", str(path), "--format=json"]) == 0
        (run,) = json.loads(capsys.readouterr().out)["runs"]
        told.append(run)
    assert told[0]["cases"] == told[1]["cases"]
    assert (told[0]["complete"], told[1]["complete"]) == (True, False)
    with journal.open("ab") as file:
        file.write(b'{"case": "test_story.py::te')  # killed while it wrote
    assert main(["report", str(journal)]) == 0
    assert "half-written" in capsys.readouterr().out


def test_the_journal_of_a_run_knows_its_commit_and_is_the_same_run_as_its_results(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    begin_repository(project)
    head = git(project, "rev-parse", "HEAD").strip()
    project.run()
    (journal,) = (project.pytester.path / ".perflab" / "runs").glob("*.jsonl")
    found, _ = read_journal(journal)
    assert (found.commit, found.results[0].commit) == (head, None)
    history = read_folder(journal.parent)
    assert [run.commit for run in history.runs] == [head]
    project.run("--perf-json=.perflab/runs/results.json")
    history = read_folder(journal.parent)
    history.finish()
    assert (len(history.runs), history.repeated) == (2, 1)


def test_a_page_and_a_comparison_need_nothing_but_the_files(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.run("--perf-json=a.json")
    project.cost(ms=130)
    project.run("--perf-json=b.json", "--perf-check=off")
    capsys.readouterr()
    assert main(["compare", "a.json", "b.json"]) == 0
    assert "130 ms +30.0%" in capsys.readouterr().out
    assert main(["report", "a.json", "b.json", "--format=html", "--output=page.html"]) == 0
    assert capsys.readouterr().out == "wrote page.html\n"
    page = Path("page.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "+30.0%" in page
