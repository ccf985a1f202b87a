"""Predicted baselines: ``predicted-<gpu>/<test module>.json``, beside the measured ones.

A file is named after its test module, as a file of measured baselines is, and its folder after the predicted GPU: the
machine that made the prediction does not matter. ``predictions_file.py`` defines a file's contents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from perflab.base.data import changed
from perflab.predicted.store.predictions_file import folder_of, read_predicted, write_predicted
from perflab.results.predicted import PredictedBaseline
from perflab.store.case_files import CaseFiles, module_of, name_of
from perflab.store.json_files import PREDICTED, writable


class PredictedStore(CaseFiles[PredictedBaseline]):
    """The predicted baselines in the baselines directory."""

    def path_for(self, gpu: str, case: str) -> Path:
        """Return the path of the file that holds the case's baseline, or would hold it."""
        return self.directory / folder_of(gpu) / f"{module_of(case)}.json"

    def of_module(self, gpu: str, module: str) -> Mapping[str, PredictedBaseline]:
        """Return all baselines of a test module by case name; ``module`` is spelled as in file names.

        Raises:
            BaselineError: the file is damaged or foreign.
        """
        return self.load(self.directory / folder_of(gpu) / f"{module}.json")

    def paths(self) -> list[Path]:
        """Return the paths of all existing files, of every GPU."""
        return sorted(self.directory.glob(f"{PREDICTED}*/*.json"))

    def baseline(self, gpu: str, case: str) -> PredictedBaseline | None:
        """Return the case's baseline for that GPU; None if there is none.

        Raises:
            BaselineError: the file is damaged or foreign.
        """
        return self.load(self.path_for(gpu, case)).get(name_of(case))

    def check(self, gpu: str, cases: Iterable[str]) -> None:
        """Read the existing baselines of these cases, so that errors show before a prediction begins.

        Raises:
            BaselineError: a file is damaged or foreign.
        """
        for case in cases:
            self.load(self.path_for(gpu, case))

    def save(self, gpu: str, baselines: Mapping[str, PredictedBaseline]) -> list[Path]:
        """Add or replace the baselines of cases (by node id), keep all others, and return the paths of the files.

        A baseline with unchanged contents stays as it was saved, date and commit included, unless a reason is given.

        Raises:
            BaselineError: a file cannot be read before the change, or cannot be written.
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
    """Whether two baselines are equal except for date, commit and reason."""
    return changed(one, recorded="", commit=None, reason=None) == changed(other, recorded="", commit=None, reason=None)
