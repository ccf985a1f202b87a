"""Renders a history as one page: events, then a table of the series, then each series as a chart with its numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from perflab.base.git import commit_page
from perflab.history.chart import described, line_chart, spark
from perflab.history.contents import ALARM, Contents, EventRow, Member, SeriesRow
from perflab.history.text import HEADS, notes, since_start
from perflab.history.wording import (
    brief,
    member_change,
    no_event,
    pair_texts,
    remarks,
    short,
    summary,
    title,
    value_text,
    where,
)
from perflab.page.render import render
from perflab.page.table import Cell, Choice, Column, Filter, PageTable, Row, number_cell
from perflab.tables.escaping import one_line
from perflab.units import format_count

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
        href = f"#series-{one.series + 1}" if one.series in drawn else None
        cells = [
            Cell(brief(row.name), href=href),
            Cell(brief(row.quantity)),
            *(
                Cell(said, float(f"{value:.7g}"), number=True)
                for said, value in zip(pair_texts(one.old, one.new, row.unit), (one.old, one.new), strict=True)
            ),
            Cell(member_change(one, row), one.ratio, number=True),
            Cell(chance_text(one, row), one.p, number=True),
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


def chance_text(member: Member, row: SeriesRow) -> str:
    """Return the chance of a change in an unchanged series as text; ``exact`` or ``accepted`` if it has no ``p``."""
    if member.p is None:
        return "exact" if row.exact else "accepted"
    return f"{member.p:.1g}" if member.p >= _LEAST_P else f"< {_LEAST_P:.0e}"


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
