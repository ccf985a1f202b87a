"""Stale baselines, reported after a run and removed by ``--perf-prune``. What is stale, ``gate/stale.py`` says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from perflab.environment import slug
from perflab.errors import PerflabError
from perflab.gate.stale import Collection, find_stale
from perflab.gate.store import BaselineStore
from perflab.plugin.settings import Settings
from perflab.records import Environment
from perflab.units import format_names

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
        """Lines that name what is stale in the files of these environments."""
        try:
            found = self._find(BaselineStore(self._settings.baselines), environments)
        except PerflabError:
            return []  # a damaged file that this run had no need of
        return [
            f"{_counted(names)} in {self._shown(path)}: {format_names(names)} (remove: --perf-prune)"
            for path, names in found.items()
        ]

    def prune(self, environments: Iterable[Environment], exitstatus: int) -> list[str]:
        """Remove what is stale; lines that say what was removed.

        Raises:
            PerflabError: a baseline file cannot be read or written, or there is no device to have baselines of.
        """
        if exitstatus not in _ENDED or self._collection is None:
            return ["nothing was pruned: the run did not come to its end, so nobody knows which cases there are"]
        known = list(environments)
        store = BaselineStore(self._settings.baselines)
        if not known:
            from perflab.environment import current_environment
            from perflab.measure.devices import resolve_device

            known = [current_environment(resolve_device(self._settings.device))]
        removed = store.remove(self._find(store, known))
        lines = []
        for path, names in removed.items():
            said = f"removed {_counted(names)} from {self._shown(path)}: {', '.join(names)}"
            lines.append(said if path.exists() else f"{said}; it held no others, and is gone")
        return lines or ["--perf-prune: no stale baselines"]

    def _find(self, store: BaselineStore, environments: Iterable[Environment]) -> dict[Path, list[str]]:
        collection, root = self._collection, self._config.rootpath
        if collection is None:
            return {}
        is_ours = self._settings.baselines.resolve().is_relative_to(root.resolve())
        found = {}
        for name, environment in {slug(environment): environment for environment in environments}.items():
            for path in sorted((self._settings.baselines / name).glob("*.json")):
                entries = store.load(path)
                names = find_stale(path.stem, entries, collection, environment, root, is_ours=is_ours)
                if names:
                    found[path] = names
        return found

    def _shown(self, path: Path) -> str:
        here = self._config.invocation_params.dir
        return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _counted(names: Sequence[str]) -> str:
    return f"{len(names)} stale baseline{'s' * (len(names) != 1)}"
