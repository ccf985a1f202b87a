"""A report as one HTML page with its picture: nothing is loaded from anywhere, and nothing in it runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from perflab.page import table as pages
from perflab.page.render import render
from perflab.page.svg import element
from perflab.snapshots.analysis import categories_of
from perflab.snapshots.model import Snapshot
from perflab.snapshots.picture import color_of, picture
from perflab.snapshots.tables import Report, Table, shown


@dataclass(frozen=True)
class _Pictured:
    title: str
    svg: Markup
    legend: Sequence[tuple[Markup, str]]


def as_page(report: Report, pictured: Sequence[tuple[str, Snapshot]]) -> str:
    """The page.

    Args:
        report: what is said.
        pictured: snapshots whose timelines are drawn, with a title each.
    """
    return render(
        "snapshot.html",
        report=report,
        pictured=[_Pictured(title, Markup(picture(one)), _legend(one)) for title, one in pictured],
        facts=[(fact.title, shown(fact.value, fact.kind)) for fact in report.facts],
        tables=[(table, _table(table)) for table in report.tables],
    )


def _legend(snapshot: Snapshot) -> list[tuple[Markup, str]]:
    return [(_square(color_of(name)), name) for name in categories_of(snapshot)]


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
