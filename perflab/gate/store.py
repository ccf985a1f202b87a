"""The baselines directory: ``<environment>/<test module>.json``. What is in a file, ``baseline_file.py`` knows."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote, unquote

from perflab.environment import differences, slug
from perflab.gate.baseline_file import read_file, write_file
from perflab.gate.files import delete_file, is_predicted_file, unwritable, writable
from perflab.gate.locked import locked
from perflab.records import Entry, Environment


class BaselineStore:
    """The baselines directory. Files are read once and when first needed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: dict[Path, dict[str, Entry]] = {}

    def path_for(self, case: str, environment: Environment) -> Path:
        """The file in which the case's baseline lives, or would."""
        return self.directory / slug(environment) / f"{module_of(case)}.json"

    def entry(self, case: str, environment: Environment) -> Entry | None:
        """The case's baseline, or None.

        Where this environment has none, the closest one of another environment is returned, so that the judge
        can say what differs instead of calling the case new.

        Raises:
            BaselineError: a file is damaged or foreign.
        """
        name = name_of(case)
        own = self.load(self.path_for(case, environment)).get(name)
        if own is not None:
            return own
        others = [
            entry
            for path in sorted(self.directory.glob(f"*/{module_of(case)}.json"))
            if not is_predicted_file(path) and (entry := self.load(path).get(name)) is not None
        ]
        return min(others, key=lambda e: len(differences(e.environment, environment)), default=None)

    def load(self, path: Path) -> Mapping[str, Entry]:
        """All entries of one file; none if there is no such file.

        Raises:
            BaselineError: the file cannot be read, is no JSON, or is not one of ours.
        """
        if path not in self._files:
            self._files[path] = read_file(path)
        return self._files[path]

    def check_writable(self) -> None:
        """Make sure that baselines could be saved, before anybody waits for a measurement.

        Raises:
            BaselineError: the directory cannot be made or written to.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.directory):
                pass
        except OSError as error:
            raise unwritable(self.directory, error) from error

    def save(
        self, entries: Mapping[str, Entry], successor: Callable[[str, Entry | None, Entry], Entry] | None = None
    ) -> list[Path]:
        """Add or replace the entries of cases (node id -> entry); all others stay. Returns the files written.

        ``successor(case, old, new)`` says what takes the place of what stands in the file by then, if not ``new``.

        Raises:
            BaselineError: a file cannot be read first, or cannot be written.
        """
        by_path: dict[Path, list[str]] = {}
        for case, entry in entries.items():
            by_path.setdefault(self.path_for(case, entry.environment), []).append(case)
        with self._writing():
            for path, cases in by_path.items():
                stored = dict(self.load(path))
                for case in cases:
                    name, new = name_of(case), entries[case]
                    stored[name] = new if successor is None else successor(case, stored.get(name), new)
                write_file(path, stored)
                self._files.pop(path)
        return sorted(by_path)

    def remove(self, names: Mapping[Path, Collection[str]]) -> dict[Path, list[str]]:
        """Remove cases, named as in their files, and files that hold no others. Returns what was there to remove.

        Raises:
            BaselineError: a file cannot be read first, or cannot be written.
        """
        removed: dict[Path, list[str]] = {}
        with self._writing():
            for path, unwanted in names.items():
                stored = self.load(path)
                kept = {name: entry for name, entry in stored.items() if name not in unwanted}
                removed[path] = sorted(stored.keys() - kept.keys())
                if kept and removed[path]:
                    write_file(path, kept)
                elif removed[path]:
                    delete_file(path)
                self._files.pop(path)
        return removed

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Keep other processes from writing between our reading and our writing, and forget what was read before."""
        with contextlib.ExitStack() as stack:
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(self.directory))
            except OSError as error:
                raise unwritable(self.directory, error) from error
            self._files.clear()
            yield


def module_of(case: str) -> str:
    """The file's name: ``tests/perf/test_x.py::test_y[a]`` -> ``tests.perf.test_x``, so that no names collide."""
    module = case.split("::", 1)[0].removesuffix(".py")
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
