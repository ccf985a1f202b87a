"""Predicted baselines: ``predicted-<gpu>/<test module>.json``, beside the measured ones; saved, pruned and joined.

A file is named after its test module, as a file of measured baselines is, and its folder after the predicted GPU: the
machine that made the prediction does not matter. A file is JSON that is checked on reading, one row per line, fit for
review as a diff. Most of a prediction consists of rows, a few hundred per case. Each row is a short list on its own
line. Rows are sorted by their names alone; the meaning of their columns stands once, at the file's head. Rows are
hardly indented: a file has thousands."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType

import msgspec

from perflab.base.data import Amount, Data, changed, speakable_throughout, to_plain
from perflab.base.errors import BaselineError
from perflab.predicted.judge.judge import baseline_of
from perflab.results.peak import PeakPart
from perflab.results.predicted import REAL, Cost, PredictedBaseline, PredictedCase, SavedTensors, gpu_of
from perflab.store.case_files import CaseFiles, Part, case_at, module_of, name_of
from perflab.store.json_files import PREDICTED, as_json, read_checked, writable, write_text
from perflab.store.stale import Stored, StoredFile
from perflab.tiers.saving import Saving
from perflab.units import format_count, format_names

SCHEMA = 1
WHAT = "predicted baseline"
REMEDY = "restore it (git checkout HEAD), or delete it and predict it again with --perf-update-new"
_ROWS = {
    "at_peak": "category, module, operator, bytes, blocks",
    "costs": "phase, module, operator, calls, FLOPs, bytes moved",
    "saved": "module, operator, shape, dtype, tensors, bytes",
}
"""The columns of each kind of row, written into the file for its readers."""


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
            new = baselines[case]
            new = changed(new, parameters={name: writable(value) for name, value in new.parameters.items()})
            if (
                old is None
                or new.reason
                or changed(new, recorded=old.recorded, commit=old.commit, reason=old.reason) != old
            ):
                return new
            return old

        return self._put({case: self.path_for(gpu, case) for case in baselines}, successor)

    def _read(self, path: Path) -> dict[str, PredictedBaseline]:
        return read_predicted(path)

    def _write(self, path: Path, cases: Mapping[str, PredictedBaseline]) -> None:
        gpu = path.parent.name.removeprefix(PREDICTED)
        blocks = ",\n".join(f"    {as_json(name)}: {_block(cases[name])}" for name in sorted(cases))
        rows = json.dumps(_ROWS, indent=4).replace("\n}", "\n  }")
        head = f'{{\n  "schema": {SCHEMA},\n  "gpu": {as_json(gpu)},\n  "rows": {rows},\n  "cases": {{\n'
        write_text(path, f"{head}{blocks}\n  }}\n}}\n")


_KINDS: Mapping[str, tuple[type[PeakPart | Cost | SavedTensors], tuple[str, ...]]] = MappingProxyType(
    {
        "at_peak": (PeakPart, ("category", "module", "operator", "size_bytes", "blocks")),
        "costs": (Cost, ("phase", "module", "operator", "calls", "flops", "bytes_moved")),
        "saved": (SavedTensors, ("module", "operator", "shape", "dtype", "count", "size_bytes")),
    }
)
"""The record of each kind of row, and those of its fields that are the row's columns."""


class _StoredCase(PredictedBaseline, frozen=True, kw_only=True):
    """A baseline as stored in a file: with short lists for rows."""

    at_peak: list[tuple[str, str, str, Amount, Amount]]  # type: ignore[assignment]
    costs: list[tuple[str, str, str, Amount, Amount, Amount]]  # type: ignore[assignment]
    saved: list[tuple[str, str, list[Amount], str, Amount, Amount]]  # type: ignore[assignment]
    saved_bytes: Amount


class _File(Data, frozen=True):
    """One file of predicted baselines. Cases are decoded one by one, so that an error can name its case."""

    schema: int
    gpu: str
    rows: dict[str, str]
    cases: dict[str, msgspec.Raw]


def read_predicted(path: Path) -> dict[str, PredictedBaseline]:
    """Return all baselines of a file by case name; empty if there is no such file.

    Raises:
        BaselineError: the file cannot be read, is no JSON, is no file of predicted baselines, or is another GPU's.
    """
    file = read_checked(path, _File, SCHEMA, what=WHAT, remedy=REMEDY)
    if file is None:
        return {}
    if path.parent.name != folder_of(file.gpu):
        raise BaselineError(
            f"{WHAT} file {path} is for {file.gpu}, but is in {path.parent.name}/",
            f"move it to {folder_of(file.gpu)}/, or delete it and predict it again with --perf-update-new",
        )
    found, (_, is_dry_run) = {}, gpu_of(file.gpu)
    for name, raw in file.cases.items():
        try:
            found[name] = _baseline(msgspec.json.decode(raw, type=_StoredCase))
        except msgspec.DecodeError as error:
            raise BaselineError(f"{path} is not a perflab {WHAT} file: {name}: {error}", REMEDY) from error
        lost = [quantity for quantity in REAL if is_dry_run and quantity not in found[name].real]
        if lost:
            raise BaselineError(f"{path} is damaged: {name}: it has no {format_names(lost)} in `real`", REMEDY)
    return found


def folder_of(gpu: str) -> str:
    """Return the name of the folder of a GPU's baselines: ``predicted-h100``."""
    return f"{PREDICTED}{gpu}"


def _baseline(case: _StoredCase) -> PredictedBaseline:
    rows = {
        name: [record(line="", **dict(zip(fields, row, strict=True))) for row in getattr(case, name)]
        for name, (record, fields) in _KINDS.items()
    }
    return PredictedBaseline(**{**msgspec.structs.asdict(case), **rows})


def _block(one: PredictedBaseline) -> str:
    fields = {name: value for name, value in {"saved_bytes": 0, **to_plain(one)}.items() if name not in _KINDS}
    lines = [f'      "{name}": {as_json(value)}' for name, value in sorted(fields.items())]
    for name, (_, columns) in _KINDS.items():
        lines.append(f'      "{name}": {_lines(map(attrgetter(*columns), getattr(one, name)))}')
    return "{\n" + ",\n".join(lines) + "\n    }"


def _lines(rows: Iterable[tuple[object, ...]]) -> str:
    written = [f"  {json.dumps(speakable_throughout(row), ensure_ascii=False, separators=(',', ':'))}" for row in rows]
    return "[\n" + ",\n".join(written) + "\n      ]" if written else "[]"


def stored(directory: Path, environments: object = None) -> Iterator[StoredFile]:
    """Yield the files of every GPU; ``environments`` is ignored, since predictions belong to no machine."""
    store = PredictedStore(directory)
    for path in store.paths():
        yield StoredFile(path, store, partial(_entries, store, path), path.parent.name)


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


def save(saving: Saving) -> None:
    """Save the predictions that the run was asked to save.

    Raises:
        BaselineError: a file cannot be read before the change, or cannot be written.
    """
    by_gpu: dict[str, dict[str, PredictedBaseline]] = {}
    for case, result in saving.results.items():
        if isinstance(result.outcome, PredictedCase) and saving.asks_for(result):
            now = result.outcome.now
            by_gpu.setdefault(now.place, {})[case] = baseline_of(
                now,
                recorded=saving.now,
                parameters=result.outcome.parameters,
                commit=saving.commit,
                reason=saving.settings.reason,
            )
    if not by_gpu:
        return
    store, cases = PredictedStore(saving.settings.baselines), [case for found in by_gpu.values() for case in found]
    saving.chosen += len(cases)
    paths = [path for gpu, baselines in sorted(by_gpu.items()) for path in store.save(gpu, baselines)]
    saving.mark(cases)
    saving.say(format_count(len(cases), "prediction"), paths)
