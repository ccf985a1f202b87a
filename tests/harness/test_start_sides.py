"""The command of each side's process names the other tree where it names this one, and no installed copy is run."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from perflab.compared.serving import Server
from perflab.turns.checkout import Tree
from perflab.turns.start_sides import Starts, copies


def starts(tmp_path: Path, *words: str, files: tuple[str, ...] = (), here: Path | None = None) -> Starts:
    """Of a project in ``tmp_path/app`` against a checkout in ``tmp_path/base``."""
    head, base = tmp_path / "app", tmp_path / "base"
    for tree in (head, base):
        tree.mkdir(exist_ok=True)
    config: Any = SimpleNamespace(
        option=SimpleNamespace(file_or_dir=list(files), pyargs="--pyargs" in words),
        invocation_params=SimpleNamespace(dir=here or head, args=[*words, *files]),
        pluginmanager=SimpleNamespace(hasplugin=lambda _name: False),
    )
    trees = Tree("this", head, (head, head)), Tree("main", base, (head, base))
    return Starts(config, *trees, device="cpu", folder=tmp_path)


def words_of(made: Starts, side: str) -> list[str]:
    start = made.start(side, None)
    assert start is not None
    return list(start.command)


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_file_below_folders_that_are_named_like_the_tree_is_found_on_the_other_side(tmp_path: Path) -> None:
    inner = f"src{tmp_path}/app/tests/test_perf.py"  # as src/app/tests in a project that stands in /app
    for tree in ("app", "base"):
        put(tmp_path / tree / inner)
    made = starts(tmp_path, files=(inner,))
    assert inner in words_of(made, "head")
    assert str(tmp_path / "base" / inner) in words_of(made, "base")
    assert made.only_here == []


def test_an_option_is_translated_only_where_it_names_the_tree_itself(tmp_path: Path) -> None:
    app, base = tmp_path / "app", tmp_path / "base"
    elsewhere = [f"--cov-config=/etc{app}/cov.ini", f"/opt{app}/x.ini", f"--junitxml={app}2/out.xml"]
    made = starts(
        tmp_path, f"--confcutdir={app}", "-o", f"pythonpath={app}/lib {app}", "-c", f"{app}/x.ini", *elsewhere
    )
    words = words_of(made, "base")
    assert f"--confcutdir={base}" in words
    assert f"pythonpath={base}/lib {base}" in words
    assert f"{base}/x.ini" in words
    assert set(elsewhere) <= set(words)


def test_a_file_that_is_named_through_a_symbolic_link_to_the_tree_is_the_other_sides_own(tmp_path: Path) -> None:
    for tree in ("app", "base"):
        put(tmp_path / tree / "tests" / "test_perf.py")
    (tmp_path / "link").symlink_to(tmp_path / "app")
    named = str(tmp_path / "link" / "tests" / "test_perf.py")
    made = starts(tmp_path, files=(f"{named}::test_one",))
    assert str(tmp_path / "base" / "tests" / "test_perf.py") in words_of(made, "base")
    assert not [word for word in words_of(made, "base") if word.startswith(named)]


def test_a_folder_that_is_a_link_within_the_tree_keeps_its_name_so_that_ids_agree(tmp_path: Path) -> None:
    for tree in ("app", "base"):
        put(tmp_path / tree / "src" / "tests" / "test_perf.py")
        (tmp_path / tree / "checks").symlink_to(tmp_path / tree / "src" / "tests")
    words = words_of(starts(tmp_path, files=("checks/test_perf.py",)), "base")
    assert str(tmp_path / "base" / "checks" / "test_perf.py") in words


def test_a_command_given_below_the_tree_names_its_files_from_there(tmp_path: Path) -> None:
    for tree in ("app", "base"):
        put(tmp_path / tree / "tests" / "test_perf.py")
    made = starts(tmp_path, files=("test_perf.py",), here=tmp_path / "app" / "tests")
    assert str(tmp_path / "base" / "tests" / "test_perf.py") in words_of(made, "base")


def test_a_package_of_this_tree_is_the_other_sides_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for tree in ("app", "base"):
        put(tmp_path / tree / "ours_of_perf" / "__init__.py")
    monkeypatch.syspath_prepend(tmp_path / "app")
    made = starts(tmp_path, "--pyargs", files=("ours_of_perf",))
    assert "ours_of_perf" in words_of(made, "head")
    assert str(tmp_path / "base" / "ours_of_perf") in words_of(made, "base")


def test_what_only_this_side_has_is_named_and_needs_no_process_there(tmp_path: Path) -> None:
    put(tmp_path / "app" / "test_new.py")
    made = starts(tmp_path, files=("test_new.py",))
    assert made.start("base", None) is None
    assert made.only_here == ["test_new.py"]


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


def test_modules_without_a_file_are_no_strays_though_the_working_directory_is_the_other_side_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "no_file", ModuleType("no_file"))
    strayed = ModuleType("strayed")
    strayed.__file__ = str(tmp_path / "strayed.py")
    monkeypatch.setitem(sys.modules, "strayed", strayed)
    server: Any = SimpleNamespace(_serve=SimpleNamespace(foreign=str(tmp_path), own=None))
    assert Server._strays(server) == [f"strayed ({strayed.__file__})"]
