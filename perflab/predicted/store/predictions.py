"""Predicted baselines: ``predicted-<gpu>/<test module>.json``, beside the measured ones.

A file is named for its test module as a measured one is, and its folder for the GPU that was predicted: the machine
that predicted it does not matter. What is in a file, ``predictions_file.py`` knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from perflab.data import changed
from perflab.predicted.records import PredictedBaseline
from perflab.predicted.store.predictions_file import folder_of, read_predicted, write_predicted
from perflab.store.case_files import CaseFiles, module_of, name_of
from perflab.store.json_files import PREDICTED, writable


class PredictedStore(CaseFiles[PredictedBaseline]):
    """The baselines directory, as far as it holds predictions."""

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

        def successor(case: str, old: PredictedBaseline | None) -> PredictedBaseline:
            new = _as_written(baselines[case])
            return new if old is None or new.reason or not _say_the_same(old, new) else old

        return self._put({case: self.path_for(gpu, case) for case in baselines}, successor)

    def _read(self, path: Path) -> dict[str, PredictedBaseline]:
        return read_predicted(path)

    def _write(self, path: Path, cases: Mapping[str, PredictedBaseline]) -> None:
        write_predicted(path, path.parent.name.removeprefix(PREDICTED), cases)


def _as_written(one: PredictedBaseline) -> PredictedBaseline:
    return changed(one, parameters={name: writable(value) for name, value in one.parameters.items()})


def _say_the_same(one: PredictedBaseline, other: PredictedBaseline) -> bool:
    """Whether all but when and at which commit they were saved, and why, is the same."""
    return changed(one, recorded="", commit=None, reason=None) == changed(other, recorded="", commit=None, reason=None)
