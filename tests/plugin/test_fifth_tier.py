"""A tier that perflab does not have is added by the edits that DESIGN.md lists, and every command knows it then."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TIER = Path(__file__).with_name("fifth_tier")
EDITS = {
    "results/result.py": [
        ("\nOutcome =", "from perflab.results.traced import TracedCase\n\nOutcome ="),
        ("| CompiledCase\n", "| CompiledCase | TracedCase\n"),
    ],
    "options.py": [
        ('"compiled_kernel": "compiled"}', '"compiled_kernel": "compiled", "traced": "traced"}'),
        ("OPTIONS = (\n", 'OPTIONS = (\n    Option("--perf-traced-more", "0", "further calls that are no failure"),\n'),
    ],
    "plugin/fixtures.py": [
        (
            '@pytest.fixture(scope="session")\ndef device',
            '@pytest.fixture\ndef traced():\n    """Count the operators of the test."""\n\n\n'
            '@pytest.fixture(scope="session")\ndef device',
        )
    ],
}
"""The edits of modules that are there: the text before, and after. All else is the tier's folder and its record."""
CASE = """
import torch

def test_sum(traced):
    for _ in range({}):
        torch.ones(4).cos()
"""
COS = "aten.cos.default"


class Project:
    """A project in which a copy of perflab with a fifth tier runs."""

    def __init__(self, place: Path, site: Path, python: str) -> None:
        self.place = place
        self._python = python
        self._environment = {**os.environ, "PYTHONPATH": str(site), "COLUMNS": "120"}

    def calls(self, count: int) -> None:
        """Write a test that calls the cosine so often."""
        (self.place / "test_it.py").write_text(CASE.format(count))

    def run(self, *words: str, status: int = 0) -> str:
        """Run a module of Python, and return what it prints; fail if it ends with another status."""
        command = [self._python, "-m", *words]
        done = subprocess.run(
            command, cwd=self.place, env=self._environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def project(tmp_path: Path, python: str) -> Project:
    site, place = tmp_path / "site", tmp_path / "project"
    place.mkdir()
    (place / "pytest.ini").write_text("[pytest]\n")
    subprocess.run(["git", "init", "-q"], cwd=place, check=True)
    shutil.copytree(ROOT / "perflab", site / "perflab", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(TIER, site / "perflab" / "traced", ignore=shutil.ignore_patterns("__pycache__", "record.py"))
    shutil.copy(TIER / "record.py", site / "perflab" / "results" / "traced.py")
    for module, edits in EDITS.items():
        path = site / "perflab" / module
        text = path.read_text()
        for before, after in edits:
            assert text.count(before) == 1, (module, before)
            text = text.replace(before, after)
        path.write_text(text)
    return Project(place, site, python)


def test_a_fifth_tier_runs_is_saved_joined_reported_and_has_a_history(project: Project) -> None:
    perf = ["pytest", "-m", "perf", "-p", "no:cacheprovider"]
    project.calls(2)
    assert "traced  operators" in project.run(*perf, "--perf-update", "--perf-json=one.json")
    stored = project.place / "baselines" / "traced-operators" / "test_it.json"
    assert json.loads(stored.read_text())["cases"]["test_sum"]["operators"][COS] == 2
    assert re.search(r"sum +4 +ok", project.run(*perf))

    project.calls(3)
    told = project.run(*perf, "--perf-json=two.json", status=1)
    assert re.search(rf"{re.escape(COS)} +2 +3 +\+1", told)
    project.run(*perf, "--perf-traced-more=1")

    assert COS in project.run("perflab", "report", "two.json", "--format=html")
    assert "regressed" in project.run("perflab", "report", "two.json", "--format=markdown")
    assert "traced  operators" in project.run("perflab", "merge", "two.json", status=1)
    side_by_side = project.run("perflab", "compare", "one.json", "two.json")
    assert f"{COS} 2 / 3" in side_by_side

    history = project.run("perflab", "history", "--quantity", COS, "--format=csv")
    assert [(row["value"], row["said"]) for row in csv.DictReader(io.StringIO(history))] == [
        ("2", "new"),
        ("2", "ok"),
        ("3", "regressed"),
        ("3", "ok"),
    ]
    for words in (["add", "baselines"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=project.place, check=True)
    accepted = project.run("perflab", "history", "--git", "--quantity", COS, "--format=csv")
    assert [row["value"] for row in csv.DictReader(io.StringIO(accepted))] == ["2"]

    shutil.copytree(stored.parents[1], project.place / "shard")
    assert "1 baseline" in project.run("perflab", "merge", "--baselines", "shard", "--output=joined")
    joined = project.place / "joined" / "traced-operators" / "test_it.json"
    assert joined.read_bytes() == stored.read_bytes()

    (project.place / "test_it.py").write_text("def test_other(traced):\n    pass\n")
    project.run(*perf, "--perf-prune")
    assert not stored.exists()
