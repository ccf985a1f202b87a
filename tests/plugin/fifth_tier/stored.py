"""The baselines of traced cases, and the readings of their files in a history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from perflab.results.traced import TracedCase

from perflab.base.data import Amount, Data, to_json
from perflab.results.readings import (
    Level,
    Narrow,
    Numbers,
    WrittenBaselines,
    WrittenResult,
    basis_text,
    exact_readings,
    places_of,
)
from perflab.store.case_files import CaseFiles, Part, case_at, module_of, name_of
from perflab.store.json_files import read_checked, write_text
from perflab.store.stale import Stored, StoredFile
from perflab.tiers.saving import Saving

_PLACES = places_of(None, basis_text({"operators": "any machine"}))


class Kept(Data, frozen=True):
    """The accepted calls of a case."""

    operators: dict[str, Amount]
    recorded: str
    commit: str | None = None
    reason: str | None = None


class _File(Data, frozen=True):
    schema: int
    cases: dict[str, Kept]


class TracedStore(CaseFiles[Kept]):
    """The traced baselines: ``traced-operators/<test module>.json``."""

    def path_for(self, case: str) -> Path:
        """Return the path of a case's file."""
        return self.directory / "traced-operators" / f"{module_of(case)}.json"

    def baseline(self, case: str) -> dict[str, int] | None:
        """Return a case's accepted calls; None if it has none."""
        found = self.load(self.path_for(case)).get(name_of(case))
        return found.operators if found is not None else None

    def save(self, kept: Mapping[str, Kept]) -> list[Path]:
        """Save the cases, and return the files."""
        return self._put({case: self.path_for(case) for case in kept}, lambda case, _: kept[case])

    def _read(self, path: Path) -> dict[str, Kept]:
        file = read_checked(path, _File, 1, what="traced baseline", remedy="delete it")
        return dict(file.cases) if file is not None else {}

    def _write(self, path: Path, cases: Mapping[str, Kept]) -> None:
        write_text(path, to_json(_File(1, dict(cases))).decode())


def save(saving: Saving) -> None:
    """Save the traced results that the run asks for."""
    chosen = {
        case: Kept(one.outcome.operators, saving.now, saving.commit, saving.settings.reason)
        for case, one in saving.results.items()
        if isinstance(one.outcome, TracedCase) and saving.asks_for(one)
    }
    if chosen:
        saving.chosen += len(chosen)
        paths = TracedStore(saving.settings.baselines).save(chosen)
        saving.mark(chosen)
        saving.say("traced operators", paths)


def stored(directory: Path) -> Iterator[StoredFile]:
    """Yield the files that a session may prune."""
    store = TracedStore(directory)
    for path in sorted(directory.glob("traced-*/*.json")):

        def entries(path: Path = path) -> dict[str, Stored]:
            return {name: Stored(True, one.recorded, one.commit) for name, one in store.load(path).items()}

        yield StoredFile(path, store, entries)


def join(paths: Sequence[Path]) -> Part:
    """Join files; of a case that is in several, the entry that was recorded last is kept."""
    found: dict[str, Kept] = {}
    for path in paths:
        for name, one in TracedStore(path.parent.parent).load(path).items():
            case = case_at(path, name)
            if case not in found or one.recorded >= found[case].recorded:
                found[case] = one
    return Part(len(found), lambda output: set(TracedStore(output).save(found)))


class _Traced(Narrow):
    operators: dict[str, Amount] = {}


class _Accepted(_Traced):
    recorded: str = ""
    reason: str | None = None


def numbers_of(result: WrittenResult) -> Numbers:
    """Return the calls of a traced result."""
    traced = msgspec.json.decode(result.outcome, type=_Traced)
    return Numbers(exact_readings({}, traced.operators), _PLACES)


def levels_of(file: WrittenBaselines) -> Iterator[Level]:
    """Yield the accepted calls of a file's cases."""
    for name, raw in file.cases.items():
        one = msgspec.json.decode(raw, type=_Accepted)
        yield Level(name, "", _PLACES, one.recorded, one.reason, exact_readings({}, one.operators))
