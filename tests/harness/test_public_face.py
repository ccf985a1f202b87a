"""What perflab offers by name; and the lab's suites, which are written the way a user would, use nothing else."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import perflab
from tests.harness.test_house_rules import HEAVY

ROOT = Path(__file__).parents[2]
PUBLIC = (
    "perflab.attention",
    "perflab.correctness",
    "perflab.instruments",
    "perflab.lab",
    "perflab.serving",
    "perflab.units",
)
OWN = ("tests.correctness", "tests.perf", "tests.studies")
INSIDE = {
    "conftest.py": "ranks start warm, as the harness's own stories do",
    "predicted.py": "what those that begin with test_predicted share",
    "test_attention_needs.py": "what cases say they need, against the harness's own measurement of memory",
    "test_memory_study.py": "snapshots of the lab's models: predicting beside recording",
    "test_predicted_against_real.py": "the insides of predicting, beside PyTorch's CUDA build",
    "test_predicted_cost.py": "the insides of predicting, on the lab's models",
    "test_predicted_layers.py": "the insides of predicting, on the lab's models",
    "test_predicted_memory.py": "the insides of predicting, on the lab's models",
    "test_predicted_on_cuda.py": "predictions beside what a GPU needs",
    "test_predicted_published.py": "predictions beside published numbers",
    "test_profile_causes.py": "the insides of profiling, on changes of the lab's model",
    "test_profile_findings.py": "findings from profiles that are made by hand",
    "test_profile_of_a_call.py": "the insides of profiling, on the lab's models",
    "test_reasoning.py": "findings from records that are made by hand",
    "test_study_findings.py": "findings from records that are made by hand",
    "test_training_update.py": "a step on the fake tensors of predicting",
}
"""Files of tests/correctness that hold perflab's insides to something, each with the reason."""
SUITES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("perf", "correctness")
    for path in (ROOT / "tests" / folder).rglob("*.py")
    if not (folder == "correctness" and path.name in INSIDE)
)


def private_imports(file: str, source: str) -> list[str]:
    """What a suite's file imports that is neither public nor its own."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names if alias.name != "perflab"]
        elif isinstance(node, ast.ImportFrom):
            home = Path(file).with_suffix("").parts[: -node.level] if node.level else ()
            module = ".".join([*home, *([node.module] if node.module else [])])
            modules = [f"perflab.{a.name}" for a in node.names] if module == "perflab" else [module]
            modules = [one for one in modules if one.removeprefix("perflab.") not in perflab.__all__]
        else:
            continue
        ours = [module for module in modules if module.partition(".")[0] in ("perflab", "tests")]
        found += [f"line {node.lineno}: {one}" for one in ours if not f"{one}.".startswith(_allowed())]
    return found


def _allowed() -> tuple[str, ...]:
    return tuple(f"{name}." for name in (*PUBLIC, *OWN))


def test_a_suite_imports_nothing_private() -> None:
    found = {file: private_imports(file, (ROOT / file).read_text(encoding="utf-8")) for file in SUITES}
    assert {file: lines for file, lines in found.items() if lines} == {}


def test_a_file_that_may_look_inside_does() -> None:
    for file in (f"tests/correctness/{name}" for name in INSIDE):
        assert private_imports(file, (ROOT / file).read_text(encoding="utf-8")), f"take {file} off INSIDE"


@pytest.mark.parametrize(
    "source",
    [
        "from perflab.running.case.perf import Perf",
        "from perflab import measure",
        "import perflab.results.records",
        "def f():\n    from tests.harness.make import record",
        "from ..harness import make",
    ],
)
def test_the_check_sees_what_is_private(source: str) -> None:
    assert len(private_imports("tests/perf/test_x.py", source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "from perflab import Perf, units, verify",
        "from .setup import Setup",
        "from perflab.lab.models import build_model",
        "import perflab",
    ],
)
def test_the_check_passes_what_is_public(source: str) -> None:
    assert private_imports("tests/perf/test_x.py", source) == []


def test_each_name_is_there_and_is_that_of_its_home() -> None:
    assert {*perflab.__all__} <= {*dir(perflab)}
    for name, home in perflab._HOMES.items():
        assert getattr(perflab, name) is getattr(importlib.import_module(home), name)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse((ROOT / "perflab" / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imported = [alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(imported) == sorted(perflab._HOMES)
    assert sorted([*imported, "__version__", "cuda_timer"]) == sorted(perflab.__all__)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_module_says_so(name: str) -> None:
    assert name in (perflab.__doc__ or "")


def test_a_name_that_is_none_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'perflab' has no attribute 'Perv'"):
        _ = perflab.Perv  # type: ignore[attr-defined]


def test_importing_the_face_its_light_modules_and_a_name_loads_nothing_heavy() -> None:
    modules = "perflab, perflab.units, perflab.instruments, perflab.attention.plugin, perflab.attention.command"
    program = f"import sys, {modules}\nperflab.Perf, perflab.Result, perflab.settings_of, perflab.compare\n"
    program += f"print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


def test_importing_the_package_loads_none_of_its_modules() -> None:
    program = "import sys, perflab\nprint([name for name in sys.modules if name.startswith('perflab.')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
