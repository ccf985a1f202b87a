"""Which of the lab's cases a run of predictions takes: the models, unless somebody asks for more."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODELS = "tests/perf/test_transformer.py"


def predicted(*arguments: str) -> set[str]:
    """The files of the cases that ``pytest -m perf --perf-predict`` would predict."""
    command = [sys.executable, "-m", "pytest", "-m", "perf", "--model=small", "--perf-predict", "--collect-only", "-q"]
    done = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line}


def test_a_whole_run_predicts_the_models_alone() -> None:
    assert predicted() == {MODELS}


@pytest.mark.parametrize("asked", ["tests/perf/test_attention.py", "tests/perf/test_attention.py::test_attention"])
def test_a_file_that_is_given_is_predicted_whatever_it_holds(asked: str) -> None:
    assert predicted(asked) == {"tests/perf/test_attention.py"}


def test_the_studies_are_predicted_where_their_folder_is_given() -> None:
    files = predicted("tests/perf/studies")
    assert files
    assert all(file.startswith("tests/perf/studies/") for file in files)


def test_a_keyword_reaches_every_file() -> None:
    assert "tests/perf/test_attention.py" in predicted("-k", "attention")
