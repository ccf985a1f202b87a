"""Renders a history as text: for a terminal, events first, then a line for each series; as CSV, a row a point. Pure.

Events and series are described in the same words for a terminal and for the page.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from perflab.history.contents import (
    ACCEPTED,
    ALARM,
    MACHINE,
    POSSIBLE,
    BreakRow,
    Contents,
    EventRow,
    Member,
    SeriesRow,
)
from perflab.history.judging import FEWEST
from perflab.tables.beside_text import pair_text, value_text
from perflab.tables.escaping import one_line
from perflab.tables.lines import columns, cut, shorten
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
    cut = f"; times of {format_count(contents.cut_short, 'run')} left out, which --perf-check=exact cut short"
    left_out = f"{again}{cut if contents.cut_short else ''}"
    return f"{counted}{over}; {format_count(len(cases), 'case')}, {len(contents.series)} series{left_out}"


_TICKS = "▁▂▃▄▅▆▇█"
_SPARK, _LEAST_SPARK = 24, 10
_BESIDE = 50
"""Approximate width, in characters, of the table's columns other than the name and the sparkline."""
_LEAST_HEIGHT = 0.1
_MOST_MEMBERS = 6
_MOST_COMMITS = 8
_MOST_NOTES = 8
_MOST_QUANTITY = 24
_MOST_IN_FULL = 6
"""The most series that are shown point by point."""
_MOST_POINTS = 20
_MOST_LINES = 200
"""The most lines of the table; the JSON has all of the series."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?", re.ASCII | re.IGNORECASE)
COLUMNS = ("case", "variant", "quantity", "unit", "environment", "created", "commit", "value", "said", "level", "file")
HEADS = {
    ALARM: "events",
    ACCEPTED: "accepted changes",
    MACHINE: "caused by the machine, no alarms",
    POSSIBLE: "possible, no alarms",
}
"""The heading for each kind of event, in the order in which the kinds are shown."""


def as_text(contents: Contents, width: int) -> str:
    """Return the text of a history for a terminal of ``width`` columns; the text ends with a newline."""
    return "\n".join(one_line(line) for line in _lines(contents, width)) + "\n"


def _lines(contents: Contents, width: int) -> Iterator[str]:
    if contents.between is not None:
        asked = contents.between  # a line with the two runs, then a line for each commit between them, newest first
        ends = [contents.runs[at] for at in (asked.older, asked.newer)]
        said = [f"{short(run.commit or '')} ({run.created[:10]})" for run in ends]
        yield f"between {said[0]} and {said[1]}: {format_count(len(asked.commits), 'commit')}"
        for commit in asked.commits:
            yield cut(one_line(f"  {short(commit.commit)} {commit.date} {commit.subject}"), width)
        return
    yield f"{contents.source}: {summary(contents)}"
    for one in contents.left_out[:_MOST_COMMITS]:
        yield f"left out: {one.file}: {one.problem}"
    if len(contents.left_out) > _MOST_COMMITS:
        more = format_count(len(contents.left_out) - _MOST_COMMITS, "more file")
        yield f"and {more} left out; --format=json names all"
    yield ""
    for kind, head in HEADS.items():
        events = [one for one in contents.events if one.kind == kind]
        if events:
            yield head
            for event in reversed(events):
                yield from _event(event, contents, width)
            yield ""
    if not contents.events:
        yield no_event(contents)
        yield ""
    for head, lines in notes(contents):
        yield head
        for line in lines[:_MOST_NOTES]:
            yield from _wrapped("   ", line, width)
        yield from [f"   and {len(lines) - _MOST_NOTES} more; --format=json has all"] * (len(lines) > _MOST_NOTES)
        yield ""
    yield from _table(contents, width)
    if len(contents.series) <= _MOST_IN_FULL:
        for row in contents.series:
            yield from _points(row, contents, width)


def notes(contents: Contents) -> list[tuple[str, list[str]]]:
    """Return notes beside the events, each a heading with its lines.

    The notes are the breaks where series begin anew, newest first, and the series that crept, the largest creep first.
    """
    crept = sorted((row for row in contents.series if row.creep), key=lambda row: -abs(math.log(row.creep or 1.0)))
    begun = [break_text(one, contents) for one in reversed(contents.breaks)]
    creeps = []
    for row in crept:
        first, last = (contents.runs[row.runs[at]].created[:10] for at in (0, -1))
        beside = "beside its steps" if len(row.levels) > 1 else "without a step"
        creeps.append(f"{series_name(row)} crept by {format_change(row.creep or 1.0)} from {first} to {last}, {beside}")
    heads = "new environments and names, which begin new series", "slow changes, no alarms"
    said = zip(heads, (begun, creeps), strict=True)
    return [(head, lines) for head, lines in said if lines]


def _points(row: SeriesRow, contents: Contents, width: int) -> Iterator[str]:
    """Yield lines on the last points of a series, newest first, with the verdict or reason of each point."""
    yield shorten(series_name(row), width)
    points = list(zip(row.runs, row.values, row.words, strict=True))[-_MOST_POINTS:]
    for run, value, word in reversed(points):
        one = contents.runs[run]
        commit = short(one.commit) if one.commit else ""
        when, value_said = one.created[:16].replace("T", " "), value_text(value, row.unit)
        line = f"  {when}  {commit:<7}  {value_said:>9}  {contents.words[word]}"
        yield cut(one_line(line.rstrip()), width)
    yield ""


def _event(event: EventRow, contents: Contents, width: int) -> Iterator[str]:
    yield from _wrapped(f"{event.number}  ", title(event, contents), width)
    yield from _wrapped("   ", where(event, contents), width)
    for remark in remarks(event, contents):
        yield from _wrapped("   ", remark, width)
    for commit in event.commits[:_MOST_COMMITS]:
        yield cut(one_line(f"     {short(commit.commit)} {commit.date} {commit.subject}"), width)
    if event.commits_total is not None and event.commits_total > min(len(event.commits), _MOST_COMMITS):
        yield f"     and {event.commits_total - min(len(event.commits), _MOST_COMMITS)} more"
    if len(event.members) > 1:
        for one in event.members[:_MOST_MEMBERS]:
            row = contents.series[one.series]
            levels = f"{pair_text(one.old, one.new, row.unit)}  {member_change(one, row)}"
            yield shorten(f"     {series_name(row)}: {levels}", width)
        if len(event.members) > _MOST_MEMBERS:
            yield f"     and {len(event.members) - _MOST_MEMBERS} more series"


def _wrapped(head: str, text: str, width: int) -> Iterator[str]:
    line = head
    for word in one_line(text).split(" "):
        if len(line) > len(head) and len(line) + 1 + len(word) > width:
            yield line
            line = " " * len(head)
        line += word if line == head or not line.strip() else f" {word}"
    yield line


def _table(contents: Contents, width: int) -> Iterator[str]:
    shown = 0
    for number, environment in enumerate(contents.environments):
        rows = [row for row in contents.series if row.environment == number]
        if not rows:
            continue
        rows.sort(key=lambda row: not row.events)  # changed series stand first
        if shown >= _MOST_LINES:
            break
        yield from _wrapped("", environment, width)
        yield from _rows(rows[: _MOST_LINES - shown], width)
        shown += len(rows[: _MOST_LINES - shown])
        yield ""
    if shown < len(contents.series):
        yield f"{len(contents.series) - shown} more series: choose with --case or --quantity; --format=json has all"


def _rows(rows: Sequence[SeriesRow], width: int) -> Iterator[str]:
    heads = ("case", "quantity", "history", "points", "last", "change", "events")
    names = [one_line(row.name) for row in rows]  # escaped: as wide as shown
    longest = max(map(len, names))
    spark = min(_SPARK, max(_LEAST_SPARK, width - _BESIDE - longest))
    cells = [
        (
            name,
            shorten(one_line(row.quantity), _MOST_QUANTITY),
            sparkline(row.values, spark),
            str(len(row.values)),
            value_text(row.values[-1], row.unit),
            since_start(row),
            ", ".join(map(str, row.events)),
        )
        for name, row in zip(names, rows, strict=True)
    ]
    others = [max(map(len, column)) for column in list(zip(heads, *cells, strict=True))[1:]]
    room = max(12, width - sum(others) - 2 * len(others))
    lines, last = [], ""
    for name, *more in [heads, *cells]:
        lines.append(["" if name == last else shorten(name, room), *more])
        last = name
    yield from columns(lines, (3, 4, 5), indent="")


def since_start(row: SeriesRow) -> str:
    """Return the change from the first level to the last level as text."""
    if not row.judged:
        return "too few"
    if len(row.levels) == 1:
        return "same" if row.creep is None else f"{format_change(row.creep)} slowly"
    if row.exact:
        return difference_text(row.difference, row.unit)
    return format_change(row.ratio) if row.ratio is not None else "too few"


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw values as bars, thinned to ``width`` by medians of neighbours.

    The full height is at least a tenth of the highest value, so that noise does not look like a change. A single level
    is a line in the middle.
    """
    many = min(len(values), width)
    edges = [round(at * len(values) / many) for at in range(many + 1)]
    thin = [median(values[start:end]) for start, end in pairwise(edges)]
    low, high = min(thin), max(thin)
    height = max(high - low, _LEAST_HEIGHT * high) or 1.0
    bottom = (low + high - height) / 2
    return "".join(_TICKS[min(len(_TICKS) - 1, int((one - bottom) / height * len(_TICKS)))] for one in thin)


def as_csv(contents: Contents) -> str:
    """Return CSV with a row for each point, which includes the level that the point belongs to.

    Texts that a spreadsheet would compute begin with a quote. Control characters are escaped, since a terminal may show
    the text.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in contents.series:
        ends = iter(row.levels)
        level = next(ends)
        for point, (run, value, word) in enumerate(zip(row.runs, row.values, row.words, strict=True)):
            if point > level.last:
                level = next(ends)
            one = contents.runs[run]
            cells = [row.case, row.variant, row.quantity, row.unit, contents.environments[row.environment]]
            cells += [one.created, one.commit or "", f"{value:.17g}", contents.words[word]]
            cells += [f"{level.value:.17g}", one.file]
            computed = (cell.startswith(_FORMULA) and not _NUMBER.fullmatch(cell) for cell in cells)
            writer.writerow(["'" * quoted + one_line(cell) for cell, quoted in zip(cells, computed, strict=True)])
    return text.getvalue().encode("utf-8", "backslashreplace").decode("utf-8")
