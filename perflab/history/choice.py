"""The part of a history that is asked for, and whether an alarm of it is recent. Pure."""

from __future__ import annotations

from collections.abc import Collection

from perflab.data import changed
from perflab.history.contents import ALARM, Contents, EventRow


def chosen(contents: Contents, case: str | None, quantity: str | None) -> Contents:
    """The part of it that is about cases, and a quantity, with these in their names. What is an alarm does not change.

    None stands for all cases, and for all quantities.
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
    """The newest alarm for the worse whose new level began within so many of the last runs and has stayed; or None.

    An alarm whose cases are all gone is none: nothing could ever bring their level back.
    """
    since = len(contents.runs) - recent
    found = [one for one in contents.events if one.kind == ALARM and one.worse and one.first_new >= since]
    alarms = {one.number for one in contents.events if one.kind == ALARM}
    stayed = (one for one in found if not _is_over(one, contents, alarms))
    return max(stayed, key=lambda one: one.first_new, default=None)


def _is_over(event: EventRow, contents: Contents, alarms: Collection[int]) -> bool:
    """Whether what it changed came back: what is exact all of it, and at least half of the times.

    Of several times noise may hide a return. What is only possible, or the machine's, brings nothing back.
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
