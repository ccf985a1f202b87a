"""Stored times: ``<environment>/<test module>.json``. What is in a file, ``times_file.py`` knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from perflab.environment import differences, slug
from perflab.measured.records import Entry
from perflab.measured.store.times_file import Variants, read_file, write_file
from perflab.records import Environment
from perflab.store.case_files import CaseFiles, module_of, name_of
from perflab.store.json_files import is_exact_file, is_predicted_file


class BaselineStore(CaseFiles[Variants]):
    """A directory of baselines, as far as it holds times.

    Args:
        directory: where they are.
        folder_of: names the folder of an environment's times.
    """

    def __init__(self, directory: Path, folder_of: Callable[[Environment], str] = slug) -> None:
        super().__init__(directory)
        self._folder_of = folder_of

    def path_for(self, case: str, environment: Environment) -> Path:
        """The file in which the case's times stand, or would."""
        return self.directory / self._folder_of(environment) / f"{module_of(case)}.json"

    def entries(self, case: str, environment: Environment) -> list[Entry]:
        """All times of a case, of every environment: those of this one first, then the closest.

        Raises:
            BaselineError: a file is damaged or foreign.
        """
        name, own = name_of(case), self.path_for(case, environment)
        paths = [own, *(path for path in sorted(self.directory.glob(f"*/{module_of(case)}.json")) if path != own)]
        found = [
            entry
            for path in paths
            if not (is_predicted_file(path) or is_exact_file(path))
            for entry in self.load(path).get(name, ())
        ]
        return sorted(found, key=lambda entry: len(differences(entry.environment, environment)))

    def save(
        self, entries: Mapping[str, Entry], successor: Callable[[str, Entry | None, Entry], Entry] | None = None
    ) -> list[Path]:
        """Add or replace the entries of cases (node id -> entry) in their environments. Returns the files written.

        All others stay. ``successor(case, old, new)`` says what to store, if not ``new``, where the file holds ``old``
        by then: of the same environment, or of the closest one, which stays beside it.

        Raises:
            BaselineError: a file cannot be read first, or cannot be written.
        """

        def put(case: str, stored: Variants | None) -> Variants:
            new, known = entries[case], stored or ()
            beside = [one for one in known if one.environment != new.environment]
            if successor is not None:
                old = min(known, key=lambda one: len(differences(one.environment, new.environment)), default=None)
                new = successor(case, old, new)
            return (*beside, new)

        return self._put({case: self.path_for(case, entry.environment) for case, entry in entries.items()}, put)

    def put(self, cases: Mapping[str, Variants]) -> list[Path]:
        """Store all times of cases, of environments that share a folder. Returns the files.

        Raises:
            BaselineError: a file cannot be read first, or cannot be written.
        """
        paths = {case: self.path_for(case, ones[0].environment) for case, ones in cases.items()}
        return self._put(paths, lambda case, _: cases[case])

    def _read(self, path: Path) -> dict[str, Variants]:
        return read_file(path)

    def _write(self, path: Path, cases: Mapping[str, Variants]) -> None:
        write_file(path, cases)
