"""How a run is shown: columns, order, and how much."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_COLUMNS = "median,spread,vs_base,peak"
COLLECTED = "collected"


@dataclass(frozen=True)
class View:
    """What is shown of each case beside its verdict, and what cases are sorted by."""

    columns: tuple[str, ...] = tuple(DEFAULT_COLUMNS.split(","))
    sort: str = COLLECTED
    """A column, ``name``, ``fullname`` or ``collected``; with ``-`` before it from the largest down."""
    every: bool = False
    """Whether skipped cases have a line each, and a long run leaves nothing out."""
    brief: bool = False
    """Whether a case has no more than its line and why its verdict is not a plain ok, each reason once."""
    side_by_side: str | None = None
    """The parameter whose levels are set side by side, in place of what each case asks for."""


DEFAULT_VIEW = View()
