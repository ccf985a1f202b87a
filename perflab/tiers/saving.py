"""Saves baselines at the end of a run: the code that the tiers share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import pytest

from perflab.base.data import changed
from perflab.base.git import current_commit
from perflab.results.records import Verdict
from perflab.results.result import Result
from perflab.settings.settings import Settings, TotalBudget

_HAS_NOTHING_SAVED = (Verdict.NEW, Verdict.INCOMPARABLE, Verdict.OOM)


@dataclass
class Saving:
    """The results of a run while tiers save them as baselines, with the notes about saving."""

    config: pytest.Config
    settings: Settings
    results: dict[str, Result]
    """The results by node id; saved results are marked as saved."""
    budget: TotalBudget
    interrupted: bool
    """Whether the run was interrupted, so that nothing more is measured."""
    notes: list[str] = field(default_factory=list)
    chosen: int = 0
    """The number of results that were chosen for saving, whether they could be saved or not."""
    fails: bool = False
    """Whether saving a chosen result was refused."""

    @cached_property
    def commit(self) -> str | None:
        """The current commit of the project; None without git."""
        return current_commit(self.config.rootpath, self.settings.baselines)

    @cached_property
    def now(self) -> str:
        """The current date and time, in ISO 8601."""
        return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"

    def asks_for(self, result: Result) -> bool:
        """Whether an option asks to save a result; a result with the verdict ``failed`` is never saved."""
        if result.judgement.verdict is Verdict.FAILED:
            return False
        if self.settings.update:
            return True
        return self.settings.update_new and result.judgement.verdict in _HAS_NOTHING_SAVED

    def mark(self, cases: Iterable[str]) -> None:
        """Mark the results of these cases as saved."""
        self.results |= {case: changed(self.results[case], saved=True) for case in cases}

    def say(self, what: str, paths: Sequence[Path]) -> None:
        """Add a note about what was saved to which files."""
        self.notes.append(f"saved {what} to {', '.join(shown(path, self.config) for path in paths)}")


def shown(path: Path, config: pytest.Config) -> str:
    """Return a path as the user would write it: relative to the directory in which pytest was started, if inside."""
    here = config.invocation_params.dir
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
