"""Chooses the part of a history that the user asks for: cases, its newest recent alarm, commits between runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from perflab.base.data import changed
from perflab.base.errors import UsageError
from perflab.base.git import commit_named
from perflab.history.contents import ALARM, BetweenRow, Contents, EventRow, RunRow
from perflab.history.git_objects import clean, commits_between
from perflab.history.wording import short

_SHORTEST = 4
"""The fewest digits that may name a commit."""
_MOST = 10_000


def chosen(contents: Contents, case: str | None, quantity: str | None) -> Contents:
    """Return the part of a history about cases whose name contains ``case``, and about one quantity.

    None stands for all cases, or for all quantities. A renamed case is kept under both of its names. The choice does
    not change which events are alarms.
    """
    kept = [
        at
        for at, one in enumerate(contents.series)
        if (case is None or case in one.case + one.variant) and (quantity is None or quantity == one.quantity)
    ]
    renamed = [{pair.before, pair.after} for one in contents.breaks for pair in one.members]
    kept = sorted({*kept, *(at for pair in renamed if not pair.isdisjoint(kept) for at in pair)})
    new = {old: at for at, old in enumerate(kept)}
    events = []
    for event in contents.events:
        members = [changed(one, series=new[one.series]) for one in event.members if one.series in new]
        if members:
            events.append(changed(event, members=members))
    breaks = []
    for one in contents.breaks:
        pairs = [pair for pair in one.members if pair.after in new]
        moved = [changed(pair, before=new[pair.before], after=new[pair.after]) for pair in pairs]
        if moved:
            breaks.append(changed(one, members=moved))
    return changed(contents, series=[contents.series[at] for at in kept], events=events, breaks=breaks)


def newest_alarm(contents: Contents, recent: int) -> EventRow | None:
    """Return the newest alarm for the worse whose new level began within the last ``recent`` runs and stayed; or None.

    An alarm whose cases are all gone does not count, since nothing could ever restore their level.
    """
    since = len(contents.runs) - recent
    found = [one for one in contents.events if one.kind == ALARM and one.worse and one.first_new >= since]
    alarms = {one.number for one in contents.events if one.kind == ALARM}
    stayed = (one for one in found if not _is_over(one, contents, alarms))
    return max(stayed, key=lambda one: one.first_new, default=None)


def _is_over(event: EventRow, contents: Contents, alarms: Collection[int]) -> bool:
    """Whether the event's old levels came back: those of all exact quantities, and of at least half of the times.

    Half of the times is enough, since noise may hide the return of some. Only alarms restore a level; possible changes
    and changes of the machine do not. An event whose cases are all gone is over as well.
    """
    if all(contents.series[one.series].gone for one in event.members):
        return True
    back = {True: 0, False: 0}
    many = {True: 0, False: 0}
    for one in event.members:
        is_exact = contents.series[one.series].exact
        many[is_exact] += 1
        back[is_exact] += one.undone_by in alarms
    return back[True] == many[True] and 2 * back[False] >= many[False]


def with_between(contents: Contents, named: tuple[str, str], repository: Path) -> Contents:
    """Return the contents with the commits after the older of two runs up to the newer one.

    The runs may be named in either order.

    Raises:
        UsageError: a name fits no run, or several commits; a run names no commit; the repository lacks the commits.
    """
    older, newer = sorted(_run(contents.runs, name, repository) for name in named)
    ends = []
    for at in (older, newer):
        commit = contents.runs[at].commit
        if commit is None:
            raise UsageError(f"--between: {contents.runs[at].file} names no commit", "choose a run that names one")
        ends.append(clean(commit))
    found = commits_between(repository, ends[0], ends[1], _MOST)
    if found is None:
        raise UsageError(
            f"--between: this repository does not have {short(ends[0])} and {short(ends[1])}",
            "go to the project's repository, or fetch them",
        )
    return changed(contents, between=BetweenRow(older=older, newer=newer, commits=found[1]))


def _run(runs: Sequence[RunRow], name: str, repository: Path) -> int:
    """Return the index of the run with a name; the last run if the day or the commit has several.

    A name is a run's file, the beginning of its commit or of its date, or a revision of git that is its commit.
    """
    by_file = [at for at, run in enumerate(runs) if name in (run.file, Path(run.file).name)]
    by_commit = [at for at, run in enumerate(runs) if len(name) >= _SHORTEST and (run.commit or "").startswith(name)]
    by_date = [at for at, run in enumerate(runs) if len(name) >= len("2026-11-01") and run.created.startswith(name)]
    if len({clean(runs[at].commit or "") for at in by_commit}) > 1:
        raise UsageError(f"--between={name}: several commits begin so", "give more of its digits")
    found = by_file or by_commit or by_date
    if not found and (commit := commit_named(repository, name)) is not None:  # a tag, or HEAD~3
        found = [at for at, run in enumerate(runs) if run.commit is not None and clean(run.commit) == commit]
    if not found:
        last = runs[-1]
        like = ", ".join([*([short(last.commit)] if last.commit else []), last.created[:10], Path(last.file).name])
        raise UsageError(f"--between={name}: no run has that name", f"name its commit, date or file, such as {like}")
    return found[-1]
