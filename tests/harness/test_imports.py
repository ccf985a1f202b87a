"""Whose code a side's process runs: an installed copy of the project's own is neither side's."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from perflab.turns.start_sides import copies


def module(name: str, file: Path | None) -> ModuleType:
    made = ModuleType(name)
    made.__file__ = str(file) if file is not None else None
    return made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a package in src, and a module beside it."""
    root = tmp_path / "project"
    (root / "src" / "fast").mkdir(parents=True)
    (root / "src" / "fast" / "__init__.py").touch()
    (root / "small.py").touch()
    (root / "tests").mkdir()
    (root / "tests" / "__init__.py").touch()
    return root


def test_an_installed_copy_of_the_project_s_code_is_found(project: Path, tmp_path: Path) -> None:
    installed = tmp_path / "lib" / "python3.11" / "site-packages"
    modules = {
        "fast": module("fast", installed / "fast" / "__init__.py"),
        "fast.kernels": module("fast.kernels", installed / "fast" / "kernels.py"),
        "small": module("small", installed / "small.py"),
    }
    assert [copy.partition(" ")[0] for copy in copies(modules, [project])] == ["fast", "small"]


def test_a_copy_of_a_namespace_package_is_found(project: Path, tmp_path: Path) -> None:
    (project / "src" / "company" / "quick").mkdir(parents=True)
    (project / "src" / "company" / "quick" / "__init__.py").touch()
    file = tmp_path / "site-packages" / "company" / "quick" / "__init__.py"
    assert copies({"company.quick": module("company.quick", file)}, [project]) == [f"company.quick ({file})"]


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("fast", "project/src/fast/__init__.py"),
        ("torch", "lib/python3.11/site-packages/torch/__init__.py"),
        ("tests", "lib/python3.11/site-packages/tests/__init__.py"),
        ("small", "lib/python3.11/small.py"),
        ("built_in", None),
    ],
    ids=["its own source", "another's package", "a folder of tests", "the standard library", "no file"],
)
def test_what_is_no_copy_is_none(project: Path, tmp_path: Path, name: str, place: str | None) -> None:
    assert copies({name: module(name, None if place is None else tmp_path / place)}, [project]) == []
