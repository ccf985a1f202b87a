"""The workflows in docs/ that users copy: GitHub takes them, their commands run, and a gate that fails is seen."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from perflab.cli import build_parser
from perflab.options import OPTIONS
from perflab.units import parse_seconds
from tests.plugin.conftest import KERNELS
from tests.plugin.conftest import git_in as git
from tests.plugin.workflows import DOCS, WORKFLOWS, Runner, commands_of, jobs_of, read_workflow, unknown_names

every_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def accepted_by_github(paths: list[Path]) -> subprocess.CompletedProcess[str]:
    schema = ["--builtin-schema", "vendor.github-workflows"]
    command = [sys.executable, "-m", "check_jsonschema", *schema, *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in jobs_of(read_workflow(path)) for step in job["steps"]]


def commands(path: Path) -> list[str]:
    return [line for step in steps(path) for line in commands_of(step)]


def test_there_are_four_and_the_reference_names_them() -> None:
    reference = (DOCS / "reference.md").read_text(encoding="utf-8")
    assert len(WORKFLOWS) == 4
    assert [path.name for path in WORKFLOWS if f"({path.name})" not in reference] == []


def test_githubs_schema_accepts_each_and_refuses_each_with_a_key_misspelled(tmp_path: Path) -> None:
    good = accepted_by_github(WORKFLOWS)
    assert good.returncode == 0, good.stdout
    misspelled = [tmp_path / path.name for path in WORKFLOWS]
    for path, wrong in zip(WORKFLOWS, misspelled, strict=True):
        wrong.write_text(path.read_text(encoding="utf-8").replace("runs-on:", "run-on:"), encoding="utf-8")
    bad = accepted_by_github(misspelled)
    assert bad.returncode == 1
    assert [path.name for path in misspelled if f"{path}::" not in bad.stdout] == []


@every_workflow
def test_every_option_that_it_gives_exists(path: Path) -> None:
    ours = {option.name for option in OPTIONS}
    words = [shlex.split(line.split(" || ")[0]) for line in commands(path)]
    given = {word.split("=")[0] for line in words if line and line[0] == "pytest" for word in line}
    assert {name for name in given if name.startswith("--perf-")} - ours == set()
    text = "\n".join(commands(path)).replace('"$results"', "results.json").replace('"$REASON"', "why")
    perflab = [shlex.split(found) for found in re.findall(r"\bperflab ((?:report|kernels|history)[^;>\n]*)", text)]
    assert perflab
    assert [build_parser().parse_args(words).command for words in perflab] == [words[0] for words in perflab]


@every_workflow
def test_no_step_may_take_so_long_that_the_job_is_cut_off(path: Path) -> None:
    for job in jobs_of(read_workflow(path)):
        timed = [step["timeout-minutes"] for step in job["steps"] if "timeout-minutes" in step]
        assert sum(timed) < job["timeout-minutes"]
    for step in steps(path):
        if "-m perf" in step.get("run", ""):
            assert "timeout-minutes" in step, step["name"]
            budget = re.findall(r"--perf-total-budget=(\S+)", step["run"]) or ["1s"]
            # A case that hangs as the budget ends is stopped by us, who keep the other cases' numbers.
            silent = re.findall(r"--perf-timeout=(\S+)", step["run"])
            assert parse_seconds(*budget) + parse_seconds(*silent) < 60 * step["timeout-minutes"], step["name"]


@every_workflow
def test_it_pins_the_pytorch_that_this_project_is_tested_with(path: Path) -> None:
    pinned = (DOCS.parent / "constraints.txt").read_text(encoding="utf-8")
    assert f"torch=={read_workflow(path)['env']['TORCH']}\n" in pinned
    assert [line for line in commands(path) if "pip install" in line and "torch==$TORCH" not in line] == []


@every_workflow
def test_it_may_do_no_more_than_it_must_and_takes_actions_by_their_major_version(path: Path) -> None:
    workflow = read_workflow(path)
    for job in jobs_of(workflow):
        lines = [line for step in job["steps"] for line in commands_of(step)]
        uses = {step["uses"].partition("@")[0]: step.get("with", {}) for step in job["steps"] if "uses" in step}
        pushes = any(line.startswith("git push") for line in lines)
        wanted = {"contents": "write" if pushes else "read"} if "actions/checkout" in uses else {}
        wanted |= {"pages": "write", "id-token": "write"} if "actions/deploy-pages" in uses else {}
        wanted |= {"pull-requests": "write"} if any(line.startswith("gh api") for line in lines) else {}
        assert job.get("permissions", workflow["permissions"]) == wanted
        keeps = uses.get("actions/checkout", {}).get("persist-credentials", True)
        assert keeps is pushes or "actions/checkout" not in uses
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert [action for action in used if not re.fullmatch(r"actions/[\w-]+@v\d+", action)] == []


@every_workflow
def test_no_command_is_pasted_together_from_names_that_others_chose(path: Path) -> None:
    assert [line for line in commands(path) if "${{" in line] == []


@every_workflow
def test_every_name_in_an_expression_or_a_command_exists(path: Path, tmp_path: Path) -> None:
    assert unknown_names(read_workflow(path)) == []
    text = path.read_text(encoding="utf-8")
    misspelled = {"id: install": "id: instal", "$TORCH": "$TROCH", " github.": " gihub."}
    for right, wrong in misspelled.items():
        other = tmp_path / "misspelled.yml"
        other.write_text(text.replace(right, wrong), encoding="utf-8")
        assert unknown_names(read_workflow(other)) or right not in text, wrong


@every_workflow
def test_the_file_that_its_cache_depends_on_is_itself(path: Path) -> None:
    said = re.search(r"Copy it to\s+(?:# )?(\S+\.yml)", path.read_text(encoding="utf-8"))
    assert said is not None
    cached = [step["with"]["cache-dependency-path"] for step in steps(path) if "cache" in step.get("with", {})]
    assert set(cached) <= {said[1]}


# --- run ---------------------------------------------------------------------------------------------------------

BLOCKS = """
import torch

def attend(x):
    return torch.tanh(x) * 2
"""
TESTS = """
import torch
from blocks import attend

def test_attend(perf, device):
    perf(attend, torch.ones(256, 256, device=device))
"""
INI = """
[pytest]
pythonpath = .
addopts = -p perflab.plugin -p xdist.plugin
perf_budget = 0.3
# Memory fails the gate here: time could, after as many pairs of processes as a busy machine needs.
perf_against_threshold = 500%
perf_kernels = kernels:EXAMPLES
perf_arch = 80
"""


@pytest.fixture
def runner(tmp_path: Path, python_of_kernels: str, kernels_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """A clone of a repository whose first commit has a case and a kernel, and no correctness tests."""
    origin, clone = tmp_path / "origin.git", tmp_path / "clone"
    git(tmp_path, "init", "--quiet", "--bare", "--initial-branch=main", str(origin))
    git(tmp_path, "clone", "--quiet", str(origin), str(clone))
    git(clone, "switch", "--quiet", "--create", "main")
    files = {"blocks.py": BLOCKS, "test_blocks.py": TESTS, "kernels.py": KERNELS, "pytest.ini": INI}
    for name, text in {
        **files,
        ".gitignore": "__pycache__/\n.pytest_cache/\n.perflab/\n*.json\n!baselines/**\n",
    }.items():
        (clone / name).write_text(text)
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--message=first")
    git(clone, "push", "--quiet", "origin", "main")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(kernels_cache))
    return Runner(clone, tmp_path, python_of_kernels)


def workflow(name: str) -> Path:
    return DOCS / f"github-workflow{name}.yml"


def test_baselines_are_pushed_and_then_a_gate_passes_until_something_needs_more(runner: Runner) -> None:
    runner.run(workflow("-baselines"))
    assert set(runner.outcomes.values()) == {0}, runner.output
    pushed = git(runner.clone, "ls-tree", "-r", "--name-only", "origin/perf-baselines-1", "baselines").split()
    assert {Path(name).parent.name.split("-")[0] for name in pushed} == {"exact", "predicted", "triton"}
    git(runner.clone, "push", "--quiet", "origin", "HEAD:main")

    runner.outcomes.clear()
    runner.run(workflow(""))
    assert set(runner.outcomes.values()) == {0}, runner.output
    assert len(runner.outcomes) == 6
    assert "no tests ran" in runner.output["Correctness"]
    measured, *exact = [line for line in runner.summary.splitlines() if line.startswith("### perflab: ")]
    assert measured.startswith("### perflab: 1 ")
    assert exact == ["### perflab: 1 predicted ok · 0 measured", "### perflab: 1 ok"]

    (runner.clone / "blocks.py").write_text(BLOCKS.replace("torch.tanh(x) * 2", "torch.tanh(x) * 2 + x.exp()"))
    git(runner.clone, "commit", "--quiet", "--all", "--message=more")
    (runner.folder / "summary.md").unlink()
    runner.outcomes.clear()
    runner.run(workflow(""))
    failed = [name for name, status in runner.outcomes.items() if status]
    assert failed == ["Memory and cost on a GPU, predicted", "Performance"], runner.output
    assert len(runner.outcomes) == 6  # the summary among them
    assert "**REGRESSED**" in runner.summary
    assert "1 predicted regressed" in runner.summary
    for words in runner.installed:
        assert words[:3] == ["-m", "pip", "install"]
        wanted = [word for word in words[3:] if not word.startswith(("-", "https://")) and word != "."]
        assert all(Requirement(word).name in ("torch", "perflab") for word in wanted)


def test_the_gate_of_a_runner_with_a_gpu_runs_through_on_what_there_is(runner: Runner) -> None:
    on_cpu = workflow("-gpu").read_text(encoding="utf-8").replace("--perf-device=cuda", "--perf-device=cpu")
    path = runner.folder / "on-cpu.yml"
    path.write_text(on_cpu, encoding="utf-8")
    runner.run(path, The_GPU_is_there="python -c 'import torch; print(torch.cuda.is_available())'")
    assert set(runner.outcomes.values()) == {0}, runner.output
    assert list(runner.outcomes)[-1] == "Summary"
    assert (runner.folder / "path.txt").read_text() == f"{runner.folder}/perf/bin\n"
    assert runner.summary.count("### perflab: ") == 2
    assert [words[3:] for words in runner.installed] == [
        ["--editable", ".", read_workflow(path)["env"]["PERFLAB"], f"torch=={read_workflow(path)['env']['TORCH']}"]
    ]


GH = """#!/usr/bin/env python3
import json, os, sys
from pathlib import Path

kept = Path(__file__).with_name("comments.json")
comments = json.loads(kept.read_text()) if kept.exists() else [{"id": 1, "body": "a person's"}]
words = sys.argv[2:]
if "--jq" in words:
    print("".join(f"{one['id']}\\n" for one in comments if one["body"].startswith(os.environ["MARKER"])), end="")
else:
    body = Path(words[words.index("--field") + 1].partition("@")[2]).read_text()
    place = next(word for word in words if word.startswith("repos/"))
    if words[words.index("--method") + 1] == "POST":
        assert place == "repos/owner/project/issues/7/comments"
        comments.append({"id": len(comments) + 1, "body": body})
    else:
        (one,) = [one for one in comments if place == f"repos/owner/project/issues/comments/{one['id']}"]
        one["body"] = body
    kept.write_text(json.dumps(comments))
"""
"""As far as the workflow uses GitHub's command: comments are listed, added and changed."""


def test_nights_are_kept_on_a_branch_and_their_history_is_a_page(runner: Runner) -> None:
    for _ in range(2):
        runner.run(workflow("-history"))
        assert set(runner.outcomes.values()) == {0}, runner.output
        shutil.rmtree(runner.folder / "kept")  # as a runner empties its temporary folder
        time.sleep(1.1)  # the name of a night's file has its second
    files = git(runner.clone, "ls-tree", "-r", "--name-only", "origin/perf-results").split()
    assert [re.sub(r"\d+", "0", name) for name in files] == ["results/0-0/0-0-0T0Z-0.json"] * 2
    assert "2 runs" in runner.summary
    history = json.loads((runner.folder / "site/history.json").read_text())
    assert [run["commit"] for run in history["runs"]] == [git(runner.clone, "rev-parse", "HEAD").strip()] * 2
    assert "2 runs" in (runner.folder / "site/index.html").read_text()
    assert "attend" in (runner.folder / "site/last.html").read_text()


def test_a_pull_request_has_one_comment_which_is_updated(runner: Runner) -> None:
    (runner.folder / "bin").mkdir()
    (runner.folder / "bin/gh").write_text(GH)
    (runner.folder / "bin/gh").chmod(0o755)
    bodies = []
    for _ in range(2):
        runner.run(workflow("-history"), job=2)
        assert set(runner.outcomes.values()) == {0}, runner.output
        person, ours = json.loads((runner.folder / "bin/comments.json").read_text())
        assert person["body"] == "a person's"
        bodies.append(ours["body"])
        (runner.clone / "notes.md").write_text("a change")
        git(runner.clone, "add", "--all")
        git(runner.clone, "commit", "--quiet", "--message=second")
    assert all(body.startswith("<!-- perflab -->\n") and "attend" in body for body in bodies)
    assert all("(<https://example.org/artifact>)" in body for body in bodies)
    assert all(
        body.endswith("[History of the default branch](https://OWNER.github.io/REPOSITORY/)\n") for body in bodies
    )
    assert "attend" in (runner.clone / "report.html").read_text()
    assert bodies[0] != bodies[1]
