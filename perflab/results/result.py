"""Results: a case's outcome, a record of one tier, with its judgement. A document holds all results of a run."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import cache
from typing import Annotated, cast, get_args

import msgspec

from perflab.base.data import Data, Parameters
from perflab.base.identity import DEFAULT, Mode, identity
from perflab.results.compiled import CompiledCase
from perflab.results.measured import ComparedCase, MeasuredCase
from perflab.results.measurement import Beside, Record
from perflab.results.predicted import PredictedCase
from perflab.results.records import Judgement, Policy, TierRecord

Outcome = MeasuredCase | ComparedCase | PredictedCase | CompiledCase
"""The record of a case, by tier in the order of tables; a new tier adds its record. A tier's name is its record's tag
and its folder's name."""


def names() -> list[str]:
    """Return every tier's name, in the order of tables."""
    return [tag_of(record) for record in get_args(Outcome)]


@cache
def record_of(name: str) -> type[TierRecord]:
    """Return the type of the records of the tier of this name.

    Raises:
        ValueError: there is no such tier.
    """
    for record in get_args(Outcome):
        if tag_of(record) == name:
            return cast(type[TierRecord], record)
    raise ValueError(f"there is no tier {name!r}")


def name_of(outcome: Outcome) -> str:
    """Return the name of an outcome's tier."""
    return tag_of(type(outcome))


def tag_of(record: type[TierRecord]) -> str:
    """Return the name of the tier whose cases have records of this type."""
    tag = record.__struct_config__.tag
    assert isinstance(tag, str)
    return tag


class Result(Data, frozen=True):
    """A session's result for a case. Workers send it to the controller as plain data."""

    case: str
    judgement: Judgement
    outcome: Outcome | None = None
    """The case's record of one tier; None if the case was skipped or failed by itself."""
    saved: bool = False
    not_saved: str | None = None
    """Numbers of the case that the run was asked to save but refused, in the words of its row."""
    policy: Policy | None = None
    """The policy that judged the case; None if there was nothing to judge."""
    failure: str | None = None
    """The text that pytest shows of a failed test; None if the test did not fail."""
    parameters: Parameters = {}
    """The case's parameters, if no record has them."""
    side_by_side: str | None = None
    """The parameter whose levels are shown side by side."""
    study: str | None = None
    """Title of the case's study."""
    columns: list[str] = []
    """Names of the columns of the study's table; empty shows all available ones."""
    versus: str | None = None
    """The base of the case in the study's table, as ``parameter=level``."""
    beside: list[Beside] = []
    """Results of interleaving the case with base rows of its tables, one for each base."""
    mode: Mode = DEFAULT
    """The mode in which the case's calls are timed; the default mode for a case that is not measured."""
    place: str | None = None
    """The intended place of a prediction without an outcome: ``h100``, ``h100-dry-run``; None for any other case."""
    compared: bool = False
    """Whether a case without an outcome was to be compared with another version (``--perf-against``)."""
    commit: str | None = None
    """The project's commit, as in ``Document``; only in a journal, whose lines have no document around them."""

    @property
    def is_of_a_run(self) -> bool:
        """Whether the case ran on this machine, or was meant to: its tier runs cases."""
        return self.place is None if self.outcome is None else self.outcome.runs

    @property
    def is_comparison(self) -> bool:
        """Whether the verdict is, or was meant to be, that of an A/B comparison of two versions."""
        return self.compared if self.outcome is None else self.outcome.compares

    @property
    def way(self) -> str:
        """The way in which the case came, or was meant to come, to its verdict.

        A later result replaces only a result of the same way. The way of a prediction is its place; the way of a run is
        its mode, with the prefix ``A/B`` for a comparison of two versions.
        """
        place = self.place if self.outcome is None else self.outcome.place
        return place if place is not None else f"{'A/B' if self.is_comparison else ''}{self.mode.suffix}"

    @property
    def record(self) -> Record | None:
        """The record of a case that ran, measured or compared; None for any other case."""
        return self.outcome if isinstance(self.outcome, Record) else None

    @property
    def identity(self) -> str:
        """The name under which the case's numbers are stored: each mode has its own."""
        return identity(self.case, self.mode)


def parameters_of(result: Result) -> Parameters:
    """Return a case's parameters, even if nothing was measured."""
    return result.record.parameters if result.record is not None else result.parameters


def parameter_names(results: Iterable[Result]) -> list[str]:
    """Return the names of all parameters of the cases, in the order of their first occurrence."""
    return list(dict.fromkeys(name for result in results for name in parameters_of(result)))


def by_study(results: Iterable[Result]) -> dict[str, list[Result]]:
    """Return study -> its cases, in their order. Predicted cases are left out: their numbers are of another kind."""
    members: dict[str, list[Result]] = {}
    for result in results:
        if result.study is not None and result.is_of_a_run:
            members.setdefault(result.study, []).append(result)
    return members


class Document(Data, frozen=True):
    """The results of one run, as ``--perf-json`` writes them; or of several merged parts of a run."""

    schema: Annotated[int, msgspec.Meta(ge=1)]
    perflab: str
    """The version of perflab that wrote the document."""
    created: Annotated[datetime, msgspec.Meta(tz=True)]
    exitstatus: int
    """pytest's exit status."""
    baselines: str | None
    """The directory of baselines, as shown in reports; None if results were compared with none."""
    threshold: float
    """The relative slowdown that counted, unless a case's marker set another one."""
    results: list[Result]
    command: str | None = None
    """pytest's command, without the options for time budgets; None for merged parts with different commands."""
    total_budget_s: float | None = None
    """The run's time budget in seconds; None if unlimited."""
    preface: list[str] = []
    """Lines to show before the table, such as other runs that the results were compared with."""
    collected: list[str] = []
    """Node ids of all collected perf cases, selected or not, in their order."""
    findings: dict[str, list[str]] = {}
    """Study -> findings of the project's own code in the study's results."""
    other_failures: list[str] = []
    """Node ids of failures outside of the perf cases' results: plain tests, teardowns, files that do not import."""
    unreached: list[str] = []
    """Selected perf cases that never began, since the run was stopped before: by ``-x``, ``--maxfail`` or Ctrl-C."""
    stale: list[str] = []
    """Cases that no longer exist but still have baselines, so that their numbers are no longer gated."""
    commit: str | None = None
    """The project's commit, with ``+dirty`` appended if files differed; None without git, or if merged parts differ."""
    repository: str | None = None
    """The URL of the repository's page, from git's remote; None if there is none."""
