"""One table of a tier for a page of Markdown. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from perflab.report.lines import Row
from perflab.results import Result


@dataclass(frozen=True)
class Section:
    """A table of cases with what belongs to it. All text is plain, and is escaped where it is written."""

    first: str
    """Title of the column of names."""
    rows: list[Row]
    results: list[Result]
    """By row."""
    facts: list[list[str]] = field(default_factory=list)
    """What cases have in common, a list a line; stands above the table."""
    notes: list[str] = field(default_factory=list)
    """Stand below it."""
    blocks: list[str] = field(default_factory=list)
    """More tables below it, written as Markdown already."""
    unfolded: dict[str, list[str]] = field(default_factory=dict)
    """Text that a title opens."""
