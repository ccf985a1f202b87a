"""Everything that is said of a history, as plain data. JSON is this; text, CSV and the page are made from nothing else.

Indices point into the lists beside them: runs, environments, words, series. Times are nanoseconds, memory is bytes.
"""

from __future__ import annotations

from perflab.data import Data

SCHEMA = 1
KIND = "perflab history"
ALARM, POSSIBLE, MACHINE, ACCEPTED = "alarm", "possible", "machine", "accepted"


class RunRow(Data, frozen=True):
    """One run; of baselines one commit that saved some."""

    created: str
    """ISO 8601."""
    file: str
    """Where it was read; of baselines, the commit's subject."""
    commit: str | None = None


class Level(Data, frozen=True):
    """Points that have one level."""

    first: int
    """Index of the first point."""
    last: int
    value: float
    """The median of the points; the first of them where it is exact or accepted."""


class SeriesRow(Data, frozen=True):
    """One quantity of one case in one environment. A point a run."""

    case: str
    variant: str
    """What tells results of one case apart: its mode, or the GPU of a prediction."""
    name: str
    """Both in short, and no other case's."""
    quantity: str
    unit: str
    exact: bool
    environment: int
    judged: bool
    """Whether it has enough points for a change to be found."""
    points: int
    ratio: float | None
    """How the last level stands to the first one: the product of its changes' ratios; null where that is 0, or a change
    has too few runs to say how much it is."""
    difference: float
    """The last level less the first one."""
    runs: list[int]
    values: list[float]
    words: list[int]
    """Of each point: the verdict of the run, or why the level was accepted."""
    levels: list[Level]
    events: list[int]
    """Numbers of the events that it has part in."""
    creep: float | None = None
    """By which ratio it crept from its first sixth to its last, without its changes; null: it did not."""
    gone: bool = False
    """Whether the case no longer exists: its alarms are no concern of anybody's."""


class CommitRow(Data, frozen=True):
    """One commit."""

    commit: str
    date: str
    subject: str


class Member(Data, frozen=True):
    """One series' part in an event. Points are indices into its series."""

    series: int
    before: int
    """The last point that surely has the old level."""
    after: int
    """The first that surely has the new one."""
    at: int
    """Most likely the first of the new one."""
    old: float
    """The old level."""
    new: float
    ratio: float | None
    """New over old; null where the old level is 0, or too few runs have the new one to say how much."""
    difference: float
    """New less old."""
    low: float | None
    """95 % interval of the ratio."""
    high: float | None
    p: float | None = None
    """Chance of such a change in an unchanged series; null of exact quantities and accepted levels."""
    machine: float | None = None
    """By what ratio the calibration workload changed at its place; null: it did not."""
    rest: float | None = None
    """What that leaves of the ratio."""
    rest_low: float | None = None
    """95 % interval of what is left."""
    rest_high: float | None = None
    undone_by: int | None = None
    """Number of the event that brought the old level back; null: none did."""


class EventRow(Data, frozen=True):
    """Changes of one cause."""

    number: int
    kind: str
    """``alarm``; ``possible``: no alarm, since among so many series such changes come by chance; ``machine``: what the
    calibration workload did there explains it, or no commit lies between; ``accepted``: a baseline."""
    worse: bool
    ratio: float | None
    """The median over its members: of times, where there are some, and of alarms, where there are some; null where
    none of them is known."""
    smallest: float | None
    largest: float | None
    environments: list[int]
    last_old: int
    """The last run of the old level."""
    first_new: int
    """The first run that surely has the new level."""
    members: list[Member]
    cases: int
    """How many cases share it: of an event with times, those whose time changed. Also where a choice of cases leaves
    some of its members out."""
    good: str | None = None
    bad: str | None = None
    commits: list[CommitRow] = []
    """What lies between, the newest first, as far as the repository at hand has it."""
    commits_total: int | None = None
    undoes: list[int] = []
    """Numbers of the events whose old level came back."""
    undone_by: list[int] = []
    """Numbers of the events that brought the old level back in some of its members."""
    machine_ratio: float | None = None
    """By what the calibration workload changed there: the median over its members."""
    rest_ratio: float | None = None
    """What that leaves of their changes: the median over its members."""
    reasons: list[str] = []
    """Why levels were accepted."""


class BreakMember(Data, frozen=True):
    """A quantity of a case that is measured elsewhere from a run on."""

    before: int
    """The series that ended."""
    after: int
    """The one that began."""
    old: float
    """The last level before."""
    new: float
    """The first level after. The two are not compared."""


class BreakRow(Data, frozen=True):
    """A change of the environment, or of a case's name, across which nothing is judged."""

    run: int
    """The first one in the new environment, or with the new name."""
    before: str
    """What the old one has for itself; of a case its function, or its file."""
    now: str
    """What the new one has."""
    members: list[BreakMember]


class BetweenRow(Data, frozen=True):
    """The commits between two runs that were asked for."""

    older: int
    newer: int
    commits: list[CommitRow]
    """The newest first."""


class LeftOutRow(Data, frozen=True):
    """A file that is not part of the history."""

    file: str
    problem: str


class Contents(Data, frozen=True):
    """A history."""

    kind: str
    schema: int
    perflab: str
    source: str
    accepted: bool
    """Whether points are accepted levels, and no runs."""
    runs: list[RunRow]
    environments: list[str]
    words: list[str]
    events: list[EventRow]
    series: list[SeriesRow]
    left_out: list[LeftOutRow]
    breaks: list[BreakRow] = []
    """Where series ended, and began anew elsewhere or under another name."""
    between: BetweenRow | None = None
    """With ``--between``."""
    repeated: int = 0
    """Runs left out since another file has them as well: a run counts once, whatever files it stands in."""
    repository: str | None = None
    """The address of the page that shows the project's repository; null where no run names one."""
