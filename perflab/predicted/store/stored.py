"""The files of predictions in a directory of baselines, for pruning and joining."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from perflab.predicted.store.predictions import PredictedStore
from perflab.results.predicted import PredictedBaseline
from perflab.store.case_files import Part, case_at
from perflab.store.json_files import PREDICTED
from perflab.store.stale import Stored, StoredFile


def stored(directory: Path, environments: object = None) -> Iterator[StoredFile]:
    """Yield the files of every GPU; ``environments`` is ignored, since predictions belong to no machine."""
    store = PredictedStore(directory)
    for path in store.paths():
        yield StoredFile(path, store, lambda path=path: _entries(store, path))  # type: ignore[misc]


def _entries(store: PredictedStore, path: Path) -> dict[str, Stored]:
    return {name: Stored(True, one.recorded, one.commit) for name, one in store.load(path).items()}


def join(paths: Sequence[Path]) -> Part:
    """Join files of predictions: keep the baseline recorded last for each case and GPU.

    Raises:
        BaselineError: a file is damaged or foreign.
    """
    joined: dict[str, dict[str, PredictedBaseline]] = {}
    for path in paths:
        cases = joined.setdefault(path.parent.name.removeprefix(PREDICTED), {})
        for name, baseline in PredictedStore(path.parent.parent).load(path).items():
            case = case_at(path, name)
            if case not in cases or baseline.recorded >= cases[case].recorded:
                cases[case] = baseline

    def write(output: Path) -> set[Path]:
        return {file for gpu, cases in joined.items() for file in PredictedStore(output).save(gpu, cases)}

    return Part(sum(map(len, joined.values())), write)
