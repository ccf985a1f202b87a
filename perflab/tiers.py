"""The tiers: the ways in which a case comes to a verdict. A fifth one is a folder, and a line here.

What runs, saves, prunes, joins and shows cases asks a tier by the protocol of ``Tier``. This module loads the
tiers' records alone; what runs, judges and shows cases is loaded with the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, cast, get_args

from perflab.compared.records import ComparedCase
from perflab.compiled.records import CompiledCase
from perflab.measured.records import MeasuredCase
from perflab.predicted.records import PredictedCase

if TYPE_CHECKING:
    import argparse

    import pytest
    from typing_extensions import override as override

    from perflab.plugin.case.fresh_process import Job
    from perflab.plugin.config.settings import Given, Settings
    from perflab.plugin.session.saving import Saving
    from perflab.records import Environment, Judgement, Policy, TierRecord
    from perflab.report.contents import Case
    from perflab.report.lines import Line, Section
    from perflab.report.view import View
    from perflab.results import Document, Result
    from perflab.store.join import Part
    from perflab.store.stale import StoredFile
else:  # Python 3.12 has it, and only mypy reads it: in a tier's class, what overrides nothing is an error

    def override(method):
        """Return the method."""
        return method


Run = Callable[["argparse.Namespace"], int]
"""Runs a command of ``perflab``; returns its exit status."""
Outcome = MeasuredCase | ComparedCase | PredictedCase | CompiledCase
"""What a case came to, by tier, in the order of tables. A tier's name is its record's tag, and its folder's."""


class Tier:
    """What a tier can be asked for. Its module ``tier`` has one, ``TIER``, which overrides what it has to say to.

    A method loads what it calls when it is called: each run has all tiers, and uses one or two.
    """

    folder: str | None = None
    """How the folders of its baselines begin; None: it stores none."""
    unit = "case"
    """What a test with its fixture is called."""

    def commands(self) -> dict[str, Callable[[argparse.ArgumentParser], Run]]:
        """Its commands of ``perflab``, by name."""
        return {}

    # --- a run's cases --------------------------------------------------------------------------------------

    def settings(self, given: Given) -> object:
        """Its own settings, read and checked; the type says whose they are.

        Raises:
            SettingError: a value that cannot be used.
        """
        return None

    def begin(self, job: Job) -> None:
        """Prepare a fresh process for its job, before anything of the user's is imported."""

    def spread(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize a test that asks for its fixture."""

    def announce(self, settings: Settings, cases: int) -> list[str]:
        """What it does with so many cases that ask for no tier's fixture, said before the first test."""
        return []

    def run(
        self, config: pytest.Config, settings: Settings, items: list[pytest.Item], job: Job | None
    ) -> list[pytest.Item]:
        """Make ready to run those of the cases that are this tier's; returns the others. ``job``: a fresh process's.

        Raises:
            PerflabError: the first thing found that would fail late.
        """
        return items

    # --- its results ----------------------------------------------------------------------------------------

    def explain(self, result: Result, accept: str | None) -> str:
        """The text that a failing test shows; ``accept`` is the command that accepts what changed."""
        raise NotImplementedError

    def lines(self, document: Document, results: Sequence[Result], width: int, view: View) -> list[Line]:
        """The tables of these results, as text."""
        raise NotImplementedError

    def sections(self, document: Document, results: Sequence[Result], view: View) -> list[Section]:
        """The same for a page."""
        raise NotImplementedError

    def notes(self, document: Document, results: Sequence[Result], width: int) -> list[str]:
        """What the tables cannot show, as text below all of them."""
        return []

    def describe(self, result: Result, case: Case) -> Case:
        """A report's case with what the tier knows of it: its numbers above all."""
        return case

    def judge_runs(self, before: Result, now: Result, policy: Policy) -> Judgement | None:
        """A result judged by that of another run, as if it were the baseline; None where one of them has no numbers."""
        return None

    def data(self, document: Document, results: Sequence[Result]) -> dict[str, object]:
        """What the results are set beside each other for, by key: studies, side by side. Plain data for a report."""
        return {}

    def sets_beside(self, results: Sequence[Result], parameter: str) -> bool:
        """Whether a table shows levels of this parameter side by side."""
        return False

    def own_columns(self, results: Sequence[Result]) -> list[str]:
        """Names of columns that these results have besides the standard ones, such as their phases."""
        return []

    def take_turns(self, saving: Saving) -> None:
        """Measure in turns what its tables hold against each other, once all cases have been measured."""

    # --- what is stored -------------------------------------------------------------------------------------

    def save(self, saving: Saving) -> None:
        """Save what the run was asked to save of this tier's results."""

    def stored(self, directory: Path, environments: Sequence[Environment]) -> Iterator[StoredFile]:
        """The tier's files in a directory of baselines, as far as a session in these environments may prune them."""
        return iter(())

    def join(self, paths: Sequence[Path]) -> Part:
        """Join its files of several directories.

        Raises:
            BaselineError: a file is damaged or foreign.
        """
        raise NotImplementedError


def names() -> list[str]:
    """Every tier's name, in the order of tables."""
    return [_name(record) for record in get_args(Outcome)]


def tier(name: str) -> Tier:
    """A tier by its name."""
    return cast(Tier, resolve_name(f"perflab.{name}.tier:TIER"))


def tiers() -> list[Tier]:
    """All tiers, in the order of tables."""
    return [tier(name) for name in names()]


def by_folder() -> dict[str, Tier]:
    """The tiers that store baselines, by how the folders of these begin; the longest beginning counts."""
    return {one.folder: one for one in tiers() if one.folder is not None}


def name_of(outcome: Outcome) -> str:
    """The name of an outcome's tier."""
    return _name(type(outcome))


def tier_of(result: Result) -> Tier:
    """The tier that shows and explains a result."""
    return tier(_shown_by(result))


def by_table(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Results by the tier whose tables show them, in the order of tables."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(_shown_by(result), []).append(result)
    return {name: found[name] for name in names() if name in found}


def _shown_by(result: Result) -> str:
    """A tier's name: the first one's for no outcome, the other one's for a record that derives from its record."""
    if result.outcome is None and result.place is not None:
        return _name(PredictedCase)
    kinds = [kind for kind in get_args(Outcome) if isinstance(result.outcome, kind)] or get_args(Outcome)
    return _name(kinds[0])


def _name(record: type[TierRecord]) -> str:
    tag = record.__struct_config__.tag
    assert isinstance(tag, str)
    return tag
