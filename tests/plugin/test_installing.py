"""Installed as a wheel, away from this repository: found through its entry point, and complete."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FOREIGN_PROJECT = """\
import torch

def test_softmax(perf, device):
    scores = torch.randn(64, 64, device=device)
    out = perf(torch.softmax, scores, dim=-1)
    torch.testing.assert_close(out.sum(-1), torch.ones(64, device=device))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, source = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):  # a copy: building leaves a folder behind
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "perflab", source / "perflab", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(source)], check=True, capture_output=True, text=True)
    (path,) = folder.glob("perflab-*.whl")
    return path


def test_the_wheel_holds_every_module_and_no_test(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "perflab").rglob("*.py")}
    assert modules == {name for name in names if name.endswith(".py")}
    assert "perflab/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "baselines/", "conftest"))]
    metadata = zipfile.ZipFile(wheel).read(next(n for n in names if n.endswith("METADATA"))).decode()
    assert "License-Expression: Apache-2.0" in metadata
    entry_points = zipfile.ZipFile(wheel).read(next(n for n in names if n.endswith("entry_points.txt"))).decode()
    assert "perflab.plugin = perflab.plugin" in entry_points
    assert "perflab = perflab.__main__:main" in entry_points


def test_a_foreign_project_of_a_few_lines_measures_saves_and_compares(wheel: Path, python: str, tmp_path: Path) -> None:
    site, project = tmp_path / "site", tmp_path / "project"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(pip, check=True, capture_output=True, text=True)
    project.mkdir()
    (project / "test_foreign.py").write_text(FOREIGN_PROJECT)
    environment = {**os.environ, "PYTHONPATH": str(site), "TMPDIR": str(tmp_path)}

    def run(*arguments: str) -> str:
        command = [python, "-m", "pytest", "-m", "perf", "--perf-budget=300ms", *arguments]
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    where = [sys.executable, "-c", "import perflab; print(perflab.__file__)"]
    found = subprocess.run(where, cwd=project, env=environment, capture_output=True, text=True, check=True).stdout
    assert found.startswith(str(site))
    saved = run("--perf-update", "--perf-replicates=2", "--perf-noisy=accept")
    assert "perflab-0." in saved
    assert "saved 1 baseline to baselines/" in saved
    assert "vs base" in run("--perf-check=off")
