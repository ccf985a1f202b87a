"""Lines about skipped cases: one for each reason, with the command that runs the cases."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from perflab.results.records import Shortage, Verdict
from perflab.results.result import Document, Result
from perflab.tables.lines import names_of
from perflab.units import format_bytes, format_names, format_ns

_NAMED = 3
"""The most cases of a reason that are named; more are only counted."""
_TOTAL, _BUDGET, _MEMORY = "--perf-total-budget", "--perf-budget", "memory"


def without_skipped(results: Sequence[Result]) -> list[Result]:
    """Return the results of cases that were not skipped, which have a line of their own."""
    return [result for result in results if result.judgement.verdict is not Verdict.SKIPPED]


def not_run(document: Document, *, listed: bool = False) -> list[tuple[str, str | None]]:
    """Return a line for each reason of skipped cases, and the command that runs the cases if more time is enough.

    ``listed``: each skipped case already has a line with its reason, so only reasons with a command are returned.
    """
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in document.results:
        if result.judgement.verdict is Verdict.SKIPPED:
            groups.setdefault(_reason(result), []).append(result)
    found = [_line(document, results, named=not listed) for results in groups.values()]
    return [(said, command) for said, command in found if command is not None or not listed]


def _reason(result: Result) -> tuple[str, ...]:
    """Return the key that cases of one line have in common: the limits that were too low, or another reason's words."""
    short_of = result.judgement.short_of
    if short_of:
        return tuple(f"{one.of} {one.given if one.of != _MEMORY else ''}" for one in short_of)
    return tuple(result.judgement.reasons)


def _line(document: Document, results: Sequence[Result], *, named: bool) -> tuple[str, str | None]:
    many = len(results)
    names = f" ({format_names(names_of(results))})" if named and many <= _NAMED else ""
    limits = [one.of for one in results[0].judgement.short_of]
    if not limits:
        return f"{many} skipped: {'; '.join(results[0].judgement.reasons)}{names}", None
    short_of = [max(_all_of(results, limit), key=lambda one: one.needed) for limit in limits]
    said = " and ".join(_said(one) for one in short_of)
    return f"{many} not run: {said}{names}", _command(document, results, short_of)


def _said(short_of: Shortage) -> str:
    given_ns, needed_ns = short_of.given * 1e9, short_of.needed * 1e9
    if short_of.of == _TOTAL:
        return f"the run's {format_ns(given_ns)} were over"
    if short_of.of == _MEMORY:
        return f"{format_bytes(int(short_of.needed))} of memory needed, {format_bytes(int(short_of.given))} free"
    return f"up to {format_ns(needed_ns)} needed, more than {short_of.of} ({format_ns(given_ns)})"


def _command(document: Document, results: Sequence[Result], short_of: Sequence[Shortage]) -> str | None:
    """Return the run's own command with more time; None if it is unknown, or the cases lack more than time."""
    values: dict[str, Callable[[Shortage], str]] = {
        _BUDGET: lambda one: f"{math.ceil(one.needed)}",
        _TOTAL: lambda one: _enough(one.given, [found.needed for found in _all_of(results, _TOTAL)]),
    }
    if document.command is None or not {one.of for one in short_of} <= set(values):
        return None
    options = {one.of: values[one.of](one) for one in short_of}
    if document.total_budget_s is not None:
        options.setdefault(_TOTAL, "")  # no limit
    return " ".join([document.command, *(f"{option}={value}" for option, value in options.items())])


def _all_of(results: Sequence[Result], limit: str) -> list[Shortage]:
    return [one for result in results for one in result.judgement.short_of if one.of == limit]


def _enough(total_s: float, needed_s: Sequence[float]) -> str:
    """Return a total budget in whole minutes that also covers these cases; empty if one of their needs is unknown."""
    return f"{math.ceil((total_s + sum(needed_s)) / 60)}min" if all(needed_s) else ""
