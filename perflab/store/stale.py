"""Finds stored baselines of cases that no longer exist. Reports only what is certain.

A case that was not run, deselected, not collected, or that another option, machine or environment variable would bring
back is not stale.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from perflab.base.data import Data
from perflab.base.identity import function_of, without_group, without_mode
from perflab.store.case_files import CaseFiles, path_of
from perflab.store.sources import bindings_in


class Collection(Data, frozen=True):
    """The test files that a session has collected as a whole, and the perf cases in these files."""

    files: dict[str, list[str]] = {}
    """Names of all cases of a file, before any were deselected, by the file's path as in node ids."""


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


class Missing(NamedTuple):
    """Cases of a baseline file that were not collected, by name."""

    stale: list[str] = []
    """Cases that certainly no longer exist."""
    doubtful: list[str] = []
    """Cases that may exist elsewhere, as far as this session would have met them."""


def find_missing(
    module: str,
    entries: Mapping[str, Stored],
    collection: Collection,
    root: Path,
    *,
    is_ours: bool,
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
    missing = [name for name in sorted(entries) if collected is not None and not _is_collected(name, collected)]
    if collected is None or not missing:
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


def _is_collected(name: str, collected: Container[str]) -> bool:
    name = without_mode(name)  # an option may bring every mode back
    return name in collected or without_group(name) in collected
