"""The contents of a history as plain data, which is its JSON. Text, CSV and the page are made from nothing else.

Indices point into the lists of ``Contents``: runs, environments, words, series. Times are in nanoseconds, memory in
bytes.
"""

from __future__ import annotations

from perflab.base.data import Data

SCHEMA = 1
KIND = "perflab history"
ALARM, POSSIBLE, MACHINE, ACCEPTED = "alarm", "possible", "machine", "accepted"


class RunRow(Data, frozen=True):
    """One run; in a history of baselines, one commit that saved some."""

    created: str
    """Date and time in ISO 8601."""
    file: str
    """The file that the run was read from; in a history of baselines, the commit's subject."""
    commit: str | None = None


class Level(Data, frozen=True):
    """A stretch of points that have one level."""

    first: int
    """Index of the stretch's first point."""
    last: int
    value: float
    """The median of the points; the first point's value if the level is exact or accepted."""


class SeriesRow(Data, frozen=True):
    """One quantity of one case in one environment, with a point for each run."""

    case: str
    variant: str
    """The mode, or the GPU of a prediction: it distinguishes results of one case."""
    name: str
    """A short name of case and variant that no other case has."""
    quantity: str
    unit: str
    exact: bool
    environment: int
    judged: bool
    """Whether the series has enough points for a change to be found."""
    points: int
    ratio: float | None
    """Last level / first level, as the product of the ratios of the changes; null if the first level is 0, or a change
    has too few runs to measure its ratio."""
    difference: float
    """The last level minus the first level."""
    runs: list[int]
    values: list[float]
    words: list[int]
    """The index of each point's word: the verdict of the run, or why the level was accepted."""
    levels: list[Level]
    events: list[int]
    """Numbers of the events that the series has a part in."""
    creep: float | None = None
    """The ratio by which the series crept from its first sixth to its last, without its changes; null: it did not."""
    gone: bool = False
    """Whether the case no longer exists. Alarms whose cases are all gone do not count for ``--fail``."""


class CommitRow(Data, frozen=True):
    """One commit."""

    commit: str
    date: str
    subject: str


class Member(Data, frozen=True):
    """The part of one series in an event. Points are indices into the series."""

    series: int
    before: int
    """The last point that surely has the old level."""
    after: int
    """The first point that surely has the new level."""
    at: int
    """The point that is most likely the first of the new level."""
    old: float
    """The old level."""
    new: float
    ratio: float | None
    """New level / old level; null if the old level is 0, or either level has too few runs to measure the ratio."""
    difference: float
    """The new level minus the old level."""
    low: float | None
    """Lower bound of the ratio's 95 % interval; ``high`` is the upper bound."""
    high: float | None
    p: float | None = None
    """Chance of such a change in an unchanged series; null for exact quantities and accepted levels."""
    machine: float | None = None
    """The ratio by which the calibration workload changed at the same place; null: it did not."""
    rest: float | None = None
    """The ratio divided by ``machine``; null if the machine did not change, or no interval of it is known."""
    rest_low: float | None = None
    """Lower bound of the 95 % interval of ``rest``; ``rest_high`` is the upper bound."""
    rest_high: float | None = None
    undone_by: int | None = None
    """Number of the event that brought the old level back; null: none did."""


class EventRow(Data, frozen=True):
    """Changes that one cause explains."""

    number: int
    kind: str
    """``alarm``; ``possible``: no alarm, since such changes occur by chance among so many series; ``machine``: a change
    of the calibration workload explains it, or only times changed between runs of one commit; ``accepted``: a
    baseline."""
    worse: bool
    ratio: float | None
    """The median ratio of the members: of times alone if there are any, and of alarms alone if there are any; null if
    none of the ratios is known."""
    smallest: float | None
    largest: float | None
    environments: list[int]
    last_old: int
    """The last run of the old level."""
    first_new: int
    """The first run that surely has the new level."""
    members: list[Member]
    cases: int
    """The number of cases that share the event; if times changed, of those whose time changed. Members that a choice of
    cases leaves out still count."""
    good: str | None = None
    bad: str | None = None
    commits: list[CommitRow] = []
    """The newest commits after ``good`` up to ``bad``, newest first; empty if the repository does not have both."""
    commits_total: int | None = None
    undoes: list[int] = []
    """Numbers of the earlier events that this event undoes: their old level came back."""
    undone_by: list[int] = []
    """Numbers of the events that brought the old level back in some of this event's members."""
    machine_ratio: float | None = None
    """The ratio by which the calibration workload changed: the median over the members."""
    rest_ratio: float | None = None
    """The ratio that the machine's change does not explain: the median over the members."""
    reasons: list[str] = []
    """The reasons given for accepting the levels."""


class BreakMember(Data, frozen=True):
    """A quantity of a case that, from one run on, is measured in another environment or under another name."""

    before: int
    """Index of the series that ended."""
    after: int
    """Index of the series that began."""
    old: float
    """The last level of the series that ended."""
    new: float
    """The first level of the series that began. The two levels are not compared."""


class BreakRow(Data, frozen=True):
    """A change of the environment, or of a case's name, across which nothing is judged."""

    run: int
    """Index of the first run in the new environment, or with the new name."""
    before: str
    """The parts that only the old environment has; for a renamed case, its old name within its module."""
    now: str
    """The parts that only the new environment has; for a renamed case, its new name within its module."""
    members: list[BreakMember]


class BetweenRow(Data, frozen=True):
    """The commits between the two runs that ``--between`` names."""

    older: int
    newer: int
    commits: list[CommitRow]
    """The commits after the older run up to the newer run, newest first."""


class LeftOutRow(Data, frozen=True):
    """A file that was left out of the history, and why."""

    file: str
    problem: str


class Contents(Data, frozen=True):
    """The contents of a history."""

    kind: str
    schema: int
    perflab: str
    source: str
    accepted: bool
    """Whether points are accepted levels instead of runs."""
    runs: list[RunRow]
    environments: list[str]
    words: list[str]
    events: list[EventRow]
    series: list[SeriesRow]
    left_out: list[LeftOutRow]
    breaks: list[BreakRow] = []
    """The places where series ended and others began, in another environment or under another name."""
    between: BetweenRow | None = None
    """The commits between two runs; null without ``--between``."""
    repeated: int = 0
    """The number of runs left out because another file has them as well: each run counts once."""
    cut_short: int = 0
    """The number of runs of which times were left out: ``--perf-check=exact`` had cut their measuring short."""
    repository: str | None = None
    """The address of the web page of the project's repository; null if no run names one."""
