"""The files of measured baselines in a directory, for pruning and joining: exact quantities, and times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from perflab.judging.exact import DECIDES
from perflab.measured.store.exact import ExactStore
from perflab.measured.store.exact import Variants as Exacts
from perflab.results.environment import differing, exact_environment, exact_slug, slug
from perflab.results.measured import Entry, Exact
from perflab.results.records import Environment
from perflab.store.case_files import CaseFiles, Part, case_at
from perflab.store.json_files import is_exact_file
from perflab.store.stale import Stored, StoredFile
from perflab.store.times import BaselineStore
from perflab.store.times import Variants as Times

One = TypeVar("One", Entry, Exact)


def stored(directory: Path, environments: Sequence[Environment]) -> Iterator[StoredFile]:
    """Yield the files of these environments: times first, then exact quantities."""
    times, exact = BaselineStore(directory), ExactStore(directory)
    for environment in dict.fromkeys(environments):
        for path in sorted((directory / slug(environment)).glob("*.json")):
            yield StoredFile(
                path,
                times,
                lambda path=path, here=environment: _times(times, path, here),  # type: ignore[misc]
            )
    for environment in dict.fromkeys(environments):
        for path in sorted((directory / exact_slug(exact_environment(environment))).glob("*.json")):
            yield StoredFile(
                path,
                exact,
                lambda path=path, here=environment: _exact(exact, path, here),  # type: ignore[misc]
            )


def _times(store: BaselineStore, path: Path, environment: Environment) -> dict[str, Stored]:
    return {
        name: Stored(all(one.environment == environment for one in ones), ones[0].recorded, ones[0].commit)
        for name, ones in store.load(path).items()
    }


def _exact(store: ExactStore, path: Path, environment: Environment) -> dict[str, Stored]:
    here = exact_environment(environment)

    def is_ours(variants: Exacts) -> bool:
        return any(not differing(one.environment, here).keys() & set(DECIDES) for one in variants)

    return {name: Stored(is_ours(ones), ones[0].recorded, ones[0].commit) for name, ones in store.load(path).items()}


def join(paths: Sequence[Path]) -> Part:
    """Join files: keep the latest record of each case and environment.

    Raises:
        BaselineError: a file is damaged or foreign.
    """
    times: dict[str, dict[str, Times]] = {}
    exact: dict[str, dict[str, Exacts]] = {}
    for path in paths:
        directory, folder = path.parent.parent, path.parent.name
        if is_exact_file(path):
            _join(ExactStore(directory), path, exact.setdefault(folder, {}))
        else:
            _join(BaselineStore(directory), path, times.setdefault(folder, {}))

    def write(output: Path) -> set[Path]:
        files = {file for cases in times.values() for file in BaselineStore(output).put(cases)}
        return files | {file for cases in exact.values() for file in ExactStore(output).put(cases)}

    # A measured case with both exact quantities and times counts as one baseline.
    return Part(max(sum(map(len, exact.values())), sum(map(len, times.values()))), write)


def _join(store: CaseFiles[tuple[One, ...]], path: Path, joined: dict[str, tuple[One, ...]]) -> None:
    """Add a file's cases to ``joined``, keeping the latest record of each environment."""
    for name, variants in store.load(path).items():
        case = case_at(path, name)
        latest = {one.environment: one for one in joined.get(case, ())}
        for one in variants:
            if one.environment not in latest or one.recorded >= latest[one.environment].recorded:
                latest[one.environment] = one
        joined[case] = tuple(latest.values())
