"""Everything that is said of a history, as plain data. JSON is this; text, CSV and the page are made from nothing else.

Indices point into the lists beside them: runs, environments, words, series. Times are nanoseconds, memory is bytes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

from perflab import __version__
from perflab.data import Data, changed
from perflab.history.events import Event, blame_the_machine, gather
from perflab.history.git_objects import clean, commits_between
from perflab.history.judging import (
    Found,
    judge,
    judge_accepted,
)
from perflab.history.series import History, Series
from perflab.report.lines import short_name

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
    """The median of the points."""


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
    points: int
    ratio: float | None
    """The last level over the first one; null where that is 0."""
    runs: list[int]
    values: list[float]
    words: list[int]
    """Of each point: the verdict of the run, or why the level was accepted."""
    levels: list[Level]
    events: list[int]
    """Numbers of the events that it has part in."""


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
    """New over old; null where the old level is 0."""
    low: float | None
    """95 % interval of the ratio."""
    high: float | None
    p: float | None = None
    """Chance of such a change in an unchanged series; null of exact quantities and accepted levels."""


class EventRow(Data, frozen=True):
    """Changes of one cause."""

    number: int
    kind: str
    """``alarm``; ``possible``: no alarm, since among so many series such changes come by chance; ``machine``: the
    calibration workload changed as well, or no commit lies between; ``accepted``: a baseline."""
    worse: bool
    ratio: float | None
    """The median over its members: of times, where there are some."""
    smallest: float | None
    largest: float | None
    environments: list[int]
    last_old: int
    """The last run of the old level."""
    first_new: int
    """The first run that surely has the new level."""
    members: list[Member]
    cases: int
    """How many cases share it, also where a choice of cases leaves some of its members out."""
    good: str | None = None
    bad: str | None = None
    commits: list[CommitRow] = []
    """What lies between, the newest first, as far as the repository at hand has it."""
    commits_total: int | None = None
    undoes: list[int] = []
    """Numbers of the events whose old level came back."""
    undone_by: list[int] = []
    machine_ratio: float | None = None
    """By what the calibration workload changed."""
    reasons: list[str] = []
    """Why levels were accepted."""


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


def contents_of(history: History, repository: Path) -> Contents:
    """Judge a history, and put into words and numbers what there is to say.

    Args:
        history: all that was read.
        repository: where commits are looked up.
    """
    series = history.series
    groups = [place.group for place in history.places]
    if history.are_accepted:
        events = gather(series, groups, judge_accepted(series))
    else:
        events = gather(series, groups, judge(series))
        blame_the_machine(events, series, history.machines, judge(history.machines))
    parts: dict[int, list[tuple[int, Found]]] = {}
    for number, event in enumerate(events, 1):
        for one in event.members:
            parts.setdefault(one.series, []).append((number, one))
    names = short_names((one.case, one.variant) for one in series)
    used = {place: number for number, place in enumerate(dict.fromkeys(one.place for one in series))}
    rows = [
        _series(one, names[one.case, one.variant], used[one.place], parts.get(at, [])) for at, one in enumerate(series)
    ]
    return Contents(
        kind=KIND,
        schema=SCHEMA,
        perflab=__version__,
        source=history.source,
        accepted=history.are_accepted,
        runs=[RunRow(created=one.created.isoformat(), file=one.file, commit=one.commit) for one in history.runs],
        environments=_told_apart([history.places[place].text for place in used]),
        words=history.words,
        events=[_event(number, one, rows, history, repository) for number, one in enumerate(events, 1)],
        series=rows,
        left_out=[LeftOutRow(file=one.file, problem=one.problem) for one in history.left_out],
    )


def chosen(contents: Contents, case: str | None, quantity: str | None) -> Contents:
    """The part of it that is about cases, and a quantity, with these in their names. What is an alarm does not change.

    Args:
        contents: the whole.
        case: a part of names of cases; None: all.
        quantity: the name of a quantity; None: all.
    """
    kept = [
        at
        for at, one in enumerate(contents.series)
        if (case is None or case in one.case + one.variant) and (quantity is None or quantity == one.quantity)
    ]
    new = {old: at for at, old in enumerate(kept)}
    events = []
    for event in contents.events:
        members = [changed(one, series=new[one.series]) for one in event.members if one.series in new]
        if members:
            events.append(changed(event, members=members))
    return changed(contents, series=[contents.series[at] for at in kept], events=events)


def newest_alarm(contents: Contents, recent: int) -> EventRow | None:
    """The newest alarm for the worse whose new level began within so many of the last runs; None if there is none."""
    since = len(contents.runs) - recent
    found = [one for one in contents.events if one.kind == ALARM and one.worse and one.first_new >= since]
    return max((one for one in found if not one.undone_by), key=lambda one: one.first_new, default=None)


def short_names(cases: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Cases with their variants by names as short as tells them apart: ``step[small] h100``, ``test_a:step[small]``."""
    names = {one: f"{short_name(one[0])} {one[1]}".rstrip() for one in cases}
    for depth in range(1, 8):
        often = Counter(names.values())
        alike = [one for one, name in names.items() if often[name] > 1]
        if not alike:
            break
        for case, variant in alike:
            path = case.partition("[")[0].replace(".py::", "/").replace("::", "/").split("/")[:-1]
            names[case, variant] = ":".join([*path[-depth:], f"{short_name(case)} {variant}".rstrip()])
    return names


def _series(one: Series, name: str, environment: int, parts: Sequence[tuple[int, Found]]) -> SeriesRow:
    starts = [0, *sorted({found.change.at for _, found in parts}), len(one.values)]
    levels = [
        Level(first=first, last=end - 1, value=one.values[first] if one.is_exact else median(one.values[first:end]))
        for first, end in pairwise(starts)
        if first < end
    ]
    return SeriesRow(
        case=one.case,
        variant=one.variant,
        name=name,
        quantity=one.quantity,
        unit=one.unit,
        exact=one.is_exact,
        environment=environment,
        points=len(one.values),
        ratio=levels[-1].value / levels[0].value if levels[0].value else None,
        runs=list(one.runs),
        values=list(one.values),
        words=list(one.words),
        levels=levels,
        events=sorted({number for number, _ in parts}),
    )


def _event(number: int, event: Event, rows: Sequence[SeriesRow], history: History, repository: Path) -> EventRow:
    members = [_member(one, rows[one.series], accepted=history.are_accepted) for one in event.members]
    members.sort(key=lambda one: -abs(math.log(one.ratio)) if one.ratio else -math.inf)
    timed = [one for one in members if not rows[one.series].exact]
    ratios = [one.ratio for one in timed or members if one.ratio is not None]
    last_old, first_new = event.first - 1, event.last
    good, bad = history.runs[last_old].commit, history.runs[first_new].commit
    between = commits_between(repository, good, bad) if good and bad else None
    reasons = [
        history.words[rows[one.series].words[one.at]].removeprefix("accepted: ")
        for one in members
        if history.are_accepted and history.words[rows[one.series].words[one.at]] != ACCEPTED
    ]
    return EventRow(
        number=number,
        kind=_kind(event, history, no_code=len(timed) == len(members) and _is_same_code(good, bad)),
        worse=event.is_worse,
        ratio=median(ratios) if ratios else None,
        smallest=min(ratios, default=None),
        largest=max(ratios, default=None),
        environments=sorted({rows[one.series].environment for one in members}),
        last_old=last_old,
        first_new=first_new,
        members=members,
        cases=len({(rows[one.series].case, rows[one.series].variant) for one in members}),
        good=good,
        bad=bad,
        commits=[CommitRow(commit=one.commit, date=one.date, subject=one.subject) for one in between.newest]
        if between
        else [],
        commits_total=between.many if between else None,
        undoes=[one + 1 for one in event.came_back],
        undone_by=[one + 1 for one in event.undone_by],
        machine_ratio=event.machine,
        reasons=list(dict.fromkeys(reasons)),
    )


def _is_same_code(good: str | None, bad: str | None) -> bool:
    return good is not None and good == bad == clean(good)


def _kind(event: Event, history: History, *, no_code: bool) -> str:
    if history.are_accepted:
        return ACCEPTED
    if event.machine is not None or no_code:
        return MACHINE
    return ALARM if event.is_alarm else POSSIBLE


def _member(found: Found, row: SeriesRow, *, accepted: bool) -> Member:
    change = found.change
    at = next(place for place, level in enumerate(row.levels) if level.first == change.at)
    return Member(
        series=found.series,
        before=change.before,
        after=change.after,
        at=change.at,
        old=row.levels[at - 1].value,
        new=row.levels[at].value,
        ratio=_finite(change.ratio),
        low=_finite(change.low),
        high=_finite(change.high),
        p=None if accepted or row.exact else change.p,
    )


def _finite(ratio: float) -> float | None:
    return ratio if math.isfinite(ratio) else None


def _told_apart(texts: Sequence[str]) -> list[str]:
    """Environments by name; of two that read the same, the second with a number."""
    seen: dict[str, int] = {}
    found = []
    for text in texts:
        seen[text] = seen.get(text, 0) + 1
        found.append(text if seen[text] == 1 else f"{text} ({seen[text]})")
    return found
