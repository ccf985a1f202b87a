"""Results: a case's outcome with its judgement; a document holds all results of a run."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

import msgspec

from perflab.data import Data, Parameters
from perflab.measure.records import Beside, Record
from perflab.mode import DEFAULT, Mode, identity
from perflab.records import Judgement, Policy
from perflab.tiers import Outcome


class Result(Data, frozen=True):
    """What a session reports of a case. It crosses from worker to controller as plain data."""

    case: str
    judgement: Judgement
    outcome: Outcome | None = None
    """What the case came to, by tier; None where it came to nothing: skipped, or failed by itself."""
    saved: bool = False
    not_saved: str | None = None
    """What the run was to save of the case and refused to, in the words of its row."""
    policy: Policy | None = None
    """What the case was judged by; None where there was nothing to judge."""
    failure: str | None = None
    """What pytest shows of the test, if it failed."""
    parameters: Parameters = {}
    """The case's parameters, where there is no record that has them."""
    side_by_side: str | None = None
    """The parameter whose levels are to be shown against each other."""
    study: str | None = None
    """Title of the study that the case belongs to."""
    columns: list[str] = []
    """What the study's table is to show of the case; none: what there is."""
    versus: str | None = None
    """``parameter=level``: what the case is held against in the study's table."""
    beside: list[Beside] = []
    """What turns with other rows of its tables said, one of each row that it is held against."""
    mode: Mode = DEFAULT
    """How the case's calls are timed; the default of what is not measured."""
    place: str | None = None
    """Where a case was to be predicted that came to nothing: ``h100``, ``h100-dry-run``."""
    compared: bool = False
    """Whether a case that came to nothing was to be held against another version (``--perf-against``)."""
    commit: str | None = None
    """Only in a journal, whose lines have no document around them: the project's, as ``Document`` has it."""

    @property
    def is_of_a_run(self) -> bool:
        """Whether the case ran here, or was to run: it is of no tier that runs nothing."""
        return self.place is None if self.outcome is None else self.outcome.runs

    @property
    def is_comparison(self) -> bool:
        """Whether the verdict is, or was to be, that of two versions beside each other."""
        return self.compared if self.outcome is None else self.outcome.compares

    @property
    def way(self) -> str:
        """How the case came, or was to come, to its verdict: a result takes back only what came about in the same way.

        Predictions go by their place, what ran by its mode, A/B comparisons apart from what is held against baselines.
        """
        place = self.place if self.outcome is None else self.outcome.place
        return place if place is not None else f"{'A/B' if self.is_comparison else ''}{self.mode.suffix}"

    @property
    def record(self) -> Record | None:
        """The numbers of a case that ran, measured or compared; None of any other."""
        return self.outcome if isinstance(self.outcome, Record) else None

    @property
    def identity(self) -> str:
        """The name that the case's numbers are stored under: numbers of two modes are two cases'."""
        return identity(self.case, self.mode)


def parameters_of(result: Result) -> Parameters:
    """A case's parameters, also where nothing was measured."""
    return result.record.parameters if result.record is not None else result.parameters


def parameter_names(results: Iterable[Result]) -> list[str]:
    """All parameters that cases have, as they come."""
    return list(dict.fromkeys(name for result in results for name in parameters_of(result)))


def by_study(results: Iterable[Result]) -> dict[str, list[Result]]:
    """The cases of each study, in their order. What was predicted is in none: its numbers are of another kind."""
    members: dict[str, list[Result]] = {}
    for result in results:
        if result.study is not None and result.is_of_a_run:
            members.setdefault(result.study, []).append(result)
    return members


class Document(Data, frozen=True):
    """What one run learned, as ``--perf-json`` writes it; or several parts of a run, merged."""

    schema: Annotated[int, msgspec.Meta(ge=1)]
    perflab: str
    """Version that wrote it."""
    created: Annotated[datetime, msgspec.Meta(tz=True)]
    exitstatus: int
    """pytest's."""
    baselines: str | None
    """Directory of the baselines, as it is shown; None where results were not compared with any."""
    threshold: float
    """Slowdown that counted, unless a case's marker said otherwise."""
    results: list[Result]
    command: str | None = None
    """pytest's command, without the time that the run and each case were given; None of parts with different ones."""
    total_budget_s: float | None = None
    """What the run was given, in seconds; None: no limit."""
    preface: list[str] = []
    """What is to be known before the table, such as what else the results were compared with."""
    collected: list[str] = []
    """All perf cases that were found, chosen or not, in their order."""
    findings: dict[str, list[str]] = {}
    """By study, what the project's own code found in its results."""
    other_failures: list[str] = []
    """Node ids of what failed beside the perf cases' own results: plain tests, teardowns, files that do not import."""
    stale: list[str] = []
    """Cases that no longer exist and have baselines still: what these gated is gated no more."""
    commit: str | None = None
    """The project's, with ``+dirty`` behind it if files differed; None where there is no git, or of several runs."""
    repository: str | None = None
    """The address of the page that shows the project's repository, by git's remote; None where git names none."""
