"""Draws a series as SVG: its points, the levels between changes, and a band for each change. Pure.

The horizontal axis counts runs, so that all charts of a page have the same moment at the same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup

from perflab.history.contents import Contents, SeriesRow
from perflab.history.wording import series_name, short, value_text
from perflab.page.svg import Scale, around, chart, element, rounded, ticks
from perflab.units import format_count

WIDTH, HEIGHT = 640, 166
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 28, 18, 40
_MARK = 72
"""Width of a commit's label on the horizontal axis, in pixels."""
_LEAST_HEIGHT = 0.06
"""The least span of the vertical axis, as a share of the values, so that noise does not look like a change."""
_MOST_POINTS = 200
"""The most points that are drawn as dots; more points are drawn as a line alone."""
SPARK_WIDTH, SPARK_HEIGHT = 110, 20
_SPARK_POINTS = 40


def line_chart(row: SeriesRow, contents: Contents) -> Markup:
    """Draw the chart of one series."""
    across = Scale(0, max(1, len(contents.runs) - 1), _LEFT, WIDTH - _RIGHT)
    middle = (max(row.values) + min(row.values)) / 2
    least = [middle * (1 + sign * _LEAST_HEIGHT / 2) for sign in (-1, 1)]
    up = around([*row.values, *least], HEIGHT - _BOTTOM, _TOP, 0.06)
    parts = [*_axes(row, contents, across, up), *_bands(row, contents, across)]
    places = [(across(run), up(value)) for run, value in zip(row.runs, row.values, strict=True)]
    parts.append(element("path", d=_path(places), class_="series"))
    for level in row.levels if not row.exact else ():
        start, end = across(row.runs[level.first]), across(row.runs[level.last])
        parts.append(element("path", d=f"M{rounded(start)} {rounded(up(level.value))}H{rounded(end)}", class_="level"))
    if len(places) <= _MOST_POINTS:
        for run, word, value, (x, y) in zip(row.runs, row.words, row.values, places, strict=True):
            one = contents.runs[run]
            commit = f", {short(one.commit)}" if one.commit else ""
            said = f"{one.created[:16].replace('T', ' ')}{commit}: {value_text(value, row.unit)}"
            tip = element("title", ", ".join(filter(None, (said, contents.words[word]))))
            parts.append(element("circle", [tip], cx=rounded(x), cy=rounded(y), r=2.6, class_="dot"))
    return chart(series_name(row), described(row, contents), WIDTH, HEIGHT, parts)


def described(row: SeriesRow, contents: Contents) -> str:
    """Return the chart in words: each level with its number of points and its dates."""
    said = []
    for level in row.levels:
        first, last = contents.runs[row.runs[level.first]], contents.runs[row.runs[level.last]]
        span = " to ".join(dict.fromkeys((first.created[:10], last.created[:10])))
        said.append(
            f"{value_text(level.value, row.unit)} over {format_count(level.last - level.first + 1, 'point')}, {span}"
        )
    return "; ".join(said)


def spark(row: SeriesRow) -> Markup:
    """Draw a series as a small chart, a single line, for a row of a table."""
    values = thinned(row.values, _SPARK_POINTS)
    low, high = min(values), max(values)
    room = max(high - low, 0.1 * high) or 1.0
    middle = (low + high) / 2
    up = Scale(middle - room / 2, middle + room / 2, SPARK_HEIGHT - 2, 2)
    across = Scale(0, max(1, len(values) - 1), 2, SPARK_WIDTH - 2)
    path = _path([(across(at), up(value)) for at, value in enumerate(values)])
    title = element("title", f"{series_name(row)}: {value_text(row.values[-1], row.unit)} at last")
    drawn = [title, element("path", d=path, class_="series")]
    return element("svg", drawn, viewBox=f"0 0 {SPARK_WIDTH} {SPARK_HEIGHT}", role="img", class_="spark")


def thinned(values: Sequence[float], most: int) -> list[float]:
    """Return at most ``most`` values in their order: the least and the greatest of each stretch, and the last value."""
    if len(values) <= most:
        return list(values)
    stretches = (most - 1) // 2
    edges = [round(at * (len(values) - 1) / stretches) for at in range(stretches + 1)]
    kept = {len(values) - 1}
    for start, end in pairwise(edges):
        kept |= {min(range(start, end), key=values.__getitem__), max(range(start, end), key=values.__getitem__)}
    return [values[at] for at in sorted(kept)]


def _path(places: Sequence[tuple[float, float]]) -> str:
    if len(places) == 1:
        return f"M{rounded(places[0][0])} {rounded(places[0][1])}h0.1"
    return "M" + "L".join(f"{rounded(x)} {rounded(y)}" for x, y in places)


def _axes(row: SeriesRow, contents: Contents, across: Scale, up: Scale) -> list[Markup]:
    marks = ticks(up.low, up.high, 4, row.unit)
    grid = "".join(f"M{_LEFT} {rounded(up(value))}H{WIDTH - _RIGHT}" for value in marks)
    parts = [element("path", d=grid, class_="grid")]
    for value in marks:
        text = value_text(value, row.unit)
        parts.append(element("text", text, x=_LEFT - 8, y=rounded(up(value) + 4), class_="faint end"))
    runs = contents.runs
    many = min(len(runs), int((WIDTH - _RIGHT - _LEFT) / _MARK))
    for at in sorted({round(number * (len(runs) - 1) / max(1, many - 1)) for number in range(many)}):
        x = rounded(across(at))
        parts.append(element("path", d=f"M{x} {HEIGHT - _BOTTOM}v4", class_="grid"))
        # Only the first and the last date show the year, so that the labels between them have one width.
        day = runs[at].created[5 * (at not in (0, len(runs) - 1)) : 10]
        said = [short(runs[at].commit or "").partition("+")[0], day]
        for number, text in enumerate(filter(None, said)):
            parts.append(element("text", text, x=x, y=HEIGHT - 22 + 16 * number, class_="faint middle"))
    return parts


def _bands(row: SeriesRow, contents: Contents, across: Scale) -> list[Markup]:
    """Draw a band for each change of the series across the runs that it lies among, below its event's number."""
    parts = []
    number_of = {
        (one.at, one.before, one.after): (event.number, event.kind)
        for event in contents.events
        if event.number in row.events
        for one in event.members
        if contents.series[one.series] is row
    }
    for (_, before, after), (number, kind) in sorted(number_of.items()):
        start, end = across(row.runs[before]), across(row.runs[after])
        width, height = rounded(max(end - start, 1.5)), HEIGHT - _TOP - _BOTTOM
        parts.append(element("rect", x=rounded(start), y=_TOP, width=width, height=height, class_=f"band {kind}"))
        x = rounded((start + end) / 2)
        parts.append(element("text", f"event {number}", x=x, y=_TOP - 5, class_="faint middle"))
    return parts
