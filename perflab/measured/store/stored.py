"""The files of measured baselines in a directory, as pruning and joining see them: exact quantities, and times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from perflab.environment import differing, exact_environment, exact_slug, slug
from perflab.measured.judge.exact import DECIDES
from perflab.measured.records import Entry
from perflab.measured.store.exact import ExactStore, Variants
from perflab.measured.store.times import BaselineStore
from perflab.records import Environment
from perflab.store.join import Part, case_at
from perflab.store.json_files import is_exact_file
from perflab.store.stale import Stored, StoredFile


def stored(directory: Path, environments: Sequence[Environment]) -> Iterator[StoredFile]:
    """Files of these environments: times first."""
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
    return {name: Stored(one.parameters, one.environment == environment) for name, one in store.load(path).items()}


def _exact(store: ExactStore, path: Path, environment: Environment) -> dict[str, Stored]:
    here = exact_environment(environment)

    def is_ours(variants: Variants) -> bool:
        return any(not differing(one.environment, here).keys() & set(DECIDES) for one in variants)

    return {name: Stored(ones[0].parameters, is_ours(ones)) for name, ones in store.load(path).items()}


def join(paths: Sequence[Path]) -> Part:
    """Of each case and environment what was recorded last.

    Raises:
        BaselineError: a file is damaged or foreign.
    """
    times: dict[str, dict[str, Entry]] = {}
    exact: dict[str, dict[str, Variants]] = {}
    for path in paths:
        if is_exact_file(path):
            _join_exact(path, exact)
            continue
        joined = times.setdefault(path.parent.name, {})
        for name, entry in BaselineStore(path.parent.parent).load(path).items():
            case = case_at(path, name)
            if case not in joined or entry.recorded >= joined[case].recorded:
                joined[case] = entry

    def write(output: Path) -> set[Path]:
        files = {file for entries in times.values() for file in BaselineStore(output).save(entries)}
        return files | {file for cases in exact.values() for file in ExactStore(output).put(cases)}

    # A measured case has exact quantities, and times: it is one baseline all the same.
    return Part(max(sum(map(len, exact.values())), sum(map(len, times.values()))), write)


def _join_exact(path: Path, joined: dict[str, dict[str, Variants]]) -> None:
    """Of each environment what was recorded last."""
    cases = joined.setdefault(path.parent.name, {})
    for name, variants in ExactStore(path.parent.parent).load(path).items():
        case = case_at(path, name)
        latest = {one.environment: one for one in cases.get(case, ())}
        for one in variants:
            if one.environment not in latest or one.recorded >= latest[one.environment].recorded:
                latest[one.environment] = one
        cases[case] = tuple(latest.values())
