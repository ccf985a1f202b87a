"""Baseline files named by test module: finds, reads and changes their cases.

What such a file is called beyond its module, and what is in it, those know who derive from ``CaseFiles``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import quote, unquote

from perflab.data import speakable
from perflab.store.json_files import delete_file, writable, writing

Stored = TypeVar("Stored")


class CaseFiles(ABC, Generic[Stored]):
    """The baselines directory, as far as it holds one kind of baselines. Files are read once and when first needed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: dict[Path, dict[str, Stored]] = {}

    @abstractmethod
    def _read(self, path: Path) -> dict[str, Stored]:
        """The file's cases by name; none if there is no such file."""

    @abstractmethod
    def _write(self, path: Path, cases: Mapping[str, Stored]) -> None:
        """Write the file whole."""

    def load(self, path: Path) -> Mapping[str, Stored]:
        """All cases of one file, by name; none if there is no such file.

        Raises:
            BaselineError: the file cannot be read, is no JSON, or is not one of ours.
        """
        if path not in self._files:
            self._files[path] = self._read(path)
        return self._files[path]

    def remove(self, names: Mapping[Path, Collection[str]]) -> dict[Path, list[str]]:
        """Remove cases, named as in their files, and files that hold no others. Returns what was there to remove.

        Raises:
            BaselineError: a file cannot be read first, or cannot be written.
        """
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
        """Let ``successor(case, old)`` take the place of what each case's file holds by then. Returns the files.

        Raises:
            BaselineError: a file cannot be read first, or cannot be written.
        """
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
    """The file's name: ``tests/perf/test_x.py::test_y[a]`` -> ``tests.perf.test_x``, so that no names collide."""
    module = speakable(case.split("::", 1)[0]).removesuffix(".py")
    return quote(module.replace("/", "."), safe="")


def paths_of(module: str, root: Path) -> list[str]:
    """The test files below ``root`` that a baseline file of this name may belong to, as node ids name them.

    A dot in the name was a dot or a slash, so there may be several. What cannot be looked at counts as there.
    """
    parts = unquote(module).split(".")

    def below(folder: Path, before: str, at: int) -> Iterator[str]:
        for end in range(at + 1, len(parts)):
            step = ".".join(parts[at:end])
            if step and _is(folder / step, Path.is_dir):
                yield from below(folder / step, f"{before}{step}/", end)
        last = ".".join(parts[at:])
        yield from (f"{before}{name}" for name in (f"{last}.py", last) if last and _is(folder / name, Path.is_file))

    return sorted(below(root, "", 0))


def _is(path: Path, kind: Callable[[Path], bool]) -> bool:
    try:
        return kind(path)
    except OSError:
        return True


def name_of(case: str) -> str:
    """The case's name within its file: ``TestY::test_z[a]``."""
    return str(writable(case.split("::", 1)[-1]))
