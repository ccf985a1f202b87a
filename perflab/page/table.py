"""Tables of a page: cells with what they are sorted by, columns that may be hidden at first. Plain data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from perflab.report.beside_text import NOTHING, amount
from perflab.report.escaping import one_line
from perflab.report.lines import shorten
from perflab.units import format_noise, format_ratio

LONGEST_NAME = 120
"""Letters of a name. The JSON has names whole, a case's section the first and last of a longer id."""
LONGEST_VALUE = 200
_BREAKABLE = 20
_JOINT = re.compile(r"(?:::|[/_])(?=\w)")


@dataclass(frozen=True)
class Column:
    """A column. ``key`` is its name in the address; numbers stand on the right."""

    title: str
    key: str = ""
    number: bool = False
    hidden: bool = False
    """Whether it is there only for who asks for it."""


@dataclass(frozen=True)
class Cell:
    """What stands in a cell; ``more`` stands behind it, smaller."""

    text: str = NOTHING
    sort: float | str | None = None
    number: bool = False
    href: str | None = None
    more: str = ""
    tone: str = ""
    """``bad``, ``warn``, ``good``, or nothing."""

    @property
    def shown(self) -> str:
        """The text. A long one, such as an operator or a path, may break behind its parts, and nowhere within them."""
        if isinstance(self.text, Markup) or len(self.text) < _BREAKABLE:
            return self.text
        return Markup(_JOINT.sub(r"\g<0><wbr>", str(escape(one_line(self.text)))))


@dataclass(frozen=True)
class Row:
    """A row; ``verdict`` is what it is filtered by: one, or several with commas between them."""

    cells: Sequence[Cell]
    verdict: str = ""


@dataclass(frozen=True)
class Choice:
    """A word that rows can be filtered by: how many rows have it, and its tone."""

    word: str
    many: int
    tone: str = ""


@dataclass(frozen=True)
class Filter:
    """Words to choose from. ``before`` stands before each word in a row's ``verdict``: the number of a run."""

    legend: str
    choices: Sequence[Choice]
    before: str = ""


@dataclass(frozen=True)
class PageTable:
    """A table as templates take it."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    filters: Sequence[Filter] = field(default_factory=list)

    @property
    def numeric(self) -> bool:
        """Whether all columns but the first are numbers, which stand on the right."""
        first, *others = self.columns
        return not first.number and all(column.number for column in others)

    @property
    def hidden(self) -> str:
        """Classes that hide columns, for who has no script too."""
        return " ".join(f"h{number}" for number, column in enumerate(self.columns, 1) if column.hidden)


def number_cell(value: float | None, unit: str, more: str = "", tone: str = "") -> Cell:
    """A number in its unit, sorted by its value."""
    if value is None:
        return Cell(number=True)
    return Cell(written(value, unit), sort=order(value), number=True, more=more, tone=tone)


def change_cell(text: str, tone: str, sort: float | None = None) -> Cell:
    """A change, sorted by its ratio; one with a tone stands smaller."""
    sort = order(sort) if sort is not None else None
    return Cell("", sort, number=True, more=text, tone=tone) if tone else Cell(text, sort, number=True)


def short(text: str, most: int = LONGEST_NAME) -> str:
    """A name as pages have it: of one that would fill a screen its beginning and its end."""
    return shorten(one_line(text), most)


def order(value: float) -> float | int:
    """What a number is sorted by: exactly if it is a whole one, else with six digits."""
    return int(value) if float(value).is_integer() else float(f"{value:.6g}")


def written(value: float, unit: str) -> str:
    """A number as text: ``ns``, ``bytes``, ``count``, ``share``, ``ratio``, ``per second``; ``noise``: of a median."""
    if unit == "noise":
        return format_noise(value)
    if unit == "share":
        return f"{100 * value:.1f}%"
    if unit == "ratio":
        return format_ratio(value) if value >= 0 else f"-{format_ratio(-value)}"
    if unit == "s":
        return amount(1e9 * value, "ns")
    return amount(value, unit)


TONES = {
    "regressed": "bad",
    "failed": "bad",
    "oom": "bad",
    "inconclusive": "warn",
    "incomparable": "warn",
    "improved": "good",
}
"""Of verdicts; others have the colour of text."""
