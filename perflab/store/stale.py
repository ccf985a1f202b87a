"""Finds stored baselines of cases that no longer exist. Reports only what is certain.

A case that was not run, deselected, not collected, or that another option would bring back is not stale.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from perflab.data import Data, Parameters
from perflab.mode import without_mode
from perflab.store.case_files import CaseFiles, name_of, paths_of


class Function(Data, frozen=True):
    """A test function with all of its cases, as they were before any were deselected."""

    cases: list[str]
    """Node ids."""
    marked: list[str] = []
    """Parameters that ``@pytest.mark.parametrize`` gives it, and that are in the test's text therefore."""
    generated: list[str] = []
    """Parameters that come from elsewhere: a ``pytest_generate_tests`` hook, a parametrized fixture."""
    arguments: list[str] = []
    """Everything that it could be parametrized by: its arguments, its fixtures, and theirs."""
    is_complete: bool = True
    """False if a mark gave no values at all, as where what it lists is not there on this machine."""


class Collection(Data, frozen=True):
    """What a session has collected: test files that it has seen whole, and the functions in them."""

    files: dict[str, dict[str, Function]] = {}
    """Path as in node ids -> ``TestClass::test_function`` -> what was collected of it."""


class Stored(NamedTuple):
    """What has to be known of a stored baseline, whatever it holds."""

    parameters: Parameters
    is_ours: bool
    """Whether this session would have met it: it is of this environment, or of none in particular."""


class StoredFile(NamedTuple):
    """One baseline file that a session may prune."""

    path: Path
    store: CaseFiles[Any]
    entries: Callable[[], Mapping[str, Stored]]
    """What is in it, by name; raises BaselineError where it is damaged."""


def find_stale(
    module: str,
    entries: Mapping[str, Stored],
    collection: Collection,
    root: Path,
    *,
    is_ours: bool,
) -> list[str]:
    """The stale ones of a baseline file's entries.

    Args:
        module: the baseline file's name, without its ending.
        entries: what is in it, by name.
        collection: what this session has collected.
        root: pytest's root directory.
        is_ours: whether the baselines are this project's alone, so that a missing test file means that it is gone.
    """
    paths = paths_of(module, root)
    if not paths:
        return sorted(entries) if is_ours else []
    if any(path not in collection.files for path in paths):
        return []  # whatever the file that was not seen may hold
    functions = [collection.files[path] for path in paths]
    absent = {name for name in entries if not any(_function_of(name) in known for known in functions)}
    if absent:
        written = set().union(*(_defined_in(root / path) for path in paths))
        absent = {name for name in absent if _function_of(name) not in written}
    gone = {
        name
        for name, entry in entries.items()
        if entry.is_ours
        and (own := [known[_function_of(name)] for known in functions if _function_of(name) in known])
        and all(_has_lost(function, name, entry.parameters) for function in own)
    }
    return sorted(absent | gone)


def _function_of(name: str) -> str:
    return (
        without_mode(name).partition("[")[0].partition("@")[0]
    )  # pytest-xdist's loadgroup writes the group behind an @


def _has_lost(function: Function, name: str, parameters: Parameters) -> bool:
    """Whether the function no longer has this case, and no option could bring it back."""
    name = without_mode(name)  # an option may bring every mode back
    cases = {name_of(case) for case in function.cases}
    if name in cases or name.rpartition("@")[0] in cases:
        return False
    if function.generated or not function.is_complete:
        return False
    if "[" in name and not parameters:
        return False  # nobody knows where that came from
    return all(parameter in function.marked or parameter not in function.arguments for parameter in parameters)


def _defined_in(path: Path) -> set[str]:
    """Names that a test file's text defines somewhere, be it under a condition: ``TestClass::test_function``."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return set()  # collected all the same, so it is no Python, and what was collected is all there is
    return set(_names_in(tree, ""))


def _names_in(node: ast.AST, prefix: str) -> list[str]:
    found: list[str] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(prefix + child.name)
        elif isinstance(child, ast.ClassDef):
            found += [prefix + child.name, *_names_in(child, f"{prefix}{child.name}::")]
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            found.append(prefix + child.id)
        elif isinstance(child, ast.alias):
            found.append(prefix + (child.asname or child.name))
        else:
            found += _names_in(child, prefix)
    return found
