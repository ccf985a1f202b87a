"""How the table of a run's cases is shown: its columns, and the order of its lines."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from perflab.records import Result
from perflab.report.columns import STANDARD, Column, named

COLUMNS = tuple(name for name in STANDARD if name != "quoted")
"""What the table may have; a study's table also has what its cases noted, and what they quote."""
DEFAULT_COLUMNS = "median,spread,vs_base,peak"
COLLECTED = "collected"
ORDERS = (COLLECTED, "name", "fullname", *COLUMNS)


@dataclass(frozen=True)
class View:
    """What is shown of each case beside its verdict, and what cases are sorted by."""

    columns: tuple[str, ...] = tuple(DEFAULT_COLUMNS.split(","))
    sort: str = COLLECTED
    """One of ``ORDERS``, with ``-`` before it from the largest down."""
    every: bool = False
    """Whether skipped cases have a line each, and a long run leaves nothing out."""
    brief: bool = False
    """Whether a case has no more than its line and why its verdict is not a plain ok, each reason once."""

    @property
    def table_columns(self) -> list[Column]:
        """The columns, in their order."""
        return [named(name) for name in self.columns]

    def ordered(self, results: Sequence[Result]) -> list[Result]:
        """The results as they are to stand; what has nothing in the column stands last, as it was collected."""
        by, down = self.sort.removeprefix("-"), self.sort.startswith("-")
        if by == COLLECTED:
            return list(reversed(results)) if down else list(results)
        if by == "fullname":
            return sorted(results, key=lambda result: result.case, reverse=down)
        if by == "name":
            return sorted(results, key=lambda result: _function(result.case), reverse=down)
        values = [(named(by).value(result), result) for result in results]
        known = [(value, result) for value, result in values if isinstance(value, int | float)]
        known.sort(key=lambda pair: pair[0], reverse=down)
        return [
            *(result for _, result in known),
            *(result for value, result in values if not isinstance(value, int | float)),
        ]


DEFAULT_VIEW = View()


def parse_columns(text: str) -> tuple[str, ...]:
    """Read ``"min, max, mean"``.

    Raises:
        ValueError: a name that is no column, with one that is like it.
    """
    return tuple(dict.fromkeys(_known(name.strip().replace(" ", "_"), COLUMNS) for name in text.split(",")))


def parse_sort(text: str) -> str:
    """Read ``"mean"`` or ``"-mean"``.

    Raises:
        ValueError: nothing that cases are sorted by, with one that is like it.
    """
    name = text.strip()
    return "-" * name.startswith("-") + _known(name.removeprefix("-").replace(" ", "_"), ORDERS)


def _known(name: str, names: Collection[str]) -> str:
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        listed = textwrap.fill(", ".join(names), 100, initial_indent="     ", subsequent_indent="     ")
        raise ValueError(f"{name!r} is none of these{hint}\n{listed}")
    return name


def _function(case: str) -> str:
    """``tests/test_x.py::TestY::test_step[small]`` -> ``test_step[small]``; parameters may hold any separator."""
    path, bracket, parameters = case.partition("[")
    return path.rpartition("::")[2] + bracket + parameters
