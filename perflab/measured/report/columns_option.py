"""``--perf-columns`` and ``--perf-sort``: the columns of the table of measured cases, and its order."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Collection, Sequence

from perflab.measured.report.columns import STANDARD, Column, named
from perflab.report.view import COLLECTED, View
from perflab.results import Result

COLUMNS = tuple(name for name in STANDARD if name != "quoted")
"""What the table may have; a study's table also has what its cases noted, and what they quote."""
ORDERS = (COLLECTED, "name", "fullname", *COLUMNS)


def columns_of(view: View) -> list[Column]:
    """The view's columns, in their order."""
    return [named(name) for name in view.columns]


def ordered(results: Sequence[Result], view: View) -> list[Result]:
    """The results in the view's order; those with nothing in its column stand last, as they were collected."""
    by, down = view.sort.removeprefix("-"), view.sort.startswith("-")
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
