"""The tiers: the ways in which a case comes to a verdict. A new tier is a folder, and a line in this module.

The code that runs, saves, prunes, joins and shows cases calls a tier through the interface ``Tier``. This module loads
only the tiers' records; a tier's other modules are loaded with its first case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, cast, get_args

from perflab.base.grouping import groups_of
from perflab.results.predicted import PredictedCase
from perflab.results.result import Outcome, names, record_of, tag_of

if TYPE_CHECKING:
    import argparse

    import pytest
    from typing_extensions import override as override

    from perflab.results.readings import Level, Numbers, WrittenBaselines, WrittenResult
    from perflab.results.records import Environment, Judgement, Policy
    from perflab.results.result import Document, Result
    from perflab.settings.given import Given
    from perflab.settings.settings import Settings
    from perflab.store.case_files import Part
    from perflab.store.stale import StoredFile
    from perflab.tables.contents import Case
    from perflab.tables.lines import Line, Section
    from perflab.tables.view import View
    from perflab.tiers.job import Job
    from perflab.tiers.saving import Saving
else:  # typing has it from Python 3.12 on; only mypy reads it, to report a method that overrides nothing

    def override(method):
        """Return the method."""
        return method


Run = Callable[["argparse.Namespace"], int]
"""The function that runs a command of ``perflab``; it returns the exit status."""


class Tier:
    """The interface of a tier. A tier's module ``tier`` has an instance, ``TIER``, of a class with the tier's methods.

    A method imports its modules when it is called: each run has all tiers, and uses one or two.
    """

    folder: str | None = None
    """The prefix of the names of the tier's baseline folders; None if the tier stores none."""
    unit = "case"
    """The word for a test that uses the tier's fixture."""

    def commands(self) -> dict[str, Callable[[argparse.ArgumentParser], Run]]:
        """Return the tier's commands of ``perflab``, by name."""
        return {}

    # --- a run's cases --------------------------------------------------------------------------------------

    def settings(self, given: Given) -> object:
        """Return the tier's own settings, read and checked; their type identifies the tier. None if it has none.

        Raises:
            SettingError: a value cannot be used.
        """
        return None

    def begin(self, job: Job) -> None:
        """Prepare a fresh process for its job, before any user code is imported."""

    def spread(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize a test that uses the tier's fixture."""

    def announce(self, settings: Settings, cases: int) -> list[str]:
        """Return lines to show before the first test: the tier's work for ``cases`` cases without a tier's fixture."""
        return []

    def run(
        self, config: pytest.Config, settings: Settings, items: list[pytest.Item], job: Job | None
    ) -> list[pytest.Item]:
        """Prepare to run this tier's cases; return the cases of other tiers. ``job``: the job of a fresh process.

        Raises:
            PerflabError: the first problem found that would otherwise fail later.
        """
        return items

    # --- its results ----------------------------------------------------------------------------------------

    def explain(self, result: Result, accept: str | None) -> str:
        """Return the text that a failing test shows; ``accept`` is the command that accepts the change, if any."""
        raise NotImplementedError

    def lines(self, document: Document, results: Sequence[Result], width: int, view: View) -> list[Line]:
        """Return the tables of these results, as text."""
        raise NotImplementedError

    def sections(self, document: Document, results: Sequence[Result], view: View) -> list[Section]:
        """Return the sections of these results for a report page."""
        raise NotImplementedError

    def notes(self, document: Document, results: Sequence[Result], width: int) -> list[str]:
        """Return lines below all tables, on facts that the tables cannot show."""
        return []

    def describe(self, result: Result, case: Case) -> Case:
        """Return a report's case with the tier's information added, such as its numbers."""
        return case

    def judge_runs(self, before: Result, now: Result, policy: Policy) -> Judgement | None:
        """Judge ``now`` against the result of another run as the baseline; None if either result has no numbers."""
        return None

    def data(self, document: Document, results: Sequence[Result]) -> dict[str, object]:
        """Return comparisons between the results as plain data for a report, by key: studies, side by side."""
        return {}

    def sets_beside(self, results: Sequence[Result], parameter: str) -> bool:
        """Whether a table shows levels of ``parameter`` side by side."""
        return False

    def own_columns(self, results: Sequence[Result]) -> list[str]:
        """Return the names of the results' columns besides the standard ones, such as their phases."""
        return []

    def take_turns(self, saving: Saving) -> None:
        """Measure rows that the tier's tables compare interleaved, once all cases have been measured."""

    # --- files of the past ----------------------------------------------------------------------------------

    def numbers(self, result: WrittenResult) -> Numbers | None:
        """Return the numbers of a result in a file, for a history; None if it has none."""
        return None

    def levels(self, file: WrittenBaselines) -> Iterator[Level]:
        """Yield the levels that a version of one of the tier's baseline files accepts, for a history."""
        return iter(())

    # --- what is stored -------------------------------------------------------------------------------------

    def save(self, saving: Saving) -> None:
        """Save this tier's results, as far as the run was asked to."""

    def stored(self, directory: Path, environments: Sequence[Environment]) -> Iterator[StoredFile]:
        """Yield the tier's files in a directory of baselines that a session in these environments may prune."""
        return iter(())

    def join(self, paths: Sequence[Path]) -> Part:
        """Join the tier's files of several directories.

        Raises:
            BaselineError: a file is damaged or foreign.
        """
        raise NotImplementedError


def tier(name: str) -> Tier:
    """Return a tier by its name."""
    return cast(Tier, resolve_name(f"perflab.{name}.tier:TIER"))


def tiers() -> list[Tier]:
    """Return all tiers, in the order of tables."""
    return [tier(name) for name in names()]


def by_folder() -> dict[str, Tier]:
    """Return prefix of baseline folders -> tier, for tiers that store baselines; the longest matching prefix counts."""
    return {one.folder: one for one in tiers() if one.folder is not None}


def tier_of(result: Result) -> Tier:
    """Return the tier that shows and explains a result."""
    return tier(_shown_by(result))


@cache
def shown_by(name: str) -> Tier:
    """Return the tier that shows the records of the tier of this name: mostly itself.

    Raises:
        ValueError: there is no such tier.
    """
    return tier(next(tag_of(kind) for kind in get_args(Outcome) if issubclass(record_of(name), kind)))


def by_table(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Group results by the name of the tier whose tables show them, in the order of tables."""
    found = groups_of(results, _shown_by)
    return {name: found[name] for name in names() if name in found}


def _shown_by(result: Result) -> str:
    """Return the name of the tier that shows a result: the first one whose record class matches the outcome.

    Without an outcome, it is the predicting tier if the result has a place, else the first tier.
    """
    if result.outcome is None and result.place is not None:
        return tag_of(PredictedCase)
    kinds = [kind for kind in get_args(Outcome) if isinstance(result.outcome, kind)] or get_args(Outcome)
    return tag_of(kinds[0])
