"""Describes events and series in words, the same for a terminal and for the page. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from perflab.history.contents import ACCEPTED, MACHINE, POSSIBLE, BreakRow, Contents, EventRow, Member, SeriesRow
from perflab.history.judging import FEWEST
from perflab.tables.beside_text import pair_text, value_text
from perflab.tables.escaping import one_line
from perflab.tables.lines import shorten
from perflab.units import format_change, format_count, format_interval

TOO_FEW = "too few runs to say how much"
_SHORT = 7
_LONGEST = 60
"""The most characters of a name within a sentence."""
_FIXED_WORK = "the calibration workload"


def series_name(row: SeriesRow) -> str:
    """Return the name of a series: ``latency of step[small]``; long names are shortened."""
    return f"{brief(row.quantity)} of {brief(row.name)}"


def brief(name: str, most: int = _LONGEST) -> str:
    """Return a name of at most ``most`` characters: the beginning and the end of a longer one."""
    return shorten(one_line(name), most)


def title(event: EventRow, contents: Contents) -> str:
    """Return the title of an event: ``slower: +8.1 % (+6.9 %…+9.4 %), latency of step[small] and 3 more cases``."""
    rows = contents.series
    timed = any(rows[one.series].unit == "ns" for one in event.members)
    word = ("slower" if event.worse else "faster") if timed else ("needs more" if event.worse else "needs less")
    if event.kind == ACCEPTED:
        word = f"accepted, {word}"
    # The member that stands for all: the largest change, of the times if there are any.
    first = next((one for one in event.members if not rows[one.series].exact), event.members[0])
    others = event.cases - 1
    shared = f" and {format_count(others, 'more case')}" if others else ""
    also = ""
    if timed and (exact := [one for one in event.members if rows[one.series].exact]):
        row = rows[exact[0].series]
        more = f" and {format_count(len(exact) - 1, 'more exact change')}" if len(exact) > 1 else ""
        also = f"; {series_name(row)} {member_change(exact[0], row)}{more}"
    return f"{word}: {_size(event, first, rows)}, {series_name(rows[first.series])}{shared}{also}"


def _size(event: EventRow, first: Member, rows: Sequence[SeriesRow]) -> str:
    row = rows[first.series]
    if row.exact:
        return f"{pair_text(first.old, first.new, row.unit)} ({member_change(first, row)})"
    if event.cases == 1 or event.smallest is None or event.largest is None or event.ratio is None:
        return member_change(first, row)
    return f"{format_change(event.ratio)} ({format_interval(event.smallest, event.largest)} over the cases)"


def difference_text(difference: float, unit: str) -> str:
    """Return a difference with its sign and unit: ``+12.0 KiB``; ``same`` for 0."""
    return f"{'+' if difference > 0 else '-'}{value_text(abs(difference), unit)}" if difference else "same"


def member_change(member: Member, row: SeriesRow) -> str:
    """Return a member's change: ``+8.1 % (+6.9 %…+9.4 %)``; for an exact quantity, the difference."""
    if row.exact:
        return difference_text(member.difference, row.unit)
    if member.ratio is None:
        return TOO_FEW
    if member.low is None or member.high is None or member.low == member.high:
        return format_change(member.ratio)
    return f"{format_change(member.ratio)} ({format_interval(member.low, member.high)})"


def where(event: EventRow, contents: Contents) -> str:
    """Return the dates and commits among which an event lies: ``2026-11-03, abc1234..def5678 (3 commits)``."""
    runs = contents.runs
    old, new = runs[event.last_old], runs[event.first_new]
    dates = list(dict.fromkeys((old.created[:10], new.created[:10])))
    said = " to ".join(dates)
    if event.good is None or event.bad is None:
        return f"{said}, between {old.file} and {new.file}, which name no commits"
    span = f"{short(event.good)}..{short(event.bad)}"
    if event.kind == ACCEPTED:
        many = "" if event.commits_total is None else f", {format_count(event.commits_total, 'commit')} before"
        return f"{said}, accepted in {short(event.bad)} {new.file}; the last one in {short(event.good)}{many}"
    if event.commits_total is None:
        return f"{said}, {span} (this repository does not have them)"
    return f"{said}, {span} ({format_count(event.commits_total, 'commit')})"


def short(commit: str) -> str:
    """Return the short form of a commit: ``abc1234``, with ``+dirty`` behind it if files differed."""
    name, plus, rest = commit.partition("+")
    return name[:_SHORT] + plus + rest


def remarks(event: EventRow, contents: Contents) -> list[str]:
    """Return further facts about an event, as sentences."""
    said = []
    if event.kind == POSSIBLE:
        said.append("no alarm: among so many series a change like this occurs by chance")
    if event.kind == MACHINE and event.machine_ratio is not None:
        said.append(f"caused by the machine: {_FIXED_WORK} changed by {format_change(event.machine_ratio)}")
    elif event.kind == MACHINE:
        said.append("not caused by the code: both runs are of the same commit")
    elif event.machine_ratio is not None:
        changed = format_change(event.machine_ratio)
        left = format_change(event.rest_ratio or 1.0)
        part = next((one for one in event.members if one.rest is not None), None)
        if event.cases == 1 and part is not None and part.rest_low is not None and part.rest_high is not None:
            left += f" ({format_interval(part.rest_low, part.rest_high)})"
        said.append(f"the machine changed too: {_FIXED_WORK} by {changed}; without that, {left} remains")
    for number in event.undoes:
        said.append(f"the level before event {number} came back")
    returns = Counter(one.undone_by for one in event.members if one.undone_by is not None)
    for number, many in sorted(returns.items()):
        if many == len(event.members):
            said.append(f"temporary: event {number} reverted it")
        else:
            said.append(f"in {many} of {len(event.members)} series the level came back in event {number}")
    gone = sum(contents.series[one.series].gone for one in event.members)
    if gone == len(event.members):
        said.append("its cases no longer exist, so it does not count for --fail")
    said += [f"reason: {reason}" for reason in event.reasons]
    return said


def break_text(one: BreakRow, contents: Contents) -> str:
    """Return a break in words.

    ``from 2026-02-10, abc1234: torch 2.14, before torch 2.13; latency of gemm 1.3 ms -> 1.2 ms, not judged``.
    """
    run = contents.runs[one.run]
    since = ", ".join([run.created[:10], *([short(run.commit)] if run.commit else [])])
    first = one.members[0]
    row = contents.series[first.after]
    many = len(one.members) - 1
    more = f", and {many} more series" if many else ""
    was = f", before {one.before}" if one.before else ""
    now = one.now or "another environment"
    return f"from {since}: {now}{was}; {series_name(row)} {pair_text(first.old, first.new, row.unit)}{more}, not judged"


def creep_text(row: SeriesRow, contents: Contents) -> str:
    """Return a creep in words.

    ``latency of step[small] crept by +10.2% from 2026-01-01 to 2026-03-01, without a step``.
    """
    first, last = (contents.runs[row.runs[at]].created[:10] for at in (0, -1))
    beside = "beside its steps" if len(row.levels) > 1 else "without a step"
    return f"{series_name(row)} crept by {format_change(row.creep or 1.0)} from {first} to {last}, {beside}"


def member_lines(event: EventRow, contents: Contents, most: int) -> list[str]:
    """Return a line for each member of an event; members past ``most`` are counted in one more line."""
    lines = []
    for one in event.members[:most]:
        row = contents.series[one.series]
        lines.append(f"{series_name(row)}: {pair_text(one.old, one.new, row.unit)}  {member_change(one, row)}")
    left = len(event.members) - most
    return lines + ([f"and {left} more series"] if left > 0 else [])


def no_event(contents: Contents) -> str:
    """Return the line for a history without events, with the number of series that were too short to be judged."""
    few = sum(not row.judged for row in contents.series)
    if not few:
        return "no event: no series changed its level"
    said = f"fewer than {FEWEST} runs and {'were' if few > 1 else 'was'} not judged"
    return f"no event; {few} series {'have' if few > 1 else 'has'} {said}"


def summary(contents: Contents) -> str:
    """Return one line on what was read: runs, dates, cases and series."""
    runs, cases = contents.runs, {(row.case, row.variant) for row in contents.series}
    dates = list(dict.fromkeys((runs[0].created[:10], runs[-1].created[:10]))) if runs else []
    counted = format_count(len(runs), "commit" if contents.accepted else "run")
    counted += " with baselines" if contents.accepted else ""
    over = f", {' to '.join(dates)}" if dates else ""
    again = f"; {format_count(contents.repeated, 'repeat')} of a run left out" if contents.repeated else ""
    return f"{counted}{over}; {format_count(len(cases), 'case')}, {len(contents.series)} series{again}"
