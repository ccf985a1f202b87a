"""Reports stale baselines after a run; ``--perf-prune`` removes them. Finds the stale baseline of a case whose test was
moved or renamed.

Each tier says which of its files a session may prune.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from perflab.base.errors import BaselineError, DeviceError, PerflabError
from perflab.base.git import ask_git, code_of
from perflab.base.identity import file_of, without_mode
from perflab.results.records import Environment
from perflab.settings.settings import Settings
from perflab.store.case_files import case_at, path_of
from perflab.store.stale import Collection, Missing, Stored, StoredFile, find_missing, moved_from
from perflab.tiers.interface import tier, tiers
from perflab.tiers.saving import shown
from perflab.units import format_count, format_names

COLLECTION: pytest.StashKey[Collection] = pytest.StashKey()
"""The collection of this process; set when collecting has ended."""
_SAVE = "save them under their new names first: --perf-update"
_ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


class Stale:
    """The stale baselines of one session."""

    def __init__(self, config: pytest.Config, settings: Settings, collections: Sequence[Collection | None]) -> None:
        """Take the ``collections`` of all processes that collect; None stands for a process that crashed."""
        self._config = config
        self._settings = settings
        first = collections[0] if collections else None
        self._collection = first if all(other == first for other in collections) else None
        self.cases: dict[str, None] = {}
        """The stale cases that were reported, each once."""

    def report(self, environments: Iterable[Environment], compared: Container[str | None]) -> list[str]:
        """Return lines that name the stale cases in the baseline files of these environments.

        Those that moved cases were ``compared`` with, or would be, stand in lines of their own.
        """
        lines, missing = [], {}
        self.cases.clear()
        for file in self._files(environments):
            with contextlib.suppress(PerflabError):  # a damaged file that this run did not need
                missing[file] = missing_from(file, self._collection, self._config.rootpath)
        adopted = self._adopted(missing)
        for file, (names, _) in missing.items():
            self.cases |= dict.fromkeys(case_at(file.path, name) for name in names)
            moved = [name for name in names if name in adopted[file] or case_at(file.path, name) in compared]
            others = [name for name in names if name not in moved]
            for some, remedy in ((others, "remove: --perf-prune"), (moved, _SAVE)):
                if some:
                    said = f"{_counted(some)} in {shown(file.path, self._config)}"
                    lines.append(f"{said}: {format_names(some)} ({remedy})")
        return lines

    def prune(self, environments: Iterable[Environment], exitstatus: int, compared: Container[str | None]) -> list[str]:
        """Remove stale cases; return lines that name the removed and the kept cases.

        Those that moved cases were ``compared`` with, or would be, are kept.

        Raises:
            PerflabError: a baseline file cannot be read or written, or there is no device to have baselines of.
        """
        if exitstatus not in _ENDED or self._collection is None:
            return ["nothing was pruned: the run did not finish, so some cases may not have been collected"]
        collection, root = self._collection, self._config.rootpath
        files = self._files(list(environments) or self._here())
        missing = {file: missing_from(file, collection, root) for file in files}
        adopted, removed, kept = self._adopted(missing), [], []
        for file, (stale, doubtful) in missing.items():
            moved = [name for name in stale if name in adopted[file] or case_at(file.path, name) in compared]
            moved = [name for name in moved if not self._is_named(case_at(file.path, name))]
            if moved:
                place = shown(file.path, self._config)
                kept.append(f"kept in {place}, since moved cases are compared with it: {', '.join(moved)} ({_SAVE})")
            named = [name for name in doubtful if self._is_named(case_at(file.path, name))]
            unwanted = [name for name in [*stale, *named] if name not in moved]
            for path, names in file.store.remove({file.path: unwanted}).items() if unwanted else ():
                said = f"removed {_counted(names)} from {shown(path, self._config)}: {', '.join(names)}"
                removed.append(said if path.exists() else f"{said}; it held no others and was deleted")
            if others := [name for name in doubtful if name not in unwanted]:
                kept.append(
                    f"kept in {shown(file.path, self._config)}, not collected here but perhaps elsewhere: "
                    f"{', '.join(others)} (remove: --perf-prune --perf-prune-case={path_of(file.path.stem)}::NAME)"
                )
        missed = [case_at(file.path, name) for file, one in missing.items() for name in (*one.stale, *one.doubtful)]
        if self._settings.prune_case and not any(map(self._is_named, missed)):
            said = "there is no baseline of that name here whose case was not collected"
            kept.append(f"--perf-prune-case={self._settings.prune_case}: {said}")
        return [*(removed or ["--perf-prune: no stale baselines"]), *kept]

    def _adopted(self, missing: Mapping[StoredFile, Missing]) -> dict[StoredFile, set[str]]:
        """Return the stale cases of each file that a run would compare moved cases with, in whatever mode.

        A collected case may be such a moved case if nothing is stored of it in the files that are asked together.
        """
        adopted: dict[StoredFile, set[str]] = {file: set() for file in missing}
        for together in {file.together for file, one in missing.items() if one.stale}:
            entries = {file: file.entries() for file in missing if file.together == together}
            stored = {case_at(file.path, name) for file, names in entries.items() for name in names}
            places: dict[str, list[tuple[StoredFile, str]]] = {}
            for file in entries:
                for name in missing[file].stale:
                    places.setdefault(case_at(file.path, name), []).append((file, name))
            stale = {case: entries[file][name] for case, ones in places.items() for file, name in ones}
            gone = Gone(self._config, self._settings, stale)
            modes = {case.removeprefix(without_mode(case)) for case in places}
            collected = self._collection.cases if self._collection is not None else []
            new = {case + mode for case in collected for mode in modes} - stored
            for file, name in (one for was in map(gone.became, new) if was is not None for one in places[was]):
                adopted[file].add(name)
        return adopted

    def _files(self, environments: Iterable[Environment]) -> list[StoredFile]:
        found = list(environments)
        return [file for tier in tiers() for file in tier.stored(self._settings.baselines, found)]

    def _here(self) -> list[Environment]:
        """Return the environment in which this session would measure; empty if there is no device.

        Without a device there may still be baseline files that belong to no machine.

        Raises:
            DeviceError: there is neither a device nor such a file.
        """
        from perflab.devices.kinds import current_environment, resolve_device

        try:
            return [current_environment(resolve_device(self._settings.device), self._settings.machine)]
        except DeviceError:
            if not self._files([]):
                raise
            return []

    def _is_named(self, case: str) -> bool:
        """Whether ``--perf-prune-case`` names the case, or its whole test."""
        named = self._settings.prune_case
        return bool(named) and (case == named or case.startswith((f"{named}[", f"{named}::", f"{named} {{")))


def missing_from(file: StoredFile, collection: Collection | None, root: Path) -> Missing:
    """Return the cases of a baseline file that this session has not collected; empty if the collection is unknown.

    Raises:
        BaselineError: the file is damaged.
    """
    entries, is_ours = file.entries(), file.path.resolve().is_relative_to(root.resolve())
    if collection is None:
        return Missing()
    return find_missing(file.path.stem, entries, collection, root, is_ours=is_ours)


def _counted(names: Sequence[str]) -> str:
    return format_count(len(names), "stale baseline")


class Gone:
    """Stale cases, and the text of their test files and of others, by which moved and renamed tests are known."""

    def __init__(self, config: pytest.Config, settings: Settings, stale: Mapping[str, Stored]) -> None:
        """Take the ``stale`` cases by node id."""
        self._root = config.rootpath
        self._baselines = settings.baselines
        self._stale = stale
        self._text_of = functools.cache(self._read)
        self._as_saved = functools.cache(self._read_as_saved)

    def became(self, case: str) -> str | None:
        """Return the stale case that became ``case``; None if no stale case, or more than one, matches it."""
        return moved_from(case, self._stale, self._text_of)

    def _read(self, case: str) -> str | None:
        """Return the text of a case's test file; for a stale case, as the file was when its baseline was saved."""
        stored, path = self._stale.get(case), file_of(case)
        if stored is not None:
            return self._as_saved(path, stored.recorded, stored.commit)
        with contextlib.suppress(OSError):  # a node id may name no file of the project's
            return Path(self._root, path).read_text(encoding="utf-8", errors="replace")
        return None

    def _read_as_saved(self, path: str, recorded: str, commit: str | None) -> str | None:
        then = code_of("baseline", self._root.resolve(), self._baselines, recorded, commit).commit
        return ask_git(self._root, "show", f"{then or 'HEAD'}:./{path}")


class Moved:
    """The stale baselines of a tier, searched when the first new case appears."""

    def __init__(self, config: pytest.Config, settings: Settings, tier_name: str) -> None:
        self._config = config
        self._settings = settings
        self._tier = tier_name
        self._gone = functools.cache(self._look_for_gone)

    def of(self, case: str, *environments: Environment) -> str | None:
        """Return the old name under which a case without a baseline was stored; None if no stale case matches it."""
        return self._gone(environments).became(case)

    def _look_for_gone(self, environments: tuple[Environment, ...]) -> Gone:
        found: dict[str, Stored] = {}
        collection, root = self._config.stash.get(COLLECTION, None), self._config.rootpath
        for file in tier(self._tier).stored(self._settings.baselines, environments):
            with contextlib.suppress(BaselineError):  # a damaged file that this case does not need
                stale = missing_from(file, collection, root).stale
                found |= {case_at(file.path, name): file.entries()[name] for name in stale}
        return Gone(self._config, self._settings, found)
