"""The parts of results files and of reports that a history needs, whatever the tier: narrow structures."""

from __future__ import annotations

from datetime import datetime

from perflab.results.readings import Amount, Narrow, Number, WrittenResult
from perflab.results.records import Environment


class Head(Narrow):
    """The fields by which the kinds of files differ."""

    schema: int
    kind: str | None = None


# --- a report as JSON: the quantities of a case stand ready -------------------------------------------------


class Quantity(Narrow):
    """One number of a case in a report."""

    now: Number | None = None
    unit: str = ""
    exact: bool = False

    before: float | None = None


class Times(Narrow):
    """Medians of the samples of this process, and of fresh processes."""

    median_ns: Number
    fresh_ns: list[Number] = []


class ReportCase(Narrow):
    """One case of a report."""

    case: str
    times: Times | None = None
    quantities: dict[str, Quantity] = {}
    variant: str = ""
    environment: Amount | None = None
    verdict: str = ""
    compared_by: dict[str, str] = {}


class ReportRun(Narrow):
    """One run of a report."""

    created: datetime
    cases: list[ReportCase]
    commit: str | None = None
    repository: str | None = None
    environments: list[Environment] = []


class Report(Narrow):
    """A report as JSON."""

    runs: list[ReportRun]


# --- results as a run wrote them ----------------------------------------------------------------------------


class Document(Narrow):
    """A results file."""

    created: datetime
    results: list[WrittenResult]
    commit: str | None = None
    collected: list[str] = []
    stale: list[str] = []
    repository: str | None = None
