"""The workflows of docs/, run here step by step as a runner of GitHub's would, in a repository of a test's own."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

DOCS = Path(__file__).parents[2] / "docs"
WORKFLOWS = sorted(DOCS.glob("github-workflow*.yml"))


def read_workflow(path: Path) -> dict[str, Any]:
    """A workflow as YAML has it."""
    found: dict[str, Any] = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    return found


def jobs_of(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    """Its jobs: mostly one."""
    return list(workflow["jobs"].values())


def commands_of(step: dict[str, Any]) -> list[str]:
    """The lines that a step has run."""
    return [line.strip() for line in step.get("run", "").splitlines()]


_GIVEN = {"github", "runner", "job"}
_STATES = {"always", "cancelled", "failure", "success"}
_OF_THE_RUNNER = re.compile(r"GITHUB_\w+|RUNNER_\w+|HOME|PATH")


def unknown_names(workflow: dict[str, Any]) -> list[str]:
    """What expressions and commands read and nobody defines: GitHub takes it as nothing, and says no word."""
    unknown = []
    for job in jobs_of(workflow):
        needs = job.get("needs", [])
        needed = {needs} if isinstance(needs, str) else set(needs)
        unknown += [f"needs {name}" for name in needed - set(workflow["jobs"])]
        env = {**workflow.get("env", {}), **job.get("env", {})}
        ids = {step["id"] for step in job["steps"] if "id" in step}
        known = {"steps": ids, "needs": needed, "inputs": _inputs(workflow)}
        head = {key: value for key, value in job.items() if key != "steps"}
        unknown += _unknown_in(_expressions([head, workflow.get("concurrency"), workflow.get("env")]), known, set(env))
        before: set[str] = set()
        for step in job["steps"]:
            here = env | step.get("env", {})
            unknown += _unknown_in(_expressions(step), {**known, "steps": before}, set(here))
            run = step.get("run", "")
            own = set(re.findall(r"\b([A-Z_]+)=", run))
            read = set(re.findall(r"\$\{?([A-Z][A-Z_]*)", run)) - set(here) - own
            unknown += [f"${name}" for name in read if not _OF_THE_RUNNER.fullmatch(name)]
            before |= {step["id"]} if "id" in step else set()
    return unknown


def _inputs(workflow: dict[str, Any]) -> set[str]:
    asked = (workflow["on"] if isinstance(workflow["on"], dict) else {}).get("workflow_dispatch") or {}
    return set(asked.get("inputs", {}))


def _expressions(part: Any, *, is_condition: bool = False) -> list[str]:
    """All expressions in a part of a workflow; an ``if`` is one with and without braces."""
    if isinstance(part, dict):
        return [one for key, value in part.items() for one in _expressions(value, is_condition=key == "if")]
    if isinstance(part, list):
        return [one for value in part for one in _expressions(value)]
    if not isinstance(part, str):
        return []
    return re.findall(r"\$\{\{(.*?)\}\}", part) or ([part] if is_condition else [])


def _unknown_in(expressions: list[str], known: dict[str, set[str]], env: set[str]) -> list[str]:
    unknown = []
    for expression in expressions:
        bare = re.sub(r"'[^']*'", "", expression)
        for name in re.findall(r"(?<![\w.-])([A-Za-z_][\w-]*(?:\.[\w-]+)*)", bare):
            context, _, rest = name.partition(".")
            member = rest.partition(".")[0]
            fine = context in _GIVEN or name in _STATES or member in known.get(context, set())
            if not (fine or (context == "env" and member in env)):
                unknown.append(name)
    return unknown


@dataclass
class Runner:
    """Runs a workflow's steps in a clone of a repository, with the ``python`` of the tests in the place of a new one.

    ``pip`` installs nothing: what it was asked for is kept in ``installed``. ``if`` is understood as far as the
    workflows use it: a step runs while nothing has failed, or whatever has failed since it was installed.
    """

    clone: Path
    folder: Path
    python: str
    outcomes: dict[str, int] = field(default_factory=dict)
    """Exit statuses of the steps that ran, by name."""
    output: dict[str, str] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """What the job's page shows."""
        return (self.folder / "summary.md").read_text(encoding="utf-8")

    @property
    def installed(self) -> list[list[str]]:
        """The words of each pip command."""
        return [shlex.split(line) for line in (self.folder / "pip.txt").read_text(encoding="utf-8").splitlines()]

    def run(self, path: Path, job: int = 0, **replaced: str) -> None:
        """Run a workflow's job. ``replaced``: commands for steps, by name with ``_`` for what is no letter."""
        workflow, bin_folder = read_workflow(path), self._tools()
        own = {"REASON": "as it is meant", "BASE": "origin/main", "GITHUB_RUN_ID": "1", "NUMBER": "7"}
        own |= {"RESULTS": str(self.folder / "results.json"), "PAGE": "https://example.org/artifact"}
        own |= {"GITHUB_REPOSITORY": "owner/project", "GITHUB_SHA": "0" * 40}
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PERF", "PYTEST_"))},
            **{name: str(value) for name, value in workflow["env"].items()},
            **own,
            "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # plugins are installed here that the workflows do not install
            "RUNNER_TEMP": str(self.folder),
            "GITHUB_PATH": str(self.folder / "path.txt"),
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary.md"),
        }
        for step in jobs_of(workflow)[job]["steps"]:
            if "run" not in step or not self._is_due(step):
                continue
            script = replaced.get(step["name"].replace(" ", "_"), step["run"])
            done = subprocess.run(
                ["bash", "-e", "-c", script],
                cwd=self.clone,
                env=environment,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            self.outcomes[step["name"]] = done.returncode
            self.output[step["name"]] = done.stdout + done.stderr

    def _is_due(self, step: dict[str, Any]) -> bool:
        if step.get("if") is None:
            return not any(self.outcomes.values())
        assert step["if"] == "${{ !cancelled() && steps.install.outcome == 'success' }}"
        return self.outcomes["Install"] == 0

    def _tools(self) -> Path:
        """A folder with ``python``, ``pytest`` and ``perflab``."""
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        note = f"{self.folder}/pip.txt"
        pip = f'if [ "$2" = pip ]; then printf "%q " "$@" >> {note}; echo >> {note}; exit; fi'
        venv = 'if [ "$2" = venv ]; then mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; exit; fi'
        tools = {
            "python": f'{pip}\n{venv}\nexec {self.python} "$@"',
            "pytest": f'exec {self.python} -m pytest "$@"',
            "perflab": f'exec {self.python} -m perflab "$@"',
        }
        tools["python3"] = tools["python"]
        for name, text in tools.items():
            (folder / name).write_text(f"#!/bin/bash\n{text}\n")
            (folder / name).chmod(0o755)
        return folder
