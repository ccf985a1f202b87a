"""Chooses the part of a history that the user asks for, and finds its newest recent alarm. Pure."""

from __future__ import annotations

from collections.abc import Collection

from perflab.base.data import changed
from perflab.history.contents import ALARM, Contents, EventRow


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
