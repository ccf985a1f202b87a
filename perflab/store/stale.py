"""Finds stored baselines of cases that no longer exist, and the old case of a new one. Reports only what is certain.

A case that was not run, deselected, not collected, or that another option, machine or environment variable would bring
back is not stale. Test files are read as text: which names they bind, and whether a test was renamed or moved.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from perflab.base.data import Data
from perflab.base.files import shared_end
from perflab.base.identity import file_of, function_of, name_in_file, without_group, without_mode
from perflab.store.case_files import CaseFiles, path_of

_BINDS_OTHERS = {"*", "globals", "locals", "vars", "setattr", "exec"}


class Collection(Data, frozen=True):
    """The perf cases that a session has collected, and the test files that it has collected as a whole."""

    files: dict[str, list[str]] = {}
    """Names of all cases of a file, before any were deselected, by the file's path as in node ids."""
    cases: list[str] = []
    """Node ids of all cases of all files, before any were deselected."""


class Stored(NamedTuple):
    """The facts about a stored baseline of any content that pruning needs."""

    is_ours: bool
    """Whether this session would have met the baseline, which is of this environment, or of none in particular."""
    recorded: str = ""
    commit: str | None = None


class StoredFile(NamedTuple):
    """One baseline file that a session may prune."""

    path: Path
    store: CaseFiles[Any]
    entries: Callable[[], Mapping[str, Stored]]
    """Function that returns the file's baselines by name; raises BaselineError if the file is damaged."""
    together: str = ""
    """The same for files in all of which a run looks for a case before it takes a stale one for it."""


class Missing(NamedTuple):
    """Cases of a baseline file that were not collected, by name."""

    stale: list[str] = []
    """Cases that certainly no longer exist."""
    doubtful: list[str] = []
    """Cases that may exist elsewhere, as far as this session would have met them."""


def find_missing(
    module: str, entries: Mapping[str, Stored], collection: Collection, root: Path, *, is_ours: bool
) -> Missing:
    """Return the entries of a baseline file whose cases this session has not collected.

    Args:
        module: the baseline file's name, without its ending.
        entries: the file's baselines, by name.
        collection: the test files and cases that this session has collected.
        root: pytest's root directory.
        is_ours: whether the baselines are this project's alone, so that a missing test file has been removed.
    """
    path = path_of(module)
    if not _is_file(root / path):
        return Missing(stale=sorted(entries) if is_ours else [])
    collected = collection.files.get(path)
    if collected is None:
        return Missing()
    plain = {name: without_mode(name) for name in sorted(entries)}  # an option may bring every mode back
    missing = [name for name, one in plain.items() if {one, without_group(one)}.isdisjoint(collected)]
    if not missing:
        return Missing()
    known, bindings = {function_of(name) for name in collected}, bindings_in((root / path).read_bytes())
    bound = {name for name, _ in bindings} if bindings is not None else set()
    heirs = {f"{name}::" for name, node in bindings or () if isinstance(node, ast.ClassDef) and node.bases}
    # If a file generates tests, or a class inherits tests, further tests may exist elsewhere.
    gone = [name for name in missing if function_of(name) not in bound and not name.startswith(tuple(heirs))]
    stale = gone if known <= bound else []
    return Missing(stale, [name for name in missing if entries[name].is_ours and name not in stale])


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return True  # the file cannot be looked at, so it may exist


def bindings_in(text: str | bytes) -> list[tuple[str, ast.AST]] | None:
    """Return the names that a test file binds, such as ``TestClass::test_function``, each with its syntax node.

    Names that are bound under a condition are included. None if the text is no Python, or if it may bind names that it
    does not contain.
    """
    try:
        tree = ast.parse(text)
        names = {getattr(node, "id", None) or getattr(node, "name", None) for node in ast.walk(tree)}
        attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        return None if names & _BINDS_OTHERS or "__dict__" in attributes else list(_bound_in(tree, ""))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _bound_in(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield prefix + child.name, child
            yield from _bound_in(child, f"{prefix}{child.name}::")
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield prefix + child.id, child
        elif isinstance(child, ast.alias):
            yield prefix + (child.asname or child.name), child
        else:
            yield from _bound_in(child, prefix)


def moved_from(case: str, gone: Iterable[str], text_of: Callable[[str], str | None]) -> str | None:
    """Return the one case of ``gone`` that became ``case``: moved from another file, or renamed in the same file.

    Args:
        case: node id, or identity, of a case that is new.
        gone: cases that no longer exist.
        text_of: returns the text of a case's test file, as it was or is; None if the text is unknown.

    A case of the same name in another file must have the same code, as far as the code is known. A case of the same
    file and parameters must be known to have the same code. If several cases qualify, the one whose path shares the
    longest end with the path of ``case`` is returned, as after a folder was renamed; None if several share that end.
    """
    path, name = file_of(case), name_in_file(case)
    found = []
    for old in gone:
        old_path, old_name = file_of(old), name_in_file(old)
        is_elsewhere = old_path != path
        if (old_name == name) if is_elsewhere else (_parameters(old_name) == _parameters(name)):
            then = _code(text_of(old), old_name)
            found += [old] if (is_elsewhere if then is None else then == _code(text_of(case), name)) else []
    alike = [shared_end(file_of(old), path) for old in found]
    best = [old for old, parts in zip(found, alike, strict=True) if parts == max(alike)]
    return best[0] if len(best) == 1 else None


def _parameters(name: str) -> str:
    return name.removeprefix(function_of(name))


def _code(text: str | None, name: str) -> list[str] | None:
    """Return arguments and body of a case's test function, as text; None if the text of the file lacks the function."""
    bound = bindings_in(text) if text is not None else None
    functions = [one for known, one in bound or () if known == function_of(name)]
    parts = [(one.args, *one.body) for one in functions if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [ast.dump(part) for function in parts for part in function] or None
