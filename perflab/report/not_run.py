"""Lines about skipped cases: one a reason, with the command that runs them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from perflab.records import Shortage, Verdict
from perflab.report.lines import names_of
from perflab.results import Document, Result
from perflab.units import format_bytes, format_names, format_ns

_NAMED = 3
"""So many cases are named, where a reason has no more."""
_TOTAL, _BUDGET, _MEMORY = "--perf-total-budget", "--perf-budget", "memory"


def without_skipped(results: Sequence[Result]) -> list[Result]:
    """The results that have a line of their own."""
    return [result for result in results if result.judgement.verdict is not Verdict.SKIPPED]


def not_run(document: Document, *, listed: bool = False) -> list[tuple[str, str | None]]:
    """For each reason that cases were skipped for: the line, and the command that runs them where more time will do.

    ``listed``: each of them has a line of its own already, with its reason, so that only commands are left to say.
    """
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in document.results:
        if result.judgement.verdict is Verdict.SKIPPED:
            groups.setdefault(_reason(result), []).append(result)
    found = [_line(document, results, named=not listed) for results in groups.values()]
    return [(said, command) for said, command in found if command is not None or not listed]


def _reason(result: Result) -> tuple[str, ...]:
    """What cases of one line have in common: what they had too little of, or the words of another reason."""
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
    """The run's own command with more time; None where that is not what they lack."""
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
    """A total budget, in whole minutes, that has room for these as well; none at all where one is not known."""
    return f"{math.ceil((total_s + sum(needed_s)) / 60)}min" if all(needed_s) else ""
