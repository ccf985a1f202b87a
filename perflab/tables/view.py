"""The view of a run: its columns, order and length; and the parsers of the options that set the view."""

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
    "collectives",
    "collective_bytes",
    "collectives_outside_backward",
    "collective_waits",
    "collective_order",
    "collective_groups",
    "graph_breaks",
    "recompiles",
    "instructions",
    "callgrind_instructions",
)
CHARTED = ("ns", "s", "bytes", "per second")
"""Units in which a study's first column is drawn as a chart."""
STATISTICS = ("median", "min", "max", "mean", "std", "iqr")
QUANTILES = ("p50", "p90", "p99")
OF_TOKENS = ("ttft", "tpot", *(f"itl_{quantile}" for quantile in QUANTILES))
"""Times of a generation of tokens."""
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
"""Columns that any table may have. A table may also have the phases, rates and facts of its cases as columns."""
ORDERS = (COLLECTED, "name", "fullname", *COLUMNS)
NOT_FOR_PHASES = (*STANDARD, *ORDERS, "case", "verdict", "latency", "fastest", "launching", "seconds", "source")
"""Names that no phase can have: those of other columns, quantities and arguments."""
_MISSPELT = 0.82
"""Similarity to a standard name from which a name is refused before anything runs. ``read`` is less like ``spread``."""
_OWN = re.compile(r"[^\W\d]\w*(/\w+)?")
"""The form of the name of a phase, a fact or a rate."""


@dataclass(frozen=True)
class View:
    """The columns of each case beside its verdict, the order of the cases, and the length of a run's text."""

    columns: tuple[str, ...] = tuple(DEFAULT_COLUMNS.split(","))
    sort: str = COLLECTED
    """A column, ``name``, ``fullname`` or ``collected``; ``-`` before the name sorts from the largest down."""
    every: bool = False
    """Whether skipped cases have a line each, and a long run leaves nothing out."""
    brief: bool = False
    """Whether a case has only its line and the reasons of a verdict other than a plain ok, each reason once."""
    side_by_side: str | None = None
    """The parameter whose levels are set side by side, instead of the parameter that each case asks for."""


DEFAULT_VIEW = View()


def parse_columns(text: str) -> tuple[str, ...]:
    """Parse names of columns, such as ``"min, max, decode, tokens/s"``.

    Raises:
        ValueError: a name that cannot be a column's, or is nearly the name of a standard column.
    """
    return tuple(dict.fromkeys(_known(name.strip().replace(" ", "_"), COLUMNS) for name in text.split(",")))


def parse_sort(text: str) -> str:
    """Parse an order of cases, such as ``"mean"`` or ``"-mean"``.

    Raises:
        ValueError: a name by which cases cannot be sorted, or nearly a name by which they can be.
    """
    name = text.strip()
    return "-" * name.startswith("-") + _known(name.removeprefix("-").replace(" ", "_"), ORDERS)


def unknown_columns(view: View, names: Collection[str]) -> list[str]:
    """Return a sentence for each column or order of the view that is neither standard nor in ``names``.

    ``names`` are the columns that the cases have. Phases are only known after the cases have been measured.
    """
    wanted = dict.fromkeys((*view.columns, view.sort.removeprefix("-")))
    known = (*ORDERS, *names)
    return [
        f"{name!r} is no standard column, and no case has it{_like(name, known)}"
        for name in wanted
        if name not in known
    ]


def refuse_unknown(names: Collection[str], known: Collection[str]) -> None:
    """Raise ValueError for a name that is not known; the error suggests a similar name that is known."""
    for name in names:
        if name not in known:
            listed = textwrap.fill(", ".join(known), 100, initial_indent="     ", subsequent_indent="     ")
            raise ValueError(f"{name!r} is not one of these{_like(name, known)}\n{listed}")


def without_unknown(view: View, names: Collection[str]) -> View:
    """Return the view without the columns that are neither standard nor in ``names``, those that the cases have."""
    return replace(view, columns=tuple(name for name in view.columns if name in COLUMNS or name in names))


def _known(name: str, names: Collection[str]) -> str:
    misspelt = name in STANDARD or difflib.get_close_matches(name, names, n=1, cutoff=_MISSPELT)
    if misspelt or not _OWN.fullmatch(name):
        refuse_unknown([name], names)
    return name


def _like(name: str, names: Collection[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]}?" if close else ""
