"""Reports stale baselines after a run; ``--perf-prune`` removes them.

Each tier says which of its files a session may prune.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from perflab.errors import DeviceError, PerflabError
from perflab.plugin.config.settings import Settings
from perflab.plugin.session.saving import shown
from perflab.records import Environment
from perflab.store.stale import Collection, StoredFile, find_stale
from perflab.tiers import tiers
from perflab.units import format_count, format_names

_ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


class Stale:
    """The stale baselines of one session."""

    def __init__(self, config: pytest.Config, settings: Settings, collections: Sequence[Collection | None]) -> None:
        """``collections``: what each process that collects has seen; None if one of them cannot say."""
        self._config = config
        self._settings = settings
        first = collections[0] if collections else None
        self._collection = first if all(other == first for other in collections) else None

    def report(self, environments: Iterable[Environment]) -> list[str]:
        """Lines that name what is stale in the files that these environments prune."""
        lines = []
        for file in self._files(environments):
            try:
                names = self._stale_of(file)
            except PerflabError:
                continue  # a damaged file that this run had no need of
            if names:
                said = f"{_counted(names)} in {shown(file.path, self._config)}"
                lines.append(f"{said}: {format_names(names)} (remove: --perf-prune)")
        return lines

    def prune(self, environments: Iterable[Environment], exitstatus: int) -> list[str]:
        """Remove what is stale; lines that say what was removed.

        Raises:
            PerflabError: a baseline file cannot be read or written, or there is no device to have baselines of.
        """
        if exitstatus not in _ENDED or self._collection is None:
            return ["nothing was pruned: the run did not finish, so some cases may not have been collected"]
        files = self._files(list(environments) or self._here())
        stale = {file: names for file in files if (names := self._stale_of(file))}
        lines = []
        for file, names in stale.items():
            for path, removed in file.store.remove({file.path: names}).items():
                said = f"removed {_counted(removed)} from {shown(path, self._config)}: {', '.join(removed)}"
                lines.append(said if path.exists() else f"{said}; it held no others and was deleted")
        return lines or ["--perf-prune: no stale baselines"]

    def _files(self, environments: Iterable[Environment]) -> list[StoredFile]:
        found = list(environments)
        return [file for tier in tiers() for file in tier.stored(self._settings.baselines, found)]

    def _here(self) -> list[Environment]:
        """Where this session would measure. Without a device, there may be files that belong to no machine.

        Raises:
            DeviceError: there is neither.
        """
        from perflab.environment import current_environment
        from perflab.measure.devices import resolve_device

        try:
            return [current_environment(resolve_device(self._settings.device), self._settings.machine)]
        except DeviceError:
            if not self._files([]):
                raise
            return []

    def _stale_of(self, file: StoredFile) -> list[str]:
        entries = file.entries()
        if self._collection is None:
            return []
        root = self._config.rootpath
        is_ours = self._settings.baselines.resolve().is_relative_to(root.resolve())
        return find_stale(file.path.stem, entries, self._collection, root, is_ours=is_ours)


def _counted(names: Sequence[str]) -> str:
    return format_count(len(names), "stale baseline")
