"""How a run is shown: columns, order, and how much; and how the options that say so are read."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Collection
from dataclasses import dataclass, replace

DEFAULT_COLUMNS = "median,spread,vs_base,peak"
COLLECTED = "collected"
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
QUANTILES = ("p50", "p90", "p99")
OF_TOKENS = ("ttft", "tpot", *(f"itl_{quantile}" for quantile in QUANTILES))
"""Times of a generation."""
STANDARD = (
    *STATISTICS,
    *QUANTILES,
    "ops",
    "rounds",
    "iterations",
    "warmup",
    "spread",
    "vs_base",
    "first",
    *OF_TOKENS,
    "peak",
    "MFU",
    "quoted",
    *COUNTS,
)
"""Names that no fact can have. Rates are named by their unit of work (``tokens/s``), and no fact's name has a slash."""
COLUMNS = tuple(name for name in STANDARD if name != "quoted")
"""What any table may have; besides, phases, rates and facts that its cases have."""
ORDERS = (COLLECTED, "name", "fullname", *COLUMNS)
NOT_FOR_PHASES = (*STANDARD, *ORDERS, "case", "verdict", "latency", "fastest", "launching", "seconds", "source")
"""Names of other columns, quantities and arguments."""
_MISSPELT = 0.82
"""Names this like to a standard column's are refused as such before anything runs. ``read`` is less like ``spread``."""
_OWN = re.compile(r"[^\W\d]\w*(/\w+)?")
"""A phase, a fact, or a rate."""


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
    """Read ``"min, max, decode, tokens/s"``.

    Raises:
        ValueError: a name that can be no column, or is nearly a standard one's.
    """
    return tuple(dict.fromkeys(_known(name.strip().replace(" ", "_"), COLUMNS) for name in text.split(",")))


def parse_sort(text: str) -> str:
    """Read ``"mean"`` or ``"-mean"``.

    Raises:
        ValueError: nothing that cases are sorted by, or nearly such a name.
    """
    name = text.strip()
    return "-" * name.startswith("-") + _known(name.removeprefix("-").replace(" ", "_"), ORDERS)


def unknown_columns(view: View, names: Collection[str]) -> list[str]:
    """What is to be said of columns, and of an order, that are not standard and that no case has, which have ``names``.

    Cases tell their phases when they have been measured.
    """
    wanted = dict.fromkeys((*view.columns, view.sort.removeprefix("-")))
    known = (*ORDERS, *names)
    return [
        f"{name!r} is no standard column, and no case has it{_like(name, known)}"
        for name in wanted
        if name not in known
    ]


def refuse_unknown(names: Collection[str], known: Collection[str]) -> None:
    """Raise ValueError for a name that is not known, with one that is like it."""
    for name in names:
        if name not in known:
            listed = textwrap.fill(", ".join(known), 100, initial_indent="     ", subsequent_indent="     ")
            raise ValueError(f"{name!r} is not one of these{_like(name, known)}\n{listed}")


def without_unknown(view: View, names: Collection[str]) -> View:
    """The view without columns that no case has."""
    return replace(view, columns=tuple(name for name in view.columns if name in COLUMNS or name in names))


def _known(name: str, names: Collection[str]) -> str:
    misspelt = name in STANDARD or difflib.get_close_matches(name, names, n=1, cutoff=_MISSPELT)
    if misspelt or not _OWN.fullmatch(name):
        refuse_unknown([name], names)
    return name


def _like(name: str, names: Collection[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]}?" if close else ""
