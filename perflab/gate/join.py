"""Baselines directories that shards of one run wrote, joined entry by entry into what one run would have written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from perflab.errors import BaselineError
from perflab.gate.exact_store import ExactStore, Variants
from perflab.gate.files import PREDICTED, is_exact_file, is_predicted_file
from perflab.gate.kernel_store import KernelStore, is_kernel_file, registration_of
from perflab.gate.predicted_store import PredictedStore
from perflab.gate.store import BaselineStore
from perflab.predictions import PredictedBaseline
from perflab.records import Entry, KernelBaseline


@dataclass(frozen=True)
class Joined:
    """What was written."""

    entries: int
    files: list[Path]


def join_baselines(directories: Sequence[Path], output: Path) -> Joined:
    """Join directories into ``output``; of a case that stands in several, the entry that was recorded last.

    What ``output`` holds already takes part, and so do entries that a shard has from its checkout: an update in
    another shard is later. All is read and checked before anything is written.

    Raises:
        BaselineError: a directory is missing or holds no baselines, or a file is damaged or cannot be written.
    """
    by_folder: dict[str, dict[str, Entry]] = {}
    exact: dict[str, dict[str, Variants]] = {}
    kernels: dict[tuple[str, str], dict[str, KernelBaseline]] = {}
    predicted: dict[str, dict[str, PredictedBaseline]] = {}
    for directory in [output, *directories]:
        store = BaselineStore(directory)
        paths = sorted(directory.glob("*/*.json"))
        if not paths and directory is not output:
            problem = "holds no baselines" if directory.is_dir() else "is no directory"
            raise BaselineError(
                f"{directory} {problem}", "name what --perf-baselines named: it holds <environment>/<test module>.json"
            )
        for path in paths:
            if is_kernel_file(path):
                _join_kernels(path, kernels)
                continue
            if is_predicted_file(path):
                _join_predicted(path, predicted)
                continue
            if is_exact_file(path):
                _join_exact(path, exact)
                continue
            joined = by_folder.setdefault(path.parent.name, {})
            for name, entry in store.load(path).items():
                case = _case(path, name)
                if case not in joined or entry.recorded >= joined[case].recorded:
                    joined[case] = entry
    store = BaselineStore(output)
    store.check_writable()
    files = {file for entries in by_folder.values() for file in store.save(entries)}
    files |= {file for cases in exact.values() for file in ExactStore(output).put(cases)}
    files |= {KernelStore(output).save(*key, baselines) for key, baselines in kernels.items()}
    files |= {file for gpu, cases in predicted.items() for file in PredictedStore(output).save(gpu, cases)}
    # A measured case has exact quantities, and times: it is one baseline all the same.
    measured = max(sum(map(len, exact.values())), sum(map(len, by_folder.values())))
    entries = measured + sum(len(cases) for tier in (kernels, predicted) for cases in tier.values())
    return Joined(entries=entries, files=sorted(files))


def _case(path: Path, name: str) -> str:
    """Not the node id of what stands in a file, but one with the same place in a store."""
    return f"{unquote(path.stem)}.py::{name}"


def _join_exact(path: Path, joined: dict[str, dict[str, Variants]]) -> None:
    """Of each environment what was recorded last."""
    cases = joined.setdefault(path.parent.name, {})
    for name, variants in ExactStore(path.parent.parent).load(path).items():
        case = _case(path, name)
        latest = {one.environment: one for one in cases.get(case, ())}
        for one in variants:
            if one.environment not in latest or one.recorded >= latest[one.environment].recorded:
                latest[one.environment] = one
        cases[case] = tuple(latest.values())


def _join_predicted(path: Path, joined: dict[str, dict[str, PredictedBaseline]]) -> None:
    cases = joined.setdefault(path.parent.name.removeprefix(PREDICTED), {})
    for name, baseline in PredictedStore(path.parent.parent).load(path).items():
        case = _case(path, name)
        if case not in cases or baseline.recorded >= cases[case].recorded:
            cases[case] = baseline


def _join_kernels(path: Path, joined: dict[tuple[str, str], dict[str, KernelBaseline]]) -> None:
    for case, baseline in KernelStore(path.parent.parent).load(path).items():
        cases = joined.setdefault((registration_of(path), baseline.triton), {})
        if case not in cases or baseline.recorded >= cases[case].recorded:
            cases[case] = baseline
