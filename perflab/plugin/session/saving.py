"""Saves baselines at the end of a run: what the tiers share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import pytest

from perflab.data import changed
from perflab.plugin.case.total_budget import TotalBudget
from perflab.plugin.config.settings import Settings
from perflab.plugin.session.commit import current_commit
from perflab.records import Verdict
from perflab.results import Result
from perflab.tiers import tiers

_HAS_NOTHING_SAVED = (Verdict.NEW, Verdict.INCOMPARABLE, Verdict.OOM)


@dataclass
class Saving:
    """A run's results on their way into baselines, and what there is to say of that."""

    config: pytest.Config
    settings: Settings
    results: dict[str, Result]
    """By node id; those that were saved are marked so here."""
    budget: TotalBudget
    interrupted: bool
    """Whether the run was: nothing more is measured then."""
    notes: list[str] = field(default_factory=list)
    chosen: int = 0
    """How many results were to be saved, whatever came of it."""
    fails: bool = False
    """Whether something that was to be saved was refused."""

    @cached_property
    def commit(self) -> str | None:
        """The commit that the project is at; None without git."""
        return current_commit(self.config.rootpath, self.settings.baselines)

    @cached_property
    def now(self) -> str:
        """The date, ISO 8601."""
        return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"

    def asks_for(self, result: Result) -> bool:
        """Whether an option says that a result is to be saved; what fails by itself is no baseline for anybody."""
        if result.judgement.verdict is Verdict.FAILED:
            return False
        if self.settings.update:
            return True
        return self.settings.update_new and result.judgement.verdict in _HAS_NOTHING_SAVED

    def mark(self, cases: Iterable[str]) -> None:
        """Note that these results are saved."""
        self.results |= {case: changed(self.results[case], saved=True) for case in cases}

    def say(self, what: str, paths: Sequence[Path]) -> None:
        """Note what was saved to which files."""
        self.notes.append(f"saved {what} to {', '.join(shown(path, self.config) for path in paths)}")

    def save(self) -> None:
        """Have each tier save what it has.

        Raises:
            BaselineError: a file cannot be read first, or cannot be written.
            KeyboardInterrupt: while replicates were measured; what there was is saved.
        """
        for one in reversed(tiers()):  # what measures further replicates comes last
            one.save(self)
        if self.settings.reason is not None and not self.chosen:
            self.notes.append("nothing was saved, so --perf-reason was not stored either")


def shown(path: Path, config: pytest.Config) -> str:
    """A path as the user would write it."""
    here = config.invocation_params.dir
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
