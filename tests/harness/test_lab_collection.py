"""Which of the lab's cases a run of predictions takes: the models, unless somebody asks for more."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODELS = "tests/perf/test_transformer.py"
ATTENTION = "tests/perf/test_attention.py"


def predicted(*arguments: str, start: Path = ROOT) -> set[str]:
    """The files of the cases that ``pytest -m perf --perf-predict`` would predict."""
    command = [sys.executable, "-m", "pytest", "-m", "perf", "--model=small", "--perf-predict", "--collect-only", "-q"]
    command += [f"--ignore={ROOT}/tests/{other}" for other in ("correctness", "harness", "plugin")]  # no case is there
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run([*command, *arguments], cwd=start, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line}


def test_a_whole_run_predicts_the_models_alone() -> None:
    assert predicted() == {MODELS}


def test_a_file_is_predicted_where_it_is_given_whatever_it_holds_and_others_are_not() -> None:
    if pytest.version_tuple >= (8, 4):  # before, of a folder and a test in it pytest collects the test alone
        assert predicted("tests/perf/", "tests/perf/test_attention.py::test_attention") == {MODELS, ATTENTION}
    assert predicted("test_attention.py", start=ROOT / "tests" / "perf") == {ATTENTION}


def test_the_studies_are_predicted_where_their_folder_is_given() -> None:
    files = predicted(str(ROOT / "tests/perf/studies"))
    assert files
    assert all(file.startswith("tests/perf/studies/") for file in files)


def test_a_keyword_reaches_every_file() -> None:
    assert {MODELS, ATTENTION} & predicted("tests/perf", "-k", "attention") == {ATTENTION}
