"""Finds the baselines of a case whose test was moved or renamed, which are stored under the case's old name."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path

import pytest

from perflab.base.commit import code_of
from perflab.base.errors import BaselineError
from perflab.base.git import ask_git
from perflab.base.identity import file_of
from perflab.results.records import Environment
from perflab.running.session.prune import COLLECTION, missing_from
from perflab.settings.settings import Settings
from perflab.store.case_files import path_of
from perflab.store.stale import Stored, moved_from
from perflab.tiers.interface import tier


class Moved:
    """The stale baselines of a tier, searched when the first new case appears."""

    def __init__(self, config: pytest.Config, settings: Settings, tier_name: str) -> None:
        self._config = config
        self._baselines = settings.baselines
        self._tier = tier_name
        self._gone = functools.cache(self._look_for_gone)
        self._text_of = functools.cache(self._read)

    def of(self, case: str, *environments: Environment) -> str | None:
        """Return the old name under which a case without a baseline was stored; None if no stale case matches it."""
        gone = self._gone(environments)
        return moved_from(case, gone, lambda one: self._text_of(one, gone.get(one)))

    def _look_for_gone(self, environments: tuple[Environment, ...]) -> dict[str, Stored]:
        found: dict[str, Stored] = {}
        collection, root = self._config.stash.get(COLLECTION, None), self._config.rootpath
        for file in tier(self._tier).stored(self._baselines, environments):
            with contextlib.suppress(BaselineError):  # a damaged file that this case does not need
                stale = missing_from(file, collection, root).stale
                found |= {f"{path_of(file.path.stem)}::{name}": file.entries()[name] for name in stale}
        return found

    def _read(self, case: str, stored: Stored | None) -> str | None:
        """Return the text of a case's test file; for a stale case, as the file was when its baseline was saved."""
        root, path = self._config.rootpath, file_of(case)
        if stored is None:
            return Path(root, path).read_text(encoding="utf-8", errors="replace")
        then = code_of("baseline", root.resolve(), self._baselines, stored.recorded, stored.commit).commit or "HEAD"
        return ask_git(root, "show", f"{then}:./{path}")
