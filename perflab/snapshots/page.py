"""Renders a report as one HTML page with pictures, which loads nothing and runs only perflab's own script. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from perflab.page import table as pages
from perflab.page.render import render
from perflab.page.svg import element
from perflab.snapshots.analysis import levels
from perflab.snapshots.model import Snapshot
from perflab.snapshots.page_blocks import PageBlocks, page_blocks
from perflab.snapshots.picture import color_of, picture
from perflab.snapshots.tables import Report, Table, shown
from perflab.snapshots.timeline import Stacking, by_category, by_largest, by_largest_of_both

_TITLES = {"category": "category", "largest": "largest allocations at the peak"}


@dataclass(frozen=True)
class _Stacked:
    key: str
    title: str
    svg: Markup
    legend: Sequence[tuple[Markup, str]]


@dataclass(frozen=True)
class _Pictured:
    title: str
    stacked: Sequence[_Stacked]
    blocks: PageBlocks
    moments: int


def as_page(report: Report, pictured: Sequence[tuple[str, Snapshot]]) -> str:
    """Return a report and its pictures as one HTML page.

    Args:
        report: the facts, tables and notes.
        pictured: the snapshots whose timelines are drawn, each with a title. Two snapshots share the scale of bytes and
            the meaning of colours.
    """
    snapshots = [one for _, one in pictured]
    highest_bytes = max((max(levels(one)) for one in snapshots), default=0)
    largest = (
        by_largest_of_both(snapshots[0], snapshots[1])
        if len(snapshots) == 2
        else [by_largest(one) for one in snapshots]
    )
    return render(
        "snapshot.html",
        script="timeline.js",
        report=report,
        pictured=[
            _pictured(title, one, (by_category(one), groups), highest_bytes)
            for (title, one), groups in zip(pictured, largest, strict=True)
        ],
        facts=[(fact.title, shown(fact.value, fact.kind)) for fact in report.facts],
        tables=[(table, _table(table)) for table in report.tables],
    )


def _pictured(title: str, snapshot: Snapshot, stackings: Sequence[Stacking], highest_bytes: int) -> _Pictured:
    stacked = [
        _Stacked(
            one.key,
            _TITLES[one.key],
            Markup(picture(snapshot, one, highest_bytes)),
            [(_square(color_of(one, number)), name) for number, name in enumerate(one.names)],
        )
        for one in stackings
    ]
    return _Pictured(title, stacked, page_blocks(snapshot, stackings, highest_bytes), snapshot.moments)


def _square(color: str) -> Markup:
    return element("svg", [element("rect", width=11, height=11, fill=color)], viewBox="0 0 11 11", aria_hidden="true")


def _table(table: Table) -> pages.PageTable:
    columns = [pages.Column(column.title, number=column.kind != "text") for column in table.columns]
    rows = [
        pages.Row(
            [
                pages.Cell(shown(value, column.kind), number=column.kind != "text")
                for value, column in zip(row, table.columns, strict=True)
            ]
        )
        for row in table.rows
    ]
    return pages.PageTable(columns, rows)
