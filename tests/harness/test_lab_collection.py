"""Which of the lab's cases a run of predictions takes: the models, unless somebody asks for more."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.perf import conftest as lab

ROOT = Path(__file__).parents[2]
PERF = ROOT / "tests" / "perf"
NO_CASE = ("correctness", "harness", "plugin", "nocuda", "untrusted")
MODELS, ATTENTION, STUDY = PERF / "test_transformer.py", PERF / "test_attention.py", PERF / "studies" / "test_memory.py"


@dataclass(frozen=True)
class Case:
    """As much of a collected test as decides."""

    path: Path
    fixturenames: tuple[str, ...] = ()


def predicted(*arguments: str, start: Path = ROOT) -> set[str]:
    """The files of the cases that ``pytest -m perf --perf-predict`` would predict, from where it starts."""
    command = [sys.executable, "-m", "pytest", "-m", "perf", "--model=small", "--perf-predict", "--collect-only", "-q"]
    command += [f"--ignore={ROOT}/tests/{other}" for other in NO_CASE]
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run([*command, *arguments], cwd=start, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line}


@pytest.mark.usefixtures("warm_start")
def test_a_whole_run_predicts_the_models_alone_and_one_of_a_file_that_file() -> None:
    assert predicted() == {str(MODELS.relative_to(ROOT))}
    assert predicted("test_attention.py", start=PERF) == {str(ATTENTION.relative_to(ROOT))}


@pytest.mark.parametrize(
    ("start", "arguments", "keyword", "files"),
    [
        (ROOT, [str(ROOT)], "", {MODELS}),
        (ROOT, ["tests/perf/", "tests/perf/test_attention.py::test_attention"], "", {MODELS, ATTENTION}),
        (PERF, ["test_attention.py"], "", {MODELS, ATTENTION}),  # of which pytest collects the one that is given
        (ROOT, [str(PERF / "studies")], "", {MODELS, STUDY}),
        (ROOT, ["tests/perf"], "attention", {MODELS, ATTENTION, STUDY}),
    ],
    ids=["everything", "a folder and a test", "a file from its folder", "the studies", "a keyword"],
)
def test_what_is_given_by_its_file_its_folder_or_a_keyword_is_predicted_too(
    start: Path, arguments: list[str], keyword: str, files: set[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab, "settings_of", lambda _config: SimpleNamespace(predict=True))
    deselected: list[Any] = []
    config: Any = SimpleNamespace(
        option=SimpleNamespace(keyword=keyword, pyargs=False),
        invocation_params=SimpleNamespace(dir=start),
        args=arguments,
        hook=SimpleNamespace(pytest_deselected=lambda items: deselected.extend(items)),
    )
    cases: list[Any] = [Case(MODELS, ("setup",)), Case(ATTENTION), Case(STUDY)]
    kept = list(cases)
    lab._leave_to_whoever_asks(config, kept)
    assert {case.path for case in kept} == files
    assert [case for case in cases if case not in kept] == deselected
