"""Which runs of a history are one run that was read from several files: its results, its report, its journal. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perflab.history.series import Run, Series

_LONGEST_RUN = timedelta(days=1)
"""A journal is dated by a run's begin, and results by its end."""

Numbers = Mapping[int, float]
"""A run's values, by the number of the series."""


def repeats(runs: Sequence[Run], series: Sequence[Series]) -> set[int]:
    """The runs that another one holds as well, number for number; of equal ones the first stays.

    Only runs of one moment are compared, or a journal with results that came after it: two nights may well agree.
    """
    pairs = _pairs(runs)
    numbers: dict[int, dict[int, float]] = {run: {} for pair in pairs for run in pair}
    for at, row in enumerate(series) if pairs else ():
        for run, value in zip(row.runs, row.values, strict=True):
            if run in numbers:
                numbers[run][at] = value
    gone: set[int] = set()
    for one, other in pairs:
        poorer, richer = sorted((one, other), key=lambda run: (-len(numbers[run]), run))[::-1]
        if not gone & {poorer, richer} and _holds(numbers[richer], numbers[poorer]):
            gone.add(poorer)
    return gone


def _pairs(runs: Sequence[Run]) -> list[tuple[int, int]]:
    """Runs that may be one."""
    moments: dict[object, list[int]] = {}
    for at, run in enumerate(runs):
        moments.setdefault(run.created, []).append(at)
    pairs = [(a, b) for ones in moments.values() for a in ones for b in ones if a < b]
    ended = sorted((run.created, at) for at, run in enumerate(runs) if not run.is_journal)
    for at, journal in enumerate(runs):
        if journal.is_journal:
            begun = journal.created
            pairs += [(at, other) for created, other in ended if begun < created <= begun + _LONGEST_RUN]
    return [(a, b) for a, b in pairs if _compatible(runs[a].commit, runs[b].commit)]


def _compatible(one: str | None, other: str | None) -> bool:
    return one is None or other is None or one == other


def _holds(richer: Numbers, poorer: Numbers) -> bool:
    return bool(poorer) and all(richer.get(at) == value for at, value in poorer.items())
