"""Renders a history as one page: events, then a table of the series, then each series as a chart with its numbers.

A chart has a series' points, the levels between changes, and a band for each change. Its horizontal axis counts runs,
so that all charts of a page have the same moment at the same place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup

from perflab.base.git import commit_page
from perflab.history.contents import ALARM, Contents, EventRow, SeriesRow
from perflab.history.text import (
    HEADS,
    brief,
    member_change,
    no_event,
    notes,
    remarks,
    series_name,
    short,
    since_start,
    summary,
    title,
    where,
)
from perflab.page.charts import Scale, around, chart, element, rounded, ticks
from perflab.page.render import render
from perflab.page.table import Cell, Choice, Column, Filter, PageTable, Row, number_cell
from perflab.tables.beside_text import pair_texts, value_text
from perflab.tables.escaping import one_line
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


MOST_CHARTS = 150
"""The most series that are drawn, those with events first. The table has more of them, and the JSON has all."""
MOST_ROWS = 2_000
"""The most series in the table."""
MOST_POINTS = 200
"""The most points of a series whose numbers stand below its chart; these are the newest."""
_MOST_MEMBERS = 40
_LONGEST_ID = 400
_LEAST_P = 1e-6
_BANDS = ("a band is where a change lies, with 95 % certainty", "a band lies between the two runs of a change")
"""Explanations of a chart's bands: for quantities that vary, and for exact quantities."""
_FEW = "not judged"


def as_page(contents: Contents) -> str:
    """Render the page, and return its HTML."""
    order = sorted(range(len(contents.series)), key=lambda at: (not contents.series[at].events, at))
    drawn = order[:MOST_CHARTS]
    listed = order[:MOST_ROWS]
    kinds = [
        (head, [_event(one, contents, drawn) for one in reversed(contents.events) if one.kind == kind])
        for kind, head in HEADS.items()
    ]
    return render(
        "history.html",
        title=f"perflab history: {contents.source}",
        summary=summary(contents),
        notes=[(head.capitalize(), map(one_line, lines)) for head, lines in notes(contents)],
        kinds=[(head.capitalize(), events) for head, events in kinds if events],
        no_event=f"{no_event(contents).capitalize()}.",
        table=_table(listed, drawn, contents),
        rows_left=len(order) - len(listed),
        rows_left_same=all(_word(contents.series[at]) == "unchanged" for at in order[MOST_ROWS:]),
        series=[_series(at, contents) for at in drawn],
        charts_left=len(order) - len(drawn),
        left_out=contents.left_out,
        left_out_head=f"{format_count(len(contents.left_out), 'file')} left out",
        environments=contents.environments,
        version=contents.perflab,
    )


def _event(event: EventRow, contents: Contents, drawn: Sequence[int]) -> dict[str, object]:
    """Return the texts and tables of an event, by their names in the template."""
    tone = "" if event.kind != ALARM else "bad" if event.worse else "good"
    commits = [Row([_commit_cell(one.commit, contents, one.date), Cell(one.subject)]) for one in event.commits]
    members = []
    for one in event.members[:_MOST_MEMBERS]:
        row = contents.series[one.series]
        # The chance of a change in an unchanged series.
        chance = "exact" if row.exact else "accepted"
        if one.p is not None:
            chance = f"{one.p:.1g}" if one.p >= _LEAST_P else f"< {_LEAST_P:.0e}"
        href = f"#series-{one.series + 1}" if one.series in drawn else None
        cells = [
            Cell(brief(row.name), href=href),
            Cell(brief(row.quantity)),
            *(
                Cell(said, float(f"{value:.7g}"), number=True)
                for said, value in zip(pair_texts(one.old, one.new, row.unit), (one.old, one.new), strict=True)
            ),
            Cell(member_change(one, row), one.ratio, number=True),
            Cell(chance, one.p, number=True),
        ]
        members.append(Row(cells))
    heads = [Column("case"), Column("quantity"), *(Column(one, number=True) for one in ("before", "after"))]
    heads += [Column("change (95 % interval)", number=True), Column("p", number=True)]
    return dict(
        event=event,
        title=title(event, contents),
        where=where(event, contents),
        remarks=remarks(event, contents),
        tone=tone,
        commits=PageTable([Column("commit"), Column("subject")], commits) if commits else None,
        commits_left=max(0, (event.commits_total or 0) - len(commits)),
        members=PageTable(heads, members),
        members_left=len(event.members) - len(members),
    )


def _commit_cell(commit: str | None, contents: Contents, more: str = "") -> Cell:
    return Cell(short(commit) if commit else "", href=commit_page(contents.repository, commit), more=more)


def number_cell_of(value: float, row: SeriesRow) -> Cell:
    """Return a table's cell with a value of a series."""
    return Cell(value_text(value, row.unit), float(f"{value:.7g}"), number=True)


def _table(listed: Sequence[int], drawn: Sequence[int], contents: Contents) -> PageTable:
    columns = [
        Column("case", "case"),
        Column("quantity", "quantity"),
        Column("history", "history"),
        Column("points", "points", number=True),
        Column("first level", "first", number=True, hidden=True),
        Column("last", "last", number=True),
        Column("change", "change", number=True),
        Column("events", "events"),
        Column("environment", "environment", hidden=len(contents.environments) < 2),
    ]
    known = set(drawn)
    rows = []
    for at in listed:
        row = contents.series[at]
        cells = [
            Cell(brief(row.name), href=f"#series-{at + 1}" if at in known else None),
            Cell(brief(row.quantity)),
            Cell(spark(row), row.ratio),
            number_cell(row.points, "count"),
            number_cell_of(row.levels[0].value, row),
            number_cell_of(row.values[-1], row),
            Cell(since_start(row), row.ratio, number=True),
            Cell(", ".join(map(str, row.events))),
            Cell(f"no. {row.environment + 1}"),
        ]
        rows.append(Row(cells, verdict=_word(row)))
    words = Counter(_word(contents.series[at]) for at in listed)
    choices = [Choice(word, words[word]) for word in ("changed", "unchanged", *([_FEW] if _FEW in words else []))]
    return PageTable(columns, rows, [Filter("Level", choices)])


def _word(row: SeriesRow) -> str:
    if row.events:
        return "changed"
    return "unchanged" if row.judged else _FEW


def _series(at: int, contents: Contents) -> dict[str, object]:
    """Return the texts, chart and table of a series, by their names in the template."""
    row = contents.series[at]
    start = max(0, len(row.values) - MOST_POINTS)
    rows = []
    for point in reversed(range(start, len(row.values))):
        run = contents.runs[row.runs[point]]
        cells = [
            Cell(run.created[:16].replace("T", " ")),
            _commit_cell(run.commit, contents),
            number_cell_of(row.values[point], row),
            Cell(contents.words[row.words[point]]),
            *([Cell(run.file)] if contents.accepted else []),
        ]
        rows.append(Row(cells))
    columns = [Column("when"), Column("commit"), Column("value", number=True), Column("said")]
    columns += [Column("subject")] if contents.accepted else []
    return dict(
        id=f"series-{at + 1}",
        row=row,
        name=brief(row.name),
        quantity=brief(row.quantity),
        case=brief(f"{row.case} {row.variant}".rstrip(), _LONGEST_ID),  # the node id and the variant
        is_open=bool(row.events),
        last=value_text(row.values[-1], row.unit),
        change=since_start(row),
        chart=line_chart(row, contents),
        told=one_line(described(row, contents)),
        bands=_BANDS[row.exact],
        numbers=PageTable(columns, rows),
        numbers_left=start,
    )
