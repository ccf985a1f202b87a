"""Stories of `perflab attention`: a kernel is tested in a project of its own, which has nothing of this repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNEL = """
import torch

def attend(q, k, v, is_causal, scale, ahead):
    if q.shape[1] != k.shape[1]:
        raise NotImplementedError("no grouped heads yet")
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    s = q.float() @ k.float().mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = s.masked_fill(j > i + ahead, -torch.inf) if is_causal else s
    return (torch.softmax(s, -1) @ v.float()).to(q.dtype)

def flash(q, k, v, *, is_causal, scale):
    return attend(q, k, v, is_causal, scale, 0)

def off_by_one(q, k, v, *, is_causal, scale):
    return attend(q, k, v, is_causal, scale, 1)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose pytest settings would stop any run, on a machine without hypothesis and our tests."""
    (tmp_path / "their_kernel.py").write_text(KERNEL)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (tmp_path / "conftest.py").write_text("raise RuntimeError('not of the suite')\n")
    (tmp_path / "hypothesis.py").write_text("raise ImportError('not installed')\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").write_text("raise ImportError('these are their own')\n")
    return tmp_path


def run(python: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`perflab attention` in the project, or pytest if the first argument is that."""
    command = [python, "-m", *(arguments if arguments[0] == "pytest" else ("perflab", "attention", *arguments))]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)


def test_a_right_kernel_passes_in_a_project_that_has_nothing_of_this_repository(project: Path, python: str) -> None:
    done = run(python, project, "their_kernel:flash", "--case", "q17-k3- or refused", "--pytest=-rs --strict-markers")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "attention candidate their_kernel:flash: claims causal, scale; no log-sum-exp" in done.stdout
    assert 'no grouped-heads (it says "no grouped heads yet")' in done.stdout
    for lacking in ("grouped-heads", "window"):
        assert f"their_kernel:flash does not claim {lacking}: not tested" in done.stdout
    assert not list(project.glob(".p*")), "nothing is left behind"


def test_a_mask_that_is_off_by_one_fails_with_that_cause_and_a_tally(project: Path, python: str) -> None:
    done = run(python, project, "their_kernel:off_by_one", "--case", "q3-k and causal and not window")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "likely cause: the mask is off by one: query i also sees the key after its last" in done.stdout
    assert "their_kernel:off_by_one is wrong for q (" in done.stdout
    assert "Traceback" not in done.stdout
    assert "x the mask is off by one" in done.stdout.split(" attention =")[1]


def test_pytest_itself_knows_the_option_and_the_suite_by_its_name(project: Path, python: str) -> None:
    (project / "pytest.ini").unlink()
    (project / "conftest.py").unlink()
    (project / "test_other.py").write_text("def test_other():\n    pass\n")
    options = ["-p", "perflab.plugin", "--attention=their_kernel:flash", "-k", "q3-k"]
    done = run(python, project, "pytest", "--pyargs", "perflab.attention.suite", "test_other.py", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "attention candidate their_kernel:flash" in done.stdout
    assert "test_other" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["their_kernel:flush"], 4, "--attention: 'their_kernel' has no 'flush'; it has attend, flash, off_by_one"),
        (["their_kernel:flash", "--pytest='"], 2, "perflab attention: --pytest=': No closing quotation"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_remedy(
    project: Path, python: str, arguments: list[str], status: int, text: str
) -> None:
    done = run(python, project, *arguments)
    assert (done.returncode, text in done.stdout + done.stderr) == (status, True), done.stdout + done.stderr
