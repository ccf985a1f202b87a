"""How a run is shown: columns, order, and how much; and how the options that say so are read."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Collection
from dataclasses import dataclass

DEFAULT_COLUMNS = "median,spread,vs_base,peak"
COLLECTED = "collected"
PHASES = ("forward", "backward", "optimizer")
COUNTS = (
    "operators",
    "allocations",
    "kernel_launches",
    "host_syncs",
    "graph_breaks",
    "recompiles",
    "instructions",
    "callgrind_instructions",
)
CHARTED = ("ns", "s", "bytes", "per second")
"""Units of which a study's first column is drawn."""
STATISTICS = ("median", "min", "max", "mean", "std", "iqr")
STANDARD = (
    *STATISTICS,
    "ops",
    "rounds",
    "iterations",
    "warmup",
    "spread",
    "vs_base",
    "first",
    *PHASES,
    "peak",
    "MFU",
    "quoted",
    *COUNTS,
)
"""Names that no fact can have. Rates are named by their unit of work (``tokens/s``), and no fact's name has a slash."""
COLUMNS = tuple(name for name in STANDARD if name != "quoted")
"""What the table may have; a study's table also has what its cases noted, and what they quote."""
ORDERS = (COLLECTED, "name", "fullname", *COLUMNS)


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
        raise ValueError(f"{name!r} is not one of these{hint}\n{listed}")
    return name
