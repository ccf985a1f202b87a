"""The tables of a page as plain data: cells with the values to sort by, columns that may be hidden."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from markupsafe import Markup, escape

from perflab.results.records import says_nothing
from perflab.tables.beside_text import NOTHING, amount
from perflab.tables.contents import Quantity, Table
from perflab.tables.escaping import one_line
from perflab.tables.lines import percent, shorten
from perflab.units import format_change, format_interval, format_noise, format_percent, format_ratio

LONGEST_NAME = 120
"""The most letters of a name. The JSON has whole names; the section of a case has both ends of a longer id."""
LONGEST_VALUE = 200
_BREAKABLE = 20
_JOINT = re.compile(r"(?:::|[/_])(?=\w)")
_TITLES = {
    "bound": "lower bound of time",
    "roofline": "roofline time",
    "estimate": "estimated time",
    "saved": "saved for backward",
    "bytes": "bytes moved",
    "flops": "FLOPs",
}
TONES = {
    "regressed": "bad",
    "failed": "bad",
    "oom": "bad",
    "inconclusive": "warn",
    "incomparable": "warn",
    "improved": "good",
}
"""The tones of verdicts; other verdicts have the colour of text."""


@dataclass(frozen=True)
class Column:
    """A column of a table. ``key`` is the column's name in the page's address; numbers are aligned to the right."""

    title: str
    key: str = ""
    number: bool = False
    hidden: bool = False
    """Whether the column is hidden until a reader of the page shows it."""


@dataclass(frozen=True)
class Cell:
    """The content of a cell; ``more`` follows the text, in smaller letters."""

    text: str = NOTHING
    sort: float | str | None = None
    number: bool = False
    href: str | None = None
    more: str = ""
    tone: str = ""
    """The tone: ``bad``, ``warn``, ``good``, or empty."""

    @property
    def shown(self) -> str:
        """The text. A long text, such as an operator or a path, may break only between its parts."""
        if isinstance(self.text, Markup) or len(self.text) < _BREAKABLE:
            return self.text
        return Markup(_JOINT.sub(r"\g<0><wbr>", str(escape(one_line(self.text)))))


@dataclass(frozen=True)
class Row:
    """A row of a table; ``verdict`` is the value to filter by: one verdict, or several separated by commas."""

    cells: Sequence[Cell]
    verdict: str = ""


@dataclass(frozen=True)
class Choice:
    """A word by which rows can be filtered, with the number of rows that have the word, and its tone."""

    word: str
    many: int
    tone: str = ""


@dataclass(frozen=True)
class Filter:
    """The words to choose from. ``before`` precedes each word in a row's ``verdict``: the number of a run."""

    legend: str
    choices: Sequence[Choice]
    before: str = ""


@dataclass(frozen=True)
class PageTable:
    """The data of a table for templates."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    filters: Sequence[Filter] = field(default_factory=list)

    @property
    def numeric(self) -> bool:
        """Whether all columns but the first are numbers, which are aligned to the right."""
        first, *others = self.columns
        return not first.number and all(column.number for column in others)

    @property
    def hidden(self) -> str:
        """The CSS classes that hide columns, which work without a script too."""
        return " ".join(f"h{number}" for number, column in enumerate(self.columns, 1) if column.hidden)


def number_cell(value: float | None, unit: str, more: str = "", tone: str = "") -> Cell:
    """Return a cell with a number in its unit, sorted by value."""
    if value is None:
        return Cell(number=True)
    return Cell(written(value, unit), sort=order(value), number=True, more=more, tone=tone)


def change_cell(text: str, tone: str, sort: float | None = None) -> Cell:
    """Return a cell with a change, sorted by its ratio; a change with a tone is written in smaller letters."""
    sort = order(sort) if sort is not None else None
    return Cell("", sort, number=True, more=text, tone=tone) if tone else Cell(text, sort, number=True)


def short(text: str, most: int = LONGEST_NAME) -> str:
    """Shorten a name for a page: a long name keeps its beginning and its end."""
    return shorten(one_line(text), most)


def order(value: float) -> float | int:
    """Return the value by which a number is sorted: exact for a whole number, else rounded to six digits."""
    return int(value) if float(value).is_integer() else float(f"{value:.6g}")


def written(value: float, unit: str) -> str:
    """Format a number in a unit: ``ns``, ``s``, ``bytes``, ``count``, ``share``, ``ratio``, ``per second``, ``noise``.

    ``noise`` is half the width of a median's interval, as a share of the median.
    """
    if unit == "noise":
        return format_noise(value)
    if unit == "share":
        return percent(value)
    if unit == "ratio":
        return format_ratio(value) if value >= 0 else f"-{format_ratio(-value)}"
    if unit == "s":
        return amount(1e9 * value, "ns")
    return amount(value, unit)


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


def quantity_table(quantities: dict[str, Quantity]) -> PageTable:
    """Return a table of quantities, each with the value that it was compared with."""
    compared = any(one.before is not None for one in quantities.values())
    titles = ("before", "now", "change", "95 % interval", "limit") if compared else ("now",)
    columns = [Column("quantity"), *(Column(title, number=True) for title in titles)]
    rows = []
    for name, one in quantities.items():
        before = [number_cell(one.before, one.unit)] if compared else []
        if one.limit is None:  # the limit beyond which a change counts as worse
            limit = "not gated" if one.before is not None else ""
        else:
            limit = "none allowed" if one.limit == 1.0 else f"+{format_percent(one.limit - 1)}"
        cells = [Cell(title_of(name)), *before, number_cell(one.now, one.unit)]
        if compared:
            cells += [
                change_cell(change_text(one), "bad" if one.worse else ""),
                Cell(interval_text(one) if one.before is not None else "", number=True),
                Cell(limit, number=True),
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
