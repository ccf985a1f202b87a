"""Baseline files named by test module: finds, reads and changes their cases, joins directories that shards wrote.

Subclasses of ``CaseFiles`` define what such a file is called beyond its module, and what it holds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar
from urllib.parse import quote, unquote

from perflab.base.data import speakable
from perflab.base.errors import BaselineError
from perflab.base.identity import file_of, name_in_file
from perflab.store.json_files import check_writable, delete_file, writable, writing

Stored = TypeVar("Stored")


class CaseFiles(ABC, Generic[Stored]):
    """The files of one kind of baselines in the baselines directory. A file is read once, when first needed.

    Reading raises a ``BaselineError`` if a file cannot be read, is no JSON, or is not one of ours. Changing raises it
    for the same reasons, since files are read first, and if a file cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: dict[Path, dict[str, Stored]] = {}

    @abstractmethod
    def _read(self, path: Path) -> dict[str, Stored]:
        """Return the file's cases by name; none if there is no such file."""

    @abstractmethod
    def _write(self, path: Path, cases: Mapping[str, Stored]) -> None:
        """Write the file whole."""

    def load(self, path: Path) -> Mapping[str, Stored]:
        """Return the cases of one file, by name; none if there is no such file."""
        if path not in self._files:
            self._files[path] = self._read(path)
        return self._files[path]

    def remove(self, names: Mapping[Path, Collection[str]]) -> dict[Path, list[str]]:
        """Remove cases, named as in their files, and files that hold no others; return the removed names by file."""
        removed: dict[Path, list[str]] = {}
        with writing(self.directory):
            self._files.clear()  # others may have written since
            for path, unwanted in names.items():
                stored = self._read(path)
                kept = {name: one for name, one in stored.items() if name not in unwanted}
                removed[path] = sorted(stored.keys() - kept.keys())
                if kept and removed[path]:
                    self._write(path, kept)
                elif removed[path]:
                    delete_file(path)
        return removed

    def _put(self, paths: Mapping[str, Path], successor: Callable[[str, Stored | None], Stored]) -> list[Path]:
        """Replace each case's entry ``old``, read again or None, by ``successor(case, old)``; return the files."""
        by_path: dict[Path, list[str]] = {}
        for case, path in paths.items():
            by_path.setdefault(path, []).append(case)
        with writing(self.directory):
            self._files.clear()  # others may have written since
            for path, cases in by_path.items():
                stored = self._read(path)
                for case in cases:
                    name = name_of(case)
                    stored[name] = successor(case, stored.get(name))
                self._write(path, stored)
        return sorted(by_path)


def module_of(case: str) -> str:
    """Return a file's name: ``tests/perf/test_x.py::test_y[a]`` -> ``tests.perf.test_x``; each test file has its own.

    A dot of the path itself becomes ``%2E``. The name of a file that is not Python ends in ``%2F``, the slash in which
    no path ends.
    """
    path = speakable(file_of(case))
    name = ".".join(quote(step, safe="").replace(".", "%2E") for step in path.removesuffix(".py").split("/"))
    return name if path.endswith(".py") else f"{name}%2F"


def path_of(module: str) -> str:
    """Return the test file of a baseline file of this name, as node ids name it; the test file may no longer exist."""
    path = unquote(module.replace(".", "/"))
    return path.removesuffix("/") if path.endswith("/") else f"{path}.py"


def name_of(case: str) -> str:
    """Return a case's name within its file: ``TestY::test_z[a]``."""
    return str(writable(name_in_file(case)))


@dataclass(frozen=True)
class Part:
    """The joined baselines of one tier: their number, and a function that writes them and returns the files."""

    entries: int
    write: Callable[[Path], set[Path]]


class Joins(Protocol):
    """The part of a tier's interface that joins its files."""

    def join(self, paths: Sequence[Path]) -> Part:
        """Join the files of several directories."""


def join_baselines(directories: Sequence[Path], output: Path, tiers: Mapping[str, Joins]) -> tuple[int, list[Path]]:
    """Join directories into ``output``; a case that is in several keeps the entry that was recorded last.

    The entries that ``output`` holds already take part, and so do entries that a shard has from its checkout: an update
    in another shard is later. Everything is read and checked before anything is written. Return the number of
    baselines, and the files that hold them.

    Args:
        directories: the directories to join.
        output: the directory that receives the joined baselines.
        tiers: the tiers, by the prefix of the folders of their baselines.

    Raises:
        BaselineError: a directory is missing or holds no baselines, or a file is damaged or cannot be written.
    """
    found: dict[str, list[Path]] = {}
    for directory in [output, *directories]:
        paths = sorted(directory.glob("*/*.json"))
        if not paths and directory is not output:
            problem = "holds no baselines" if directory.is_dir() else "is not a directory"
            raise BaselineError(
                f"{directory} {problem}", "name a directory of baselines; it holds <environment>/<test module>.json"
            )
        for path in paths:
            prefix = max((one for one in tiers if path.parent.name.startswith(one)), key=len)
            found.setdefault(prefix, []).append(path)
    parts = [tiers[prefix].join(paths) for prefix, paths in found.items()]
    check_writable(output)
    files = {file for part in parts for file in part.write(output)}
    return sum(part.entries for part in parts), sorted(files)


def case_at(path: Path, name: str) -> str:
    """Return the node id of a case of a baseline file."""
    return f"{path_of(path.stem)}::{name}"
