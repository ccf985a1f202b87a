"""Predicted baselines: ``predicted-<gpu>/<test module>.json``, beside the measured ones.

A file is named for its test module as a measured one is, and its folder for the GPU that was predicted: the machine
that predicted it does not matter. What is in a file, ``predicted_file.py`` knows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from perflab.gate.files import PREDICTED, delete_file, unwritable, writable
from perflab.gate.locked import locked
from perflab.gate.predicted_file import folder_of, read_predicted, write_predicted
from perflab.gate.store import module_of, name_of
from perflab.predictions import PredictedBaseline
from perflab.records import changed


class PredictedStore:
    """The baselines directory, as far as it holds predictions. Files are read once and when first needed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: dict[Path, dict[str, PredictedBaseline]] = {}

    def path_for(self, gpu: str, case: str) -> Path:
        """The file in which the case's baseline lives, or would."""
        return self.directory / folder_of(gpu) / f"{module_of(case)}.json"

    def of_module(self, gpu: str, module: str) -> Mapping[str, PredictedBaseline]:
        """All baselines of a test module, named as its files are.

        Raises:
            BaselineError: the file is damaged or foreign.
        """
        return self.load(self.directory / folder_of(gpu) / f"{module}.json")

    def paths(self) -> list[Path]:
        """All files that are there, of every GPU."""
        return sorted(self.directory.glob(f"{PREDICTED}*/*.json"))

    def baseline(self, gpu: str, case: str) -> PredictedBaseline | None:
        """The case's baseline for that GPU, or None.

        Raises:
            BaselineError: the file is damaged or foreign.
        """
        return self.load(self.path_for(gpu, case)).get(name_of(case))

    def load(self, path: Path) -> Mapping[str, PredictedBaseline]:
        """All baselines of one file; none if there is no such file.

        Raises:
            BaselineError: the file cannot be read, is no JSON, or is not one of ours.
        """
        if path not in self._files:
            self._files[path] = read_predicted(path)
        return self._files[path]

    def check(self, gpu: str, cases: Iterable[str]) -> None:
        """Read what there is of these cases, before anybody waits for a prediction.

        Raises:
            BaselineError: a file is damaged or foreign.
        """
        for case in cases:
            self.load(self.path_for(gpu, case))

    def save(self, gpu: str, baselines: Mapping[str, PredictedBaseline]) -> list[Path]:
        """Add or replace the baselines of cases (by node id); all others stay. Returns the files they are in.

        One that says what it said stays as it was saved, date and commit included, unless a reason is given.

        Raises:
            BaselineError: a file cannot be read first, or cannot be written.
        """
        by_path: dict[Path, list[str]] = {}
        for case in baselines:
            by_path.setdefault(self.path_for(gpu, case), []).append(case)
        with self._writing():
            for path, cases in by_path.items():
                stored = dict(self.load(path))
                for case in cases:
                    name, new = name_of(case), _as_written(baselines[case])
                    if name not in stored or new.reason or not _say_the_same(stored[name], new):
                        stored[name] = new
                write_predicted(path, gpu, stored)
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
                kept = {name: one for name, one in stored.items() if name not in unwanted}
                removed[path] = sorted(stored.keys() - kept.keys())
                if kept and removed[path]:
                    write_predicted(path, path.parent.name.removeprefix(PREDICTED), kept)
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


def _as_written(one: PredictedBaseline) -> PredictedBaseline:
    return changed(one, parameters={name: writable(value) for name, value in one.parameters.items()})


def _say_the_same(one: PredictedBaseline, other: PredictedBaseline) -> bool:
    """Whether all but when and at which commit they were saved, and why, is the same."""
    return changed(one, recorded="", commit=None, reason=None) == changed(other, recorded="", commit=None, reason=None)
