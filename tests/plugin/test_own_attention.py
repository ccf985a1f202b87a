"""Stories of --attention: somebody brings a kernel of their own to this repository's suite."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNEL = """
import torch

def right(q, k, v, *, is_causal, scale):
    if q.shape[1] != k.shape[1]:
        raise NotImplementedError("no grouped heads yet")
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    s = q.float() @ k.float().mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = s.masked_fill(j > i + AHEAD, -torch.inf) if is_causal else s
    return (torch.softmax(s, -1) @ v.float()).to(q.dtype)

AHEAD = 0

def ahead(q, k, v, *, is_causal, scale):
    global AHEAD
    AHEAD = 1
    try:
        return right(q, k, v, is_causal=is_causal, scale=scale)
    finally:
        AHEAD = 0
"""


def run(python: str, folder: Path, name: str, *options: str) -> subprocess.CompletedProcess[str]:
    """pytest on this repository's attention suite, from a folder that holds somebody's kernel."""
    (folder / "their_kernel.py").write_text(KERNEL)
    command = [python, "-m", "pytest", "-m", "correctness", f"--rootdir={ROOT}", f"--confcutdir={ROOT}"]
    command += ["-c", str(ROOT / "pytest.ini"), "-p", "no:cacheprovider", f"--attention={name}", *options]
    command += [str(ROOT / "tests" / "correctness" / "test_attention_suite.py")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize("chosen", ["q17-k3- or q3-k"])
def test_a_right_kernel_passes_and_what_it_lacks_is_skipped_with_its_words(
    python: str, tmp_path: Path, chosen: str
) -> None:
    done = run(python, tmp_path, "their_kernel:right", "-k", f"{chosen} or refused", "-rs")
    assert done.returncode == 0, done.stdout
    assert "attention candidate their_kernel:right: claims causal, scale; no log-sum-exp" in done.stdout
    assert 'no grouped-heads (it says "no grouped heads yet")' in done.stdout
    assert "their_kernel:right does not claim grouped-heads: not tested" in done.stdout
    assert "their_kernel:right does not claim window: not tested" in done.stdout


def test_a_wrong_kernel_fails_with_its_cause_and_a_tally(python: str, tmp_path: Path) -> None:
    done = run(python, tmp_path, "their_kernel:ahead", "-k", "(q17-k or q3-k) and causal and not window")
    assert done.returncode == 1, done.stdout
    assert "likely cause: the mask is off by one: query i also sees the key after its last" in done.stdout
    assert "their_kernel:ahead is wrong for q (" in done.stdout
    assert "Traceback" not in done.stdout
    tally = done.stdout.split(" attention =")[1]
    assert "x the mask is off by one: query i also sees the key after its last" in tally


def test_a_name_that_is_nothing_is_a_usage_error_that_names_the_remedy(python: str, tmp_path: Path) -> None:
    done = run(python, tmp_path, "their_kernel:flush")
    assert done.returncode == 4, done.stdout
    assert "ERROR: --attention: 'their_kernel' has no 'flush'; it has right, ahead" in done.stderr + done.stdout
