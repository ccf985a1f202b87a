"""Makes tables of a case's numbers for a page, with the numbers that they were compared with. Pure."""

from __future__ import annotations

from math import inf

from perflab.page.table import Cell, Column, PageTable, Row, change_cell, number_cell
from perflab.results.records import says_nothing
from perflab.tables.beside_text import amount
from perflab.tables.contents import Quantity, Table
from perflab.units import format_change, format_interval, format_percent

_TITLES = {
    "bound": "lower bound of time",
    "roofline": "roofline time",
    "estimate": "estimated time",
    "saved": "saved for backward",
    "bytes": "bytes moved",
    "flops": "FLOPs",
}


def title_of(name: str) -> str:
    """Return a quantity's name for tables."""
    return _TITLES.get(name, name.replace("_", " "))


def change_text(one: Quantity) -> str:
    """Format a quantity's change as a share; for exact quantities (counts, bytes) as an amount. Empty if unknown."""
    if one.before is None or one.ratio is None:
        return ""
    if one.now == one.before:
        return "same"
    if not one.exact:
        return format_change(one.ratio)
    difference = one.now - one.before
    return f"{'+' if difference > 0 else ''}{amount(difference, one.unit)}"


def interval_text(one: Quantity) -> str:
    """Format the interval of the ratio; in words if the quantity is exact or the interval says nothing."""
    if one.exact:
        return "exact"
    if one.low is None:
        return ""
    if says_nothing(one.low, one.high):
        return "can't tell"
    return format_interval(one.low, one.high if one.high is not None else inf)


def limit_text(one: Quantity) -> str:
    """Format the limit beyond which a change counts as worse; in words if there is no limit or no allowed change."""
    if one.limit is None:
        return "not gated" if one.before is not None else ""
    return "none allowed" if one.limit == 1.0 else f"+{format_percent(one.limit - 1)}"


def quantity_table(quantities: dict[str, Quantity]) -> PageTable:
    """Return a table of quantities, each with the value that it was compared with."""
    compared = any(one.before is not None for one in quantities.values())
    titles = ("before", "now", "change", "95 % interval", "limit") if compared else ("now",)
    columns = [Column("quantity"), *(Column(title, number=True) for title in titles)]
    rows = []
    for name, one in quantities.items():
        before = [number_cell(one.before, one.unit)] if compared else []
        cells = [Cell(title_of(name)), *before, number_cell(one.now, one.unit)]
        if compared:
            cells += [
                change_cell(change_text(one), "bad" if one.worse else ""),
                Cell(interval_text(one) if one.before is not None else "", number=True),
                Cell(limit_text(one), number=True),
            ]
        rows.append(Row(cells))
    return PageTable(columns, rows)


def page_table(table: Table) -> PageTable:
    """Return a tier's table as a table of the page."""
    columns = [Column(column.title, number=column.unit != "text") for column in table.columns]
    rows = [
        Row(
            [
                number_cell(value, column.unit)
                if isinstance(value, int | float) and column.unit != "text"
                else Cell("" if value is None else str(value), number=column.unit != "text")
                for value, column in zip(row, table.columns, strict=True)
            ]
        )
        for row in table.rows
    ]
    return PageTable(columns, rows)
