"""Renders a history as text: for a terminal, events first, then a line for each series; as CSV, a row a point."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from perflab.history.contents import ACCEPTED, ALARM, MACHINE, POSSIBLE, BetweenRow, Contents, EventRow, SeriesRow
from perflab.history.wording import (
    break_text,
    creep_text,
    difference_text,
    member_lines,
    no_event,
    remarks,
    series_name,
    short,
    summary,
    title,
    where,
)
from perflab.tables.beside_text import value_text
from perflab.tables.escaping import one_line
from perflab.tables.lines import cut, shorten
from perflab.units import format_change, format_count

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
        yield from _between(contents, contents.between, width)
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


def _between(contents: Contents, asked: BetweenRow, width: int) -> Iterator[str]:
    """Yield a line with the two runs, then a line for each commit between them, newest first."""
    ends = [contents.runs[at] for at in (asked.older, asked.newer)]
    said = [f"{short(run.commit or '')} ({run.created[:10]})" for run in ends]
    yield f"between {said[0]} and {said[1]}: {format_count(len(asked.commits), 'commit')}"
    for one in asked.commits:
        yield shorten_end(f"  {short(one.commit)} {one.date} {one.subject}", width)


def notes(contents: Contents) -> list[tuple[str, list[str]]]:
    """Return notes beside the events, each a heading with its lines.

    The notes are the breaks where series begin anew, newest first, and the series that crept, the largest creep first.
    """
    crept = sorted((row for row in contents.series if row.creep), key=lambda row: -abs(math.log(row.creep or 1.0)))
    begun = [break_text(one, contents) for one in reversed(contents.breaks)]
    heads = "new environments and names, which begin new series", "slow changes, no alarms"
    said = zip(heads, (begun, [creep_text(row, contents) for row in crept]), strict=True)
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
        yield shorten_end(line.rstrip(), width)
    yield ""


def shorten_end(line: str, width: int) -> str:
    """Return the text on one line, cut at its end to ``width`` characters."""
    return cut(one_line(line), width)


def _event(event: EventRow, contents: Contents, width: int) -> Iterator[str]:
    yield from _wrapped(f"{event.number}  ", title(event, contents), width)
    yield from _wrapped("   ", where(event, contents), width)
    for remark in remarks(event, contents):
        yield from _wrapped("   ", remark, width)
    for one in event.commits[:_MOST_COMMITS]:
        yield shorten_end(f"     {short(one.commit)} {one.date} {one.subject}", width)
    if event.commits_total is not None and event.commits_total > min(len(event.commits), _MOST_COMMITS):
        yield f"     and {event.commits_total - min(len(event.commits), _MOST_COMMITS)} more"
    if len(event.members) > 1:
        for line in member_lines(event, contents, _MOST_MEMBERS):
            yield shorten(f"     {line}", width)


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
    widths = [max(len(line[at]) for line in [heads, *cells]) for at in range(len(heads))]
    widths[0] = min(widths[0], max(12, width - sum(widths[1:]) - 2 * (len(heads) - 1)))
    last = ""
    for line in [heads, *cells]:
        name = "" if line[0] == last else shorten(line[0], widths[0])
        last = line[0]
        fields = [name.ljust(widths[0]), line[1].ljust(widths[1]), line[2].ljust(widths[2])]
        fields += [line[at].rjust(widths[at]) for at in (3, 4, 5)]
        yield "  ".join([*fields, line[6]]).rstrip()


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
            writer.writerow([_plain(cell) for cell in [*cells, f"{level.value:.17g}", one.file]])
    return text.getvalue().encode("utf-8", "backslashreplace").decode("utf-8")


def _plain(cell: str) -> str:
    return "'" * (cell.startswith(_FORMULA) and not _NUMBER.fullmatch(cell)) + one_line(cell)
