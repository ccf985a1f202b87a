"""Stale baselines, reported after a run and removed by ``--perf-prune``. What is stale, ``gate/stale.py`` says.

Of measured ones, those of the environments that a session measures in; predicted ones belong to no machine, so those
of every GPU. Compiled kernels are not pytest's to prune: ``perflab kernels --update`` knows what is registered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from perflab.environment import differing, exact_environment, exact_slug, slug
from perflab.errors import DeviceError, PerflabError
from perflab.gate.exact import DECIDES
from perflab.gate.exact_store import ExactStore, Variants
from perflab.gate.predicted_store import PredictedStore
from perflab.gate.stale import Collection, Stored, find_stale
from perflab.gate.store import BaselineStore
from perflab.plugin.settings import Settings
from perflab.records import Entry, Environment
from perflab.units import format_names

Store = BaselineStore | ExactStore | PredictedStore
_ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


class Stale:
    """The stale baselines of one session."""

    def __init__(self, config: pytest.Config, settings: Settings, collections: Sequence[Collection | None]) -> None:
        """``collections``: what each process that collects has seen; None if one of them cannot say."""
        self._config = config
        self._settings = settings
        first = collections[0] if collections else None
        self._collection = first if all(other == first for other in collections) else None
        self._predicted = PredictedStore(settings.baselines)
        self._stores = (BaselineStore(settings.baselines), ExactStore(settings.baselines), self._predicted)

    def report(self, environments: Iterable[Environment]) -> list[str]:
        """Lines that name what is stale in the files of these environments, and in the predicted ones."""
        lines = []
        for store in self._stores:
            try:
                found = self._stale_in(store, environments)
            except PerflabError:
                continue  # a damaged file that this run had no need of
            lines += [
                f"{_counted(names)} in {self._shown(path)}: {format_names(names)} (remove: --perf-prune)"
                for path, names in found.items()
            ]
        return lines

    def prune(self, environments: Iterable[Environment], exitstatus: int) -> list[str]:
        """Remove what is stale; lines that say what was removed.

        Raises:
            PerflabError: a baseline file cannot be read or written, or there is no device to have baselines of.
        """
        if exitstatus not in _ENDED or self._collection is None:
            return ["nothing was pruned: the run did not come to its end, so nobody knows which cases there are"]
        known = list(environments) or self._here(needed=not self._predicted.paths())
        removed: dict[Path, list[str]] = {}
        for store in self._stores:
            stale = self._stale_in(store, known)
            removed |= store.remove(stale) if stale else {}
        lines = []
        for path, names in removed.items():
            said = f"removed {_counted(names)} from {self._shown(path)}: {', '.join(names)}"
            lines.append(said if path.exists() else f"{said}; it held no others, and is gone")
        return lines or ["--perf-prune: no stale baselines"]

    def _here(self, *, needed: bool) -> list[Environment]:
        """Where this session would measure, if it can; where predictions are stored, it may well have no device."""
        from perflab.environment import current_environment
        from perflab.measure.devices import resolve_device

        try:
            return [current_environment(resolve_device(self._settings.device), self._settings.machine)]
        except DeviceError:
            if needed:
                raise
            return []

    def _stale_in(self, store: Store, environments: Iterable[Environment]) -> dict[Path, list[str]]:
        """The stale ones of a store, by file."""
        found = {path: self._stale_of(path, stored) for path, stored in self._stored(store, environments)}
        return {path: names for path, names in found.items() if names}

    def _stored(self, store: Store, environments: Iterable[Environment]) -> Iterator[tuple[Path, dict[str, Stored]]]:
        """What a store holds in files that belong to these environments, or to none."""
        if isinstance(store, PredictedStore):
            for path in store.paths():
                yield path, {name: Stored(one.parameters, True) for name, one in store.load(path).items()}
            return
        for environment in dict.fromkeys(environments):
            name = exact_slug(exact_environment(environment)) if isinstance(store, ExactStore) else slug(environment)
            for path in sorted((self._settings.baselines / name).glob("*.json")):
                if isinstance(store, ExactStore):
                    yield path, {name: _exact(ones, environment) for name, ones in store.load(path).items()}
                else:
                    yield path, {name: _times(one, environment) for name, one in store.load(path).items()}

    def _stale_of(self, path: Path, entries: Mapping[str, Stored]) -> list[str]:
        if self._collection is None:
            return []
        root = self._config.rootpath
        is_ours = self._settings.baselines.resolve().is_relative_to(root.resolve())
        return find_stale(path.stem, entries, self._collection, root, is_ours=is_ours)

    def _shown(self, path: Path) -> str:
        here = self._config.invocation_params.dir
        return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _exact(variants: Variants, environment: Environment) -> Stored:
    here = exact_environment(environment)
    ours = [one for one in variants if not differing(one.environment, here).keys() & set(DECIDES)]
    return Stored(variants[0].parameters, bool(ours))


def _times(entry: Entry, environment: Environment) -> Stored:
    return Stored(entry.parameters, entry.environment == environment)


def _counted(names: Sequence[str]) -> str:
    return f"{len(names)} stale baseline{'s' * (len(names) != 1)}"
